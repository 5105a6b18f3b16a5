//! Errors of commands, with the texts that Redis has for them.

use crate::model::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::resp) enum Problem {
    /// The text of the error.
    Text(&'static str),
    /// The text of an error that quotes the command.
    Quoting(String),
    /// The wrong number of arguments for the command.
    Arguments,
    /// The model refuses the operation.
    Refused(Refusal),
}

pub(super) const SYNTAX: Problem = Problem::Text("ERR syntax error");
pub(super) const INTEGER: Problem = Problem::Text("ERR value is not an integer or out of range");
pub(super) const KIND: Problem =
    Problem::Text("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(super) const NO_KEY: Problem = Problem::Text("ERR no such key");
pub(super) const STAMP: Problem =
    Problem::Text("ERR Invalid stream ID specified as stream command argument");

impl Problem {
    /// The text of the error of a command with this name.
    pub(in crate::resp) fn text(&self, command: &str) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Quoting(text) => text.clone(),
            Self::Arguments => {
                format!("ERR wrong number of arguments for '{command}' command")
            }
            Self::Refused(refusal) => refused(*refusal).to_owned(),
        }
    }

    /// A command that there is not.
    pub(super) fn unknown(words: &[Vec<u8>]) -> Self {
        const LEN_MAX: usize = 128;
        let cut = |word: &[u8], len: usize| -> String {
            let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(&word[..word.len().min(len)]).into_owned()
        };
        let (name, arguments) =
            words.split_first().map_or((&[][..], words), |(name, rest)| (&name[..], rest));
        let mut quoted = String::new();
        for argument in arguments {
            let Some(left) = LEN_MAX.checked_sub(quoted.len()).filter(|left| *left != 0) else {
                break;
            };
            quoted.push_str(&format!("'{}' ", cut(argument, left)));
        }
        let name = cut(name, LEN_MAX);
        Self::Quoting(format!("ERR unknown command '{name}', with args beginning with: {quoted}"))
    }

    /// A subcommand that there is not.
    pub(super) fn unknown_sub(command: &str, sub: &[u8]) -> Self {
        let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
        Self::Quoting(format!("ERR unknown subcommand '{sub}'. Try {command} HELP."))
    }

    /// The wrong number of arguments for a subcommand.
    pub(super) fn sub_arguments(command: &str, sub: &str) -> Self {
        Self::Quoting(format!("ERR wrong number of arguments for '{command}|{sub}' command"))
    }
}

/// What a replica of Redis answers to writes.
pub(in crate::resp) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// A user without a right to an element.
pub(super) const NO_KEYS: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";

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
        Refusal::Elsewhere => READ_ONLY,
        Refusal::Rights => NO_KEYS,
        Refusal::Stale | Refusal::Window | Refusal::Token => "ERR not of this protocol",
    }
}
