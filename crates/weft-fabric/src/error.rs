//! What can go wrong.

use std::net::SocketAddr;

use weft_engine::Errno;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This host has no network interface that is up, or none of this name.
    #[error("there is no network interface{}: `weft info` lists those that can be used",
            .name.as_deref().map(|name| format!(" {name}")).unwrap_or_default())]
    NoDevice {
        /// The name in [`Options`](crate::Options).
        name: Option<String>,
    },
    /// No RDMA device can be used ([`Carrier::System`](crate::Carrier::System)).
    #[error("no RDMA device can be used ({reason})")]
    NoCard {
        /// Why not.
        reason: String,
    },
    /// The RDMA device of this host has no atomics.
    #[error("the RDMA device has no atomics: use messages, or another carrier")]
    NoAtomics,
    /// An option is out of its range.
    #[error("{option} is {value}, but must be from {min} to {max}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The least value.
        min: usize,
        /// The greatest value.
        max: usize,
    },
    /// There is not enough memory.
    #[error("there is no memory for {len} bytes")]
    Memory {
        /// How much was wanted.
        len: usize,
    },
    /// A range is not inside the buffer, is not aligned, or is too long for one operation.
    #[error("the range does not fit the buffer of {len} bytes, or is not aligned")]
    Range {
        /// The buffer's length.
        len: usize,
    },
    /// A mapped file was cut off, or its device has failed. Peers have no rights to it any more.
    #[error("the mapped file was cut off, or its device fails: map it anew")]
    Truncated,
    /// The bytes do not lie inside what the remote key gives access to, or are not aligned.
    #[error(
        "{len} bytes at offset {offset} do not fit the remote memory of {of} bytes, or are not \
         aligned"
    )]
    RemoteRange {
        /// Where the access was to begin.
        offset: u64,
        /// Its length.
        len: usize,
        /// The bytes that the key gives access to.
        of: u64,
    },
    /// A message, or private data, is too long.
    #[error("{len} bytes are too long: {max} fit here")]
    TooLong {
        /// Its length.
        len: usize,
        /// How long it may be: for messages by value [`VALUE_MAX`](crate::limits::VALUE_MAX), for
        /// others what the peer receives ([`Endpoint::message_max`](crate::Endpoint::message_max)).
        max: usize,
    },
    /// Too many operations of the endpoint wait for their turn. Wait for one of them.
    #[error("{count} operations wait already: wait for one of them to end")]
    Busy {
        /// How many.
        count: usize,
    },
    /// Nobody listens there.
    #[error("nobody listens at {peer}: start the other end first")]
    NotListening {
        /// The address.
        peer: SocketAddr,
    },
    /// The peer's program refused the connection.
    #[error("{peer} refused the connection: {}", .reason.escape_ascii())]
    Refused {
        /// The peer.
        peer: SocketAddr,
        /// What its program gave as the reason.
        reason: Vec<u8>,
    },
    /// The host cannot be reached, or does not answer.
    #[error("{peer} cannot be reached: {cause}")]
    Unreachable {
        /// The address.
        peer: SocketAddr,
        /// The system's error.
        cause: Errno,
    },
    /// The peer is no fabric of this version, or does not keep to the protocol.
    #[error("{peer} does not speak this protocol: is it a program of the same version?")]
    Protocol {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer refused an access to its memory: the key is wrong or has ended, or does not give
    /// this right. The connection has ended.
    #[error("{peer} refused the access to its memory: the key has ended, or gives no such right")]
    Denied {
        /// The peer.
        peer: SocketAddr,
    },
    /// The connection was closed by either end, or the process of the peer has ended.
    #[error("the connection with {peer} is closed")]
    Closed {
        /// The peer.
        peer: SocketAddr,
    },
    /// The connection was lost: the peer was killed, or the network failed.
    #[error("the connection with {peer} was lost ({status})")]
    Lost {
        /// The peer.
        peer: SocketAddr,
        /// The status of the first operation that failed, as in `ibv_poll_cq(3)`.
        status: u32,
    },
    /// The system refused something.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The system's error.
        cause: Errno,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str, cause: Errno) -> Self {
        Self::System { what, cause }
    }
}
