//! Completion channels: the descriptor that a program waits on for its completion queues.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use weft_sys::{Lock, LockGuard, Spin, consume, counting_eventfd, notify};

use crate::Result;
use crate::context::Context;
use crate::event::Object;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Arc<dyn Object>>,
    /// The descriptor is readable.
    raised: bool,
    /// Threads that make progress and then look at the queue: there is no need to wake them.
    driving: usize,
}

/// A completion channel. Its descriptor is readable while events wait, and obeys `O_NONBLOCK`.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    fd: OwnedFd,
    queue: Lock<Queue>,
    /// The program waits in `next_event`, not in a `poll` of its own that we do not see.
    waits_here: AtomicBool,
    spin: Spin,
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl CompChannel {
    /// `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// `EMFILE` and the like when there is no descriptor left.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let fd = counting_eventfd()?;
        let queue = Lock::new(Queue::default());
        let (waits_here, spin) = (AtomicBool::new(false), Spin::new());
        Ok(Arc::new(Self { context: Arc::clone(context), fd, queue, waits_here, spin }))
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
    pub fn next_event(&self) -> Result<Arc<dyn Object>> {
        if let Some(cq) = self.take(self.queue.lock()) {
            return Ok(cq);
        }
        let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
        self.waits_here.store(blocks, Ordering::Relaxed);
        let reactor = self.context.reactor().get();
        reactor.take(self.fd.as_fd(), blocks, &self.spin, |pass| self.drive(pass))
    }

    /// Makes a pass over the sockets and takes an event, perhaps one that it brought.
    fn drive(&self, pass: &dyn Fn()) -> Option<Arc<dyn Object>> {
        self.queue.lock().driving += 1;
        pass();
        let mut queue = self.queue.lock();
        queue.driving -= 1;
        self.take(queue)
    }

    /// Whether the program will probably wait in [`CompChannel::next_event`], which makes progress
    /// itself.
    pub(crate) fn waits_here(&self) -> bool {
        self.waits_here.load(Ordering::Relaxed)
    }

    /// Tells the program of a completion queue.
    pub(crate) fn post(&self, cq: Arc<dyn Object>) {
        let mut queue = self.queue.lock();
        queue.events.push_back(cq);
        if queue.driving == 0 {
            self.settle(&mut queue);
        }
    }

    /// Forgets the events of a completion queue that goes away.
    pub(crate) fn purge<T: Object>(&self, cq: &T) {
        let mut queue = self.queue.lock();
        queue.events.retain(|other| !other.is(cq));
        self.settle(&mut queue);
    }

    fn take(&self, mut queue: LockGuard<'_, Queue>) -> Option<Arc<dyn Object>> {
        let cq = queue.events.pop_front();
        self.settle(&mut queue);
        cq
    }

    /// Makes the descriptor readable if events wait, and only then.
    fn settle(&self, queue: &mut Queue) {
        let wanted = !queue.events.is_empty();
        if wanted == queue.raised {
            return;
        }
        queue.raised = wanted;
        if wanted {
            notify(&self.fd);
        } else {
            consume(&self.fd);
        }
    }
}
