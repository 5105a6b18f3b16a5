//! Completion channels: the descriptor that a program waits on for its completion queues.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use weft_sys::{Lock, counting_eventfd, notify};

use crate::context::Context;
use crate::cq::Cq;
use crate::reactor::Reactor;
use crate::{Errno, Result};

/// A completion channel. Its descriptor is readable while events wait, and obeys `O_NONBLOCK`.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    fd: OwnedFd,
    waiting: Lock<VecDeque<Arc<Cq>>>,
    /// The program waits in `next_event`, not in a `poll` of its own that we do not see.
    waits_here: AtomicBool,
}

impl CompChannel {
    /// `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// `EMFILE` and the like when there is no descriptor left.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let fd = counting_eventfd()?;
        let waiting = Lock::new(VecDeque::new());
        let waits_here = AtomicBool::new(false);
        Ok(Arc::new(Self { context: Arc::clone(context), fd, waiting, waits_here }))
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The descriptor to poll. It stays owned by the channel.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `ibv_get_cq_event`: the next completion queue that has something to tell. Waits, driving the
    /// fabric meanwhile, unless the descriptor is non-blocking. Holds no lock while it waits, so
    /// that the thread may be cancelled.
    ///
    /// # Errors
    /// `EAGAIN` when the descriptor is non-blocking and nothing is there; `EINTR` after a signal.
    pub fn next_event(&self) -> Result<Arc<Cq>> {
        let mut waited = false;
        loop {
            if let Some(cq) = self.take() {
                self.waits_here.store(waited, Ordering::Relaxed);
                return Ok(cq);
            }
            waited = true;
            if fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
                Reactor::get().poll();
                return self.take().ok_or(Errno::AGAIN);
            }
            Reactor::get().wait_readable(self.fd.as_fd())?;
        }
    }

    /// Whether the program will probably wait in [`CompChannel::next_event`], which makes progress
    /// itself.
    pub(crate) fn waits_here(&self) -> bool {
        self.waits_here.load(Ordering::Relaxed)
    }

    pub(crate) fn post(&self, cq: &Arc<Cq>) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(Arc::clone(cq));
        notify(&self.fd);
    }

    /// Forgets the events of a completion queue that goes away.
    pub(crate) fn purge(&self, cq: &Arc<Cq>) {
        let mut waiting = self.waiting.lock();
        let before = waiting.len();
        waiting.retain(|other| !Arc::ptr_eq(other, cq));
        for _ in waiting.len()..before {
            self.consume();
        }
    }

    fn take(&self) -> Option<Arc<Cq>> {
        let mut waiting = self.waiting.lock();
        let cq = waiting.pop_front()?;
        self.consume();
        Some(cq)
    }

    /// Takes back one count of the descriptor; there is one for each queued event.
    fn consume(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}
