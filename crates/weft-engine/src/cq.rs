//! Completion queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use weft_sys::{Lock, LockGuard};

use crate::channel::CompChannel;
use crate::clock;
use crate::context::Context;
use crate::event::{AsyncEvent, Element, EventKind, Object};
use crate::limits::CQE_MAX;
use crate::wc::{Completion, Status};
use crate::{Errno, Result};

const DISARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_ANY: u8 = 2;

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Completion>,
    /// When each entry was added, in ticks of the clock; `None` without time stamps.
    times: Option<VecDeque<u64>>,
    capacity: usize,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    /// The C ABI's pointer for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    ring: Lock<Ring>,
    /// Length of the ring, readable without the lock.
    ready: AtomicU32,
    armed: AtomicU8,
    overrun: AtomicBool,
    users: AtomicUsize,
}

impl Cq {
    /// `ibv_create_cq`.
    ///
    /// # Errors
    /// `EINVAL` for a size of 0 or above [`CQE_MAX`].
    pub fn new(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
    ) -> Result<Arc<Self>> {
        Self::make(context, cqe, channel, None)
    }

    /// `ibv_create_cq_ex` with time stamps.
    ///
    /// # Errors
    /// As [`Cq::new`].
    pub fn new_stamped(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
    ) -> Result<Arc<Self>> {
        Self::make(context, cqe, channel, Some(VecDeque::new()))
    }

    fn make(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<Arc<CompChannel>>,
        times: Option<VecDeque<u64>>,
    ) -> Result<Arc<Self>> {
        if cqe == 0 || cqe > CQE_MAX {
            return Err(Errno::INVAL);
        }
        let capacity = cqe as usize;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            channel,
            cookie: AtomicUsize::new(0),
            ring: Lock::new(Ring { entries: VecDeque::new(), times, capacity }),
            ready: AtomicU32::new(0),
            armed: AtomicU8::new(DISARMED),
            overrun: AtomicBool::new(false),
            users: AtomicUsize::new(0),
        }))
    }

    /// The context of this queue.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The channel that receives this queue's events.
    #[must_use]
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Moves completions to `out` and returns how many. Makes progress if none is ready.
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        if !self.find_any() {
            return 0;
        }
        let mut ring = self.ring.lock();
        let count = out.len().min(ring.entries.len());
        for (slot, entry) in out.iter_mut().zip(ring.entries.drain(..count)) {
            *slot = entry;
        }
        if let Some(times) = &mut ring.times {
            times.drain(..count);
        }
        self.publish_len(&ring);
        count
    }

    /// Takes one completion and returns it with its time stamp in ticks of the clock (0 without
    /// time stamps). Makes progress if none is ready.
    pub fn poll_stamped(&self) -> Option<(Completion, u64)> {
        if !self.find_any() {
            return None;
        }
        let mut ring = self.ring.lock();
        let entry = ring.entries.pop_front()?;
        let time = ring.times.as_mut().and_then(VecDeque::pop_front).unwrap_or(0);
        self.publish_len(&ring);
        Some((entry, time))
    }

    /// Whether a completion is ready. Makes progress if none is.
    fn find_any(&self) -> bool {
        let is_ready = || self.ready.load(Ordering::Acquire) != 0;
        is_ready() || {
            self.context.reactor().get().poll();
            is_ready()
        }
    }

    /// Whether the queue has lost a completion because it was full (`IBV_EVENT_CQ_ERR`).
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// `ibv_req_notify_cq`: the next completion (or the next solicited one) posts one event.
    pub fn arm(&self, solicited_only: bool) {
        let level = if solicited_only { ARMED_SOLICITED } else { ARMED_ANY };
        {
            // A completion that is added before this is found by the program's next poll; one that
            // is added after it finds the queue armed.
            let _ring = self.ring.lock();
            self.armed.fetch_max(level, Ordering::AcqRel);
        }
        // A wrong guess delays the service thread once, by the time that it stands by.
        if !self.channel.as_ref().is_some_and(|channel| channel.waits_here()) {
            self.context.reactor().get().about_to_wait();
        }
    }

    /// `ibv_resize_cq`: room for `cqe` completions.
    ///
    /// # Errors
    /// `EINVAL` for 0, for more than [`CQE_MAX`], and for less than is in the queue now.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let mut ring = self.ring.lock();
        if cqe == 0 || cqe > CQE_MAX || (cqe as usize) < ring.entries.len() {
            return Err(Errno::INVAL);
        }
        ring.capacity = cqe as usize;
        Ok(())
    }

    /// Checks that the queue may be destroyed, and removes its events.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses it.
    pub fn check_unused(self: &Arc<Self>) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Errno::BUSY);
        }
        if let Some(channel) = &self.channel {
            channel.purge(&**self);
        }
        Ok(())
    }

    /// Adds a completion; `solicited` if the peer requested a solicited event.
    #[inline]
    pub(crate) fn push(self: &Arc<Self>, completion: Completion, solicited: bool) {
        self.start_batch().push(completion, solicited);
    }

    /// Starts a batch of completions. Dropping the batch publishes them and notifies the program.
    #[inline]
    pub(crate) fn start_batch(self: &Arc<Self>) -> Batch<'_> {
        let ring = Some(self.ring.lock());
        Batch { cq: self, ring, level: DISARMED, is_overrun: false }
    }

    /// Whether the program has not taken all completions of a queue pair.
    pub(crate) fn has_any_of(&self, qp_num: u32) -> bool {
        self.ring.lock().entries.iter().any(|entry| entry.qp_num == qp_num)
    }

    /// Removes the completions of a queue pair that is reset or destroyed.
    pub(crate) fn forget(&self, qp_num: u32) {
        let mut ring = self.ring.lock();
        let Ring { entries, times, .. } = &mut *ring;
        if let Some(times) = times {
            let mut stay = entries.iter().map(|entry| entry.qp_num != qp_num);
            times.retain(|_| stay.next().unwrap_or(false));
        }
        entries.retain(|entry| entry.qp_num != qp_num);
        self.publish_len(&ring);
    }

    pub(crate) fn user(self: &Arc<Self>) -> CqUser {
        self.users.fetch_add(1, Ordering::AcqRel);
        CqUser(Arc::clone(self))
    }

    /// Takes a completion without making progress; for the simulation, which does that itself.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<Completion> {
        let mut ring = self.ring.lock();
        let entry = ring.entries.pop_front();
        self.publish_len(&ring);
        entry
    }

    fn publish_len(&self, ring: &Ring) {
        let len = u32::try_from(ring.entries.len()).unwrap_or(u32::MAX);
        self.ready.store(len, Ordering::Release);
    }

    #[cold]
    fn report_overrun(self: &Arc<Self>) {
        if !self.overrun.swap(true, Ordering::AcqRel) {
            let element = Element::Cq(Arc::clone(self) as Arc<dyn Object>);
            self.context.post_event(AsyncEvent { kind: EventKind::CqErr, element });
        }
    }
}

