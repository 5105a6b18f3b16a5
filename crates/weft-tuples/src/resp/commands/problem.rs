//! Errors of commands, with the texts that Redis has for them.

use crate::model::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::resp) enum Problem {
    Unknown(String),
    /// The wrong number of arguments for this command.
    Arguments(String),
    Syntax,
    Integer,
    Timeout,
    NegativeTimeout,
    Stamp,
    /// The element is of another kind.
    Kind,
    Database,
    Version,
    /// The model refuses the operation.
    Refused(Refusal),
}

impl Problem {
    pub(in crate::resp) fn text(&self) -> String {
        let text = match self {
            Self::Unknown(name) => return format!("ERR unknown command '{name}'"),
            Self::Arguments(name) => {
                return format!("ERR wrong number of arguments for '{name}' command");
            }
            Self::Syntax => "ERR syntax error",
            Self::Integer => "ERR value is not an integer or out of range",
            Self::Timeout => "ERR timeout is not a float or out of range",
            Self::NegativeTimeout => "ERR timeout is negative",
            Self::Stamp => "ERR Invalid stream ID specified as stream command argument",
            Self::Kind => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::Database => "ERR DB index is out of range",
            Self::Version => "NOPROTO unsupported protocol version",
            Self::Refused(refusal) => refused(*refusal),
        };
        text.to_owned()
    }
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Limit => "ERR too long a name or value, or too many of them",
        Refusal::Exists => "ERR the element exists with other criteria",
        Refusal::Count => "ERR the element never has so many tuples for this command",
        Refusal::Order => "ERR the order of the element does not allow this",
        Refusal::Stamp => {
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
        }
        Refusal::Full => "FULL the element has no place",
        Refusal::Memory => "OOM command not allowed when used memory > 'maxmemory'.",
        Refusal::Answer => "ERR the answer would be too long",
        Refusal::Busy => "BUSY too many operations wait, or too many elements exist",
        Refusal::Deleted => "ERR the element was deleted",
        Refusal::Log => {
            "LOG the server stops because it cannot write its log; it is not known whether the \
             command took effect"
        }
        Refusal::Stale | Refusal::Window => "ERR not of this protocol",
    }
}
