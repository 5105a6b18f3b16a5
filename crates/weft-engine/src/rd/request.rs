//! What a program asks of an endpoint, and what is reported to it.

use std::net::SocketAddr;

use weft_wire::rd::Reason;

/// An endpoint somewhere: a UDP address, and the endpoint's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// Where its datagrams go.
    pub socket: SocketAddr,
    /// Its number, which the program that bound it has chosen.
    pub endpoint: u16,
}

/// Registered memory of this process: key, address and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Key of the region.
    pub key: u32,
    /// Where in the region, as the registration counts.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Where the bytes of an RDMA Write come from.
#[derive(Clone, Debug)]
pub enum Data {
    /// A copy of their own.
    Bytes(Box<[u8]>),
    /// Registered memory, which must stay as it is until the request completes.
    Registered(Buffer),
}

/// Something to be done at a peer.
#[derive(Clone, Debug)]
pub enum Request {
    /// A message that the peer receives.
    Send(Box<[u8]>),
    /// RDMA Write to memory that the peer has registered.
    Write {
        /// What to write.
        data: Data,
        /// The peer's key.
        key: u32,
        /// Where in the peer's region, as its registration counts.
        addr: u64,
    },
    /// RDMA Read of memory that the peer has registered.
    Read {
        /// Where the bytes go; says how many, too.
        into: Buffer,
        /// The peer's key.
        key: u32,
        /// Where in the peer's region, as its registration counts.
        addr: u64,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The message is with the peer's endpoint, the bytes are in place.
    Success,
    /// The program's own memory cannot be used.
    LocalAccess(Reason),
    /// The peer refuses this request; later ones are not concerned.
    Refused(Reason),
    /// The peer has started anew. The request may have been carried out before.
    PeerRestarted,
    /// The peer did not answer, or gave up answering. The request may have been carried out.
    PeerUnreachable,
}

/// Something that is reported to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message has arrived. Those of one peer come in the order of sending.
    Received {
        /// From whom.
        from: PeerAddress,
        /// All of it.
        bytes: Vec<u8>,
    },
    /// A request is over. Requests to one peer complete in the order of posting, but that an RDMA
    /// Read may complete after later requests.
    Completed {
        /// The number that the request was posted with.
        id: u64,
        /// How it ended.
        status: Status,
    },
}
