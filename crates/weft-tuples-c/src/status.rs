//! What calls return.

use std::ffi::{CStr, c_int};

use weft_tuples::access::{TlsError, TokenError};
use weft_tuples::model::Refusal;
use weft_tuples::native::Failure;

/// What a call returns in place of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Refused(Refusal),
    Timeout,
    Lost,
    Protocol,
    Argument,
    Credentials,
}

impl Status {
    pub(crate) fn number(self) -> c_int {
        match self {
            Self::Refused(Refusal::Limit) => 1,
            Self::Refused(Refusal::Exists) => 2,
            Self::Refused(Refusal::Count) => 3,
            Self::Refused(Refusal::Order) => 4,
            Self::Refused(Refusal::Stamp) => 5,
            Self::Refused(Refusal::Full) => 6,
            Self::Refused(Refusal::Memory) => 7,
            Self::Refused(Refusal::Answer) => 8,
            Self::Refused(Refusal::Busy) => 9,
            Self::Refused(Refusal::Deleted) => 10,
            Self::Refused(Refusal::Stale) => 11,
            Self::Refused(Refusal::Window) => 12,
            Self::Refused(Refusal::Log) => 13,
            Self::Refused(Refusal::Elsewhere) => 14,
            Self::Refused(Refusal::Token) => 15,
            Self::Refused(Refusal::Rights) => 16,
            Self::Timeout => 32,
            Self::Lost => 33,
            Self::Protocol => 34,
            Self::Argument => 35,
            Self::Credentials => 36,
        }
    }
}

impl From<TokenError> for Status {
    fn from(_: TokenError) -> Self {
        Self::Credentials
    }
}

impl From<TlsError> for Status {
    fn from(_: TlsError) -> Self {
        Self::Credentials
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(_) => Self::Lost,
            Failure::Malformed(_) => Self::Protocol,
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Log => Self::Refused(Refusal::Log),
            Failure::Elsewhere(_) => Self::Refused(Refusal::Elsewhere),
        }
    }
}

/// The text of a status.
pub(crate) fn text(status: c_int) -> &'static CStr {
    match status {
        0 => c"success",
        1 => c"a name, a tuple or a number is beyond the limits",
        2 => c"the element exists with other criteria",
        3 => c"the element never has so many tuples for this",
        4 => c"the order of the element does not allow this",
        5 => c"the time stamp does not follow the last one",
        6 => c"the element is full",
        7 => c"the server has no memory for it",
        8 => c"the answer would be too long",
        9 => c"too many operations wait, or too many elements or clients exist",
        10 => c"the element was deleted",
        11 => c"the server does not know the client any more; it may have done the operation",
        12 => c"too many answers are kept for the client",
        13 => c"the server has stopped because of its log; it may have done the operation",
        14 => c"another server is the leader, or none is; the operation may have been done",
        15 => c"the server asks for a token, and the client has none or a wrong one",
        32 => c"the time is over",
        33 => c"there is no connection to the server; it may have done the operation",
        34 => c"the peer is no server of a tuple space",
        35 => c"a wrong argument",
        36 => {
            c"a file of credentials cannot be read, is not its owner's alone, or has no credentials"
        }
        _ => c"unknown status",
    }
}
