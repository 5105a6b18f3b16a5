//! What events of identifiers say, and their order.

use weft_sys::{Forkable, Lock, LockGuard};

use crate::qp::AddressVector;

/// `enum rdma_cm_event_type`, as far as it happens here, with the same values.
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

/// `struct rdma_conn_param` of an event: what the peer sent and what was agreed.
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
    /// With datagrams, how to reach it.
    pub datagram: Option<DatagramParam>,
}

/// `struct rdma_ud_param`, as far as it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramParam {
    /// Where the peer's host, or the group, is.
    pub address: AddressVector,
    /// The Q_Key to send with.
    pub qkey: u32,
    /// Of a join, what the program gave.
    pub context: usize,
    /// Of a join, whether it is to send only.
    pub sends_only: bool,
}

/// Why a datagram service cannot be reached, with the values of `enum ib_cm_sidr_status`.
pub mod sidr_status {
    /// Nobody listens on the port.
    pub const UNSUPPORTED: i32 = 1;
    /// The peer's program refused.
    pub const REJECT: i32 = 2;
}

/// Reasons of a rejection, with the values of InfiniBand's connection manager
/// (InfiniBand Architecture vol. 1, section 12.6.7.2), which programs know.
pub mod reject {
    /// Nobody listens on the port.
    pub const INVALID_SERVICE_ID: i32 = 8;
    /// The peer's program refused.
    pub const CONSUMER_DEFINED: i32 = 28;
}

/// Puts events in the order of their causes. The Linux kernel's connection manager of iWARP queues
/// `ESTABLISHED` of the passive side before the peer can have the reply, so whatever the peer does
/// with the connection comes behind it. Who accepts holds this while it replies and until the event
/// is queued; who queues what a peer may do next, a connection request, holds it for that.
///
/// It is taken before any identifier's lock but the listener's own, which `accept` never takes.
pub(super) fn in_order() -> LockGuard<'static, ()> {
    static ORDER: Forkable<Lock<()>> = Forkable::new(|| Lock::new(()));
    ORDER.get().lock()
}
