//! The events of identifiers and their order.

use weft_sys::{Forkable, Lock, LockGuard};

use crate::qp::AddressVector;

/// The values of `enum rdma_cm_event_type` that occur here.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of rdma_get_cm_event(3).
pub enum EventKind {
    AddrResolved = 0,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
}

/// The parameters of an event (`struct rdma_conn_param`): what the peer sent and what was
/// negotiated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventParam {
    /// The private data of the peer's program.
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer may have outstanding with us.
    pub responder_resources: u8,
    /// Reads and atomics that we may have outstanding with the peer.
    pub initiator_depth: u8,
    /// The peer's queue pair number.
    pub qp_num: u32,
    /// For datagrams, the peer's address.
    pub datagram: Option<DatagramParam>,
}

/// The fields of `struct rdma_ud_param`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramParam {
    /// The address of the peer's host, or of the group.
    pub address: AddressVector,
    /// The Q_Key to send with.
    pub qkey: u32,
    /// For a join, the program's context.
    pub context: usize,
    /// For a join, whether the program only sends.
    pub sends_only: bool,
}

/// Why a datagram service cannot be reached, with the values of `enum ib_cm_sidr_status`.
pub mod sidr_status {
    /// No program listens on the port.
    pub const UNSUPPORTED: i32 = 1;
    /// The peer's program rejected.
    pub const REJECT: i32 = 2;
}

/// Reasons of a rejection, with the values of InfiniBand's connection manager
/// (InfiniBand Architecture vol. 1, section 12.6.7.2), which programs know.
pub mod reject {
    /// No program listens on the port.
    pub const INVALID_SERVICE_ID: i32 = 8;
    /// The peer's program rejected.
    pub const CONSUMER_DEFINED: i32 = 28;
}

/// Locks the order of events, so that an event follows its cause. The Linux kernel's iWARP
/// connection manager queues the passive side's `ESTABLISHED` before the peer can have the reply,
/// so that it precedes whatever the peer does with the connection. An accepting thread holds this
/// lock from before its reply until the event is queued; a thread that queues a possible
/// consequence, such as a connection request, takes it, too.
///
/// The lock is taken before any identifier's lock except that of a listener, which `accept` never
/// takes.
pub(super) fn in_order() -> LockGuard<'static, ()> {
    static ORDER: Forkable<Lock<()>> = Forkable::new(|| Lock::new(()));
    ORDER.get().lock()
}
