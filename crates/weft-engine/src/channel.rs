//! Completion channels: the descriptor that a program waits on for its completion queues.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_sys::calls::file_flags;
use weft_sys::calls::fs::OFlags;
use weft_sys::{Lock, LockGuard, Spin, consume, counting_eventfd, notify};

use crate::Result;
use crate::context::Context;
use crate::event::Object;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Arc<dyn Object>>,
    /// Whether the descriptor is readable.
    raised: bool,
    /// Threads that are in a pass and then look at the queue, so that a post need not notify them.
    driving: usize,
}

/// A completion channel. Its descriptor is readable while events are queued, and obeys
/// `O_NONBLOCK`.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    fd: OwnedFd,
    queue: Lock<Queue>,
    /// Whether the program waits in `next_event`, and not in a `poll` of its own that we do not
    /// see.
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
    /// `EMFILE` and similar if no descriptor is left.
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

    /// The descriptor to poll. The channel keeps its ownership.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `ibv_get_cq_event`: returns the next completion queue that has an event. Unless the
    /// descriptor is non-blocking, the call waits, and makes progress while it does. It holds no
    /// lock while it waits, so that the thread may be cancelled.
    ///
    /// # Errors
    /// `EAGAIN` if the descriptor is non-blocking and there is no event; `EINTR` after a signal.
    pub fn next_event(&self) -> Result<Arc<dyn Object>> {
        if let Some(cq) = self.take(self.queue.lock()) {
            return Ok(cq);
        }
        let blocks = !file_flags(&self.fd)?.contains(OFlags::NONBLOCK);
        self.waits_here.store(blocks, Ordering::Relaxed);
        let reactor = self.context.reactor().get();
        reactor.take(self.fd.as_fd(), blocks, &self.spin, |pass| self.drive(pass))
    }

    /// Makes a pass over the sockets and takes an event, which may be one that the pass produced.
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

    /// Queues an event of a completion queue for the program.
    pub(crate) fn post(&self, cq: Arc<dyn Object>) {
        let mut queue = self.queue.lock();
        queue.events.push_back(cq);
        if queue.driving == 0 {
            self.settle(&mut queue);
        }
    }

    /// Removes the events of a completion queue that is being destroyed.
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

    /// Makes the descriptor readable if events are queued, and not readable otherwise.
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
