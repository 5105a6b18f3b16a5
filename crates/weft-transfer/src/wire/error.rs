//! Errors of parsing a peer's bytes.

/// Why bytes of a peer are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end within a field.
    #[error("the message ends within {0}")]
    Truncated(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the end of the message")]
    TrailingBytes(usize),
    /// The connection does not begin with this protocol's magic number.
    #[error("the connection does not begin like a Weft transfer")]
    Magic,
    /// The lowest version is above the highest, or zero.
    #[error("invalid range of versions: {0} to {1}")]
    Versions(u16, u16),
    /// A field has an undefined value.
    #[error("{field} has the undefined value {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A reserved field is not zero.
    #[error("{0} is not zero")]
    Reserved(&'static str),
    /// The type of the message is unknown.
    #[error("unknown message type {0}")]
    Type(u16),
    /// A length or count is above its limit.
    #[error("{field} is {value}, above the limit of {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A length or count is below its minimum.
    #[error("{field} is {value}, below the minimum of {least}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The minimum.
        least: u64,
    },
    /// A range of sequence numbers is empty, or not above the one before it.
    #[error("range {0} to {1} is empty or out of order")]
    Range(u64, u64),
    /// The table of a block is longer than its payload.
    #[error("invalid table of {table} bytes in a payload of {payload}")]
    Table {
        /// Length of the table.
        table: u32,
        /// Length of the payload.
        payload: u32,
    },
    /// A text is not valid UTF-8.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    /// A message of the connection names a session, or one of a session does not.
    #[error("message type {kind} does not allow session {session}")]
    Session {
        /// The message's type.
        kind: u16,
        /// The session it names.
        session: u32,
    },
}
