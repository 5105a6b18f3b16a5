//! Events of identifiers, and the channels that carry them to the program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use weft_sys::{Forkable, Lock, LockGuard, Spin, consume, counting_eventfd, notify};

use super::id::Id;
use crate::Result;
use crate::qp::AddressVector;
use crate::reactor::Reactor;
use crate::strangers::Place;

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

/// An event.
#[derive(Debug)]
pub struct Event {
    /// To which identifier it happened; of a connection request the new one.
    pub id: Arc<Id>,
    /// Of a connection request, who listened.
    pub listener: Option<Arc<Id>>,
    /// What happened.
    pub kind: EventKind,
    /// 0; a negative `errno`; or of a rejection the reason, see [`reject`].
    pub status: i32,
    /// What came with it.
    pub param: EventParam,
    /// Of a connection request that the program has not taken, a place among those.
    pub(super) place: Option<Place>,
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

impl Event {
    /// Whose acknowledgement is due: the identifier that the event keeps from being destroyed.
    #[must_use]
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
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

/// An event channel. Its descriptor is readable while events wait, and obeys `O_NONBLOCK`.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    /// Bounded by the identifiers: each has a few events, and a listener its backlog.
    events: Lock<VecDeque<Event>>,
    spin: Spin,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Channel {
    /// `rdma_create_event_channel`.
    ///
    /// # Errors
    /// `EMFILE` and the like when there is no descriptor left.
    pub fn new() -> Result<Arc<Self>> {
        let fd = counting_eventfd()?;
        Ok(Arc::new(Self { fd, events: Lock::new(VecDeque::new()), spin: Spin::new() }))
    }

    /// The descriptor to poll. It stays owned by the channel.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `rdma_get_cm_event`: the next event. Waits, driving the fabric meanwhile, unless the
    /// descriptor is non-blocking. Holds no lock while it waits, so that the thread may be
    /// cancelled. `delivering` sees the event before its owner can be destroyed.
    ///
    /// # Errors
    /// `EAGAIN` when the descriptor is non-blocking and nothing is there; `EINTR` after a signal.
    pub fn next_event(&self, delivering: impl Fn(&Event)) -> Result<Event> {
        if let Some(event) = self.take(&delivering) {
            return Ok(event);
        }
        let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
        Reactor::take(self.fd.as_fd(), blocks, &self.spin, |pass| {
            pass();
            self.take(&delivering)
        })
    }

    pub(super) fn post(&self, event: Event) {
        let mut events = self.events.lock();
        events.push_back(event);
        notify(&self.fd);
    }

    /// Takes out the events for which `wanted` is true, oldest first.
    pub(super) fn extract(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut events = self.events.lock();
        let (out, rest): (Vec<_>, Vec<_>) = events.drain(..).partition(|event| wanted(event));
        events.extend(rest);
        for _ in &out {
            consume(&self.fd);
        }
        out
    }

    fn take(&self, delivering: &impl Fn(&Event)) -> Option<Event> {
        let mut events = self.events.lock();
        let mut event = events.pop_front()?;
        event.place = None;
        consume(&self.fd);
        event.owner().event_taken(&event);
        delivering(&event);
        Some(event)
    }
}
