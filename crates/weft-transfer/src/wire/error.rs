//! What can be wrong with bytes of a peer.

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end within a field.
    #[error("the message ends within {0}")]
    Truncated(&'static str),
    /// There are bytes behind the last field.
    #[error("{0} bytes behind the end of the message")]
    TrailingBytes(usize),
    /// The connection does not begin like one of this protocol.
    #[error("the connection does not begin like a Weft transfer")]
    Magic,
    /// The lowest version is above the highest, or zero.
    #[error("versions {0} to {1} are no range")]
    Versions(u16, u16),
    /// A field has a value that nothing is defined for.
    #[error("{field} has no meaning: {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A bit is set that must be zero.
    #[error("{0} is not zero")]
    Reserved(&'static str),
    /// A message of an unknown type.
    #[error("unknown message type {0}")]
    Type(u16),
    /// A length or a number of items is above its limit.
    #[error("{field} is {value}, above the limit of {limit}")]
    TooLarge {
        /// What it is.
        field: &'static str,
        /// How large it is.
        value: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A length or number is below what is possible.
    #[error("{field} is {value}, below the least of {least}")]
    TooSmall {
        /// What it is.
        field: &'static str,
        /// How small it is.
        value: u64,
        /// How small it may be.
        least: u64,
    },
    /// A range of sequence numbers is empty, or not above the one before it.
    #[error("range {0} to {1} is empty or out of order")]
    Range(u64, u64),
    /// The table of a block is longer than its payload.
    #[error("a table of {table} bytes in a payload of {payload}")]
    Table {
        /// Length of the table.
        table: u32,
        /// Length of the payload.
        payload: u32,
    },
    /// A text is no UTF-8.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    /// A message of the connection names a session, or one of a session none.
    #[error("message type {kind} with session {session}")]
    Session {
        /// The message's type.
        kind: u16,
        /// The session it names.
        session: u32,
    },
}