impl Object for Cq {
    fn cookie(&self) -> &AtomicUsize {
        &self.cookie
    }
}

/// A batch of completions that are being added to a queue.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    cq: &'a Arc<Cq>,
    ring: Option<LockGuard<'a, Ring>>,
    /// The lowest arming level at which this batch raises an event.
    level: u8,
    is_overrun: bool,
}

impl Batch<'_> {
    /// Whether the queue is not full.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.entries.len() < ring.capacity)
    }

    /// Adds a completion; `solicited` if the peer requested a solicited event.
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion, solicited: bool) {
        let Some(ring) = &mut self.ring else { return };
        if ring.entries.len() >= ring.capacity {
            self.is_overrun = true;
            return;
        }
        // An error counts as solicited (ibv_req_notify_cq(3)).
        let is_awaited = solicited || completion.status != Status::Success;
        let level = if is_awaited { ARMED_SOLICITED } else { ARMED_ANY };
        self.level = if self.level == DISARMED { level } else { self.level.min(level) };
        ring.entries.push_back(completion);
        if let Some(times) = &mut ring.times {
            times.push_back(clock::ticks());
        }
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        self.cq.publish_len(&ring);
        drop(ring);
        if self.is_overrun {
            self.cq.report_overrun();
        }
        if self.level == DISARMED {
            return;
        }
        let armed = &self.cq.armed;
        if armed.load(Ordering::Acquire) >= self.level
            && armed.swap(DISARMED, Ordering::AcqRel) >= self.level
            && let Some(channel) = &self.cq.channel
        {
            channel.post(Arc::clone(self.cq) as Arc<dyn Object>);
        }
    }
}

/// A queue pair's reference to its completion queue, which keeps that from being destroyed.
#[derive(Debug)]
pub(crate) struct CqUser(Arc<Cq>);

impl Drop for CqUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
