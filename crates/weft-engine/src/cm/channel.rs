//! Channels that carry events to the program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use weft_sys::{Lock, Spin, consume, counting_eventfd, notify};

use crate::Result;
use crate::reactor::Handle;

/// Something that a channel hands to the program.
pub trait Delivery {
    /// The program takes it. Called with the channel locked.
    fn taken(&mut self);
}

/// An event channel. Its descriptor is readable while events wait, and obeys `O_NONBLOCK`.
#[derive(Debug)]
pub struct EventChannel<E> {
    reactor: Handle,
    fd: OwnedFd,
    /// Bounded by the identifiers: each has a few events, and a listener its backlog.
    events: Lock<VecDeque<E>>,
    spin: Spin,
}

impl<E> AsFd for EventChannel<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<E: Delivery> EventChannel<E> {
    /// `rdma_create_event_channel`.
    ///
    /// # Errors
    /// `EMFILE` and the like when there is no descriptor left.
    pub fn new() -> Result<Arc<Self>> {
        let fd = counting_eventfd()?;
        let (reactor, events) = (Handle::of_process(), Lock::new(VecDeque::new()));
        Ok(Arc::new(Self { reactor, fd, events, spin: Spin::new() }))
    }

    /// The reactor of the identifiers whose events come here.
    pub(super) fn reactor(&self) -> Handle {
        self.reactor
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
    pub fn next_event(&self, delivering: impl Fn(&E)) -> Result<E> {
        if let Some(event) = self.take(&delivering) {
            return Ok(event);
        }
        let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
        self.reactor.get().take(self.fd.as_fd(), blocks, &self.spin, |pass| {
            pass();
            self.take(&delivering)
        })
    }

    pub(super) fn post(&self, event: E) {
        let mut events = self.events.lock();
        events.push_back(event);
        notify(&self.fd);
    }

    /// Takes out the events for which `wanted` is true, oldest first. Only for what the program
    /// itself asks: it may have seen that the descriptor is readable, and is about to wait for what
    /// it has seen.
    pub(super) fn extract(&self, wanted: impl Fn(&E) -> bool) -> Vec<E> {
        let mut events = self.events.lock();
        let (out, rest): (Vec<_>, Vec<_>) = events.drain(..).partition(|event| wanted(event));
        events.extend(rest);
        for _ in &out {
            consume(&self.fd);
        }
        out
    }

    /// Whether an event for which `wanted` is true waits.
    pub(super) fn has(&self, wanted: impl Fn(&E) -> bool) -> bool {
        self.events.lock().iter().any(wanted)
    }

    fn take(&self, delivering: &impl Fn(&E)) -> Option<E> {
        let mut events = self.events.lock();
        let mut event = events.pop_front()?;
        consume(&self.fd);
        event.taken();
        delivering(&event);
        Some(event)
    }
}
