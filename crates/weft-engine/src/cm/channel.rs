//! Channels that deliver events to the program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use weft_sys::calls::file_flags;
use weft_sys::calls::fs::OFlags;
use weft_sys::{Lock, Spin, consume, counting_eventfd, notify};

use crate::Result;
use crate::reactor::Handle;

/// An event that a channel delivers.
pub trait Delivery {
    /// Called when the program takes the event, with the channel locked.
    fn taken(&mut self);
}

/// An event channel. Its descriptor is readable while events are queued, and obeys `O_NONBLOCK`.
#[derive(Debug)]
pub struct EventChannel<E> {
    reactor: Handle,
    fd: OwnedFd,
    /// Bounded by the identifiers: each has a few events, and a listener has at most its backlog.
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
    /// `EMFILE` and similar if no descriptor is left.
    pub fn new() -> Result<Arc<Self>> {
        let fd = counting_eventfd()?;
        let (reactor, events) = (Handle::of_process(), Lock::new(VecDeque::new()));
        Ok(Arc::new(Self { reactor, fd, events, spin: Spin::new() }))
    }

    /// The reactor of the identifiers that post to this channel.
    pub(super) fn reactor(&self) -> Handle {
        self.reactor
    }

    /// The descriptor to poll. The channel keeps its ownership.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `rdma_get_cm_event`: returns the next event. Unless the descriptor is non-blocking, the call
    /// waits, and makes progress while it does. It holds no lock while it waits, so that the thread
    /// may be cancelled. `delivering` is called with the event before the event's owner can be
    /// destroyed.
    ///
    /// # Errors
    /// `EAGAIN` if the descriptor is non-blocking and there is no event; `EINTR` after a signal.
    pub fn next_event(&self, delivering: impl Fn(&E)) -> Result<E> {
        if let Some(event) = self.take(&delivering) {
            return Ok(event);
        }
        let blocks = !file_flags(&self.fd)?.contains(OFlags::NONBLOCK);
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

    /// Removes the events for which `wanted` is true, oldest first. Allowed only in a call of the
    /// program: otherwise the program may have seen that the descriptor is readable, and would then
    /// wait for an event that is gone.
    pub(super) fn extract(&self, wanted: impl Fn(&E) -> bool) -> Vec<E> {
        let mut events = self.events.lock();
        let (out, rest): (Vec<_>, Vec<_>) = events.drain(..).partition(|event| wanted(event));
        events.extend(rest);
        for _ in &out {
            consume(&self.fd);
        }
        out
    }

    /// Whether an event for which `wanted` is true is queued.
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
