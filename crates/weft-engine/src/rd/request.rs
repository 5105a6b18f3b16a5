//! The requests of a program to an endpoint, and the endpoint's events.

use std::net::SocketAddr;

use weft_wire::rd::Reason;

pub use weft_wire::rdmap::AtomicOp;

/// The address of an endpoint: a UDP address, and the endpoint's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// The UDP address.
    pub socket: SocketAddr,
    /// The number, which the program that bound the endpoint chose.
    pub endpoint: u16,
}

/// The two ends of what a peer and this host say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route {
    // Not a `PeerAddress`, so that it is no longer than one.
    socket: SocketAddr,
    endpoint: u16,
    /// The number of the endpoint here.
    pub(super) local: u16,
}

impl Route {
    pub(super) fn new(local: u16, peer: PeerAddress) -> Self {
        Self { socket: peer.socket, endpoint: peer.endpoint, local }
    }

    /// The peer's endpoint.
    pub(super) fn peer(&self) -> PeerAddress {
        PeerAddress { socket: self.socket, endpoint: self.endpoint }
    }
}

/// Registered memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The region's key.
    pub key: u32,
    /// The address, as in the registration.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
}

/// The bytes of an RDMA Write.
#[derive(Clone, Debug)]
pub enum Data {
    /// Bytes that the request owns.
    Bytes(Box<[u8]>),
    /// Registered memory, which must not change until the request completes.
    Registered(Buffer),
}

/// A request to a peer.
#[derive(Clone, Debug)]
pub enum Request {
    /// Send a message that the peer receives.
    Send(Box<[u8]>),
    /// RDMA Write to memory that the peer has registered.
    Write {
        /// The bytes to write.
        data: Data,
        /// The peer's key.
        key: u32,
        /// The address in the peer's region, as in its registration.
        addr: u64,
    },
    /// An atomic operation on eight bytes of memory that the peer has registered. It is carried out
    /// at most once, and once if it succeeds.
    Atomic {
        /// The operation.
        op: AtomicOp,
        /// Eight bytes, which become the value before the operation, in the byte order of this
        /// host.
        into: Buffer,
        /// The peer's key.
        key: u32,
        /// The address in the peer's region, as in its registration: a multiple of eight.
        addr: u64,
    },
    /// RDMA Read of memory that the peer has registered.
    Read {
        /// The memory to fill; its length is that of the read.
        into: Buffer,
        /// The peer's key.
        key: u32,
        /// The address in the peer's region, as in its registration.
        addr: u64,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The peer's endpoint has the message, or the bytes are placed.
    Success,
    /// The program's own memory cannot be accessed.
    LocalAccess(Reason),
    /// The peer refused this request. Later requests are not affected.
    Refused(Reason),
    /// The peer has restarted. The request may have been carried out before.
    PeerRestarted,
    /// The peer did not answer, or gave up the request. The request may have been carried out.
    PeerUnreachable,
    /// The peer's host answers that no process is at the peer's address. The request may have been
    /// carried out before the process ended. Only connected peers are given up for that reason.
    PeerGone,
}

/// What has happened, for the connections of a port or for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Received {
        route: Route,
        bytes: Vec<u8>,
    },
    Completed {
        id: u64,
        status: Status,
    },
    /// The peer at the other end of a connection has ended it, has restarted, or may not go on.
    Lost {
        route: Route,
        status: Status,
    },
}

/// An event for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message has arrived. Messages of one peer arrive in the order of sending.
    Received {
        /// The sender.
        from: PeerAddress,
        /// The whole message.
        bytes: Vec<u8>,
    },
    /// A request has ended. Requests to one peer complete in the order of posting, except that an
    /// RDMA Read and an atomic operation may complete after later requests.
    Completed {
        /// The number that the request was posted with.
        id: u64,
        /// How it ended.
        status: Status,
    },
}
