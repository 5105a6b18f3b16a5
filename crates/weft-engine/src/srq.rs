//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::Lock;

use crate::context::Context;
use crate::event::{AsyncEvent, Element, EventKind};
use crate::limits::{QP_WR_MAX, SGE_MAX};
use crate::pd::{Pd, PdUser};
use crate::qp::Qp;
use crate::qp::rq::{Fit, RecvQueue, RecvWork};
use crate::wr::RecvRequest;
use crate::{Errno, Result};

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Work requests that fit.
    pub max_wr: u32,
    /// Scatter entries of each.
    pub max_sge: u32,
    /// Below this many posted receives one `SRQ_LIMIT_REACHED` event is raised; 0 is off.
    pub srq_limit: u32,
}

#[derive(Debug)]
struct Shared {
    queue: RecvQueue,
    limit: u32,
    /// Queue pairs whose messages found the queue empty, the first one first.
    waiting: VecDeque<Weak<Qp>>,
}

impl Shared {
    /// The queue pair to bring a posted receive to, if one waits.
    fn next_waiting(&mut self) -> Option<Arc<Qp>> {
        while self.queue.len() != 0 {
            if let Some(qp) = self.waiting.pop_front()?.upgrade() {
                qp.left_srq_list();
                return Some(qp);
            }
        }
        None
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    context: Arc<Context>,
    pd: PdUser,
    /// The face's own name for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    shared: Lock<Shared>,
    users: AtomicUsize,
}

impl Srq {
    /// `ibv_create_srq`; `attr.srq_limit` is ignored, as the manual says.
    ///
    /// # Errors
    /// `EINVAL` for sizes beyond the device's.
    pub fn new(pd: &Arc<Pd>, attr: SrqAttr) -> Result<Arc<Self>> {
        if attr.max_wr == 0 || attr.max_wr > QP_WR_MAX || attr.max_sge > SGE_MAX {
            return Err(Errno::INVAL);
        }
        Ok(Arc::new(Self {
            context: Arc::clone(pd.context()),
            pd: pd.user(),
            cookie: AtomicUsize::new(0),
            shared: Lock::new(Shared {
                queue: RecvQueue::new(attr.max_wr, attr.max_sge),
                limit: 0,
                waiting: VecDeque::new(),
            }),
            users: AtomicUsize::new(0),
        }))
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }

    /// `ibv_post_srq_recv`.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full, `EINVAL` for too many scatter entries.
    pub fn post(&self, request: &RecvRequest<'_>) -> Result<()> {
        let mut waiting = {
            let mut shared = self.shared.lock();
            shared.queue.push(request)?;
            shared.next_waiting()
        };
        while let Some(qp) = waiting {
            qp.receive_posted();
            waiting = self.shared.lock().next_waiting();
        }
        Ok(())
    }

    /// Puts a queue pair on the list of those to bring the next receive to, unless `listed` says
    /// that it is there. Returns whether there is a receive already.
    pub(crate) fn await_receive(&self, qp: &Weak<Qp>, listed: &AtomicBool) -> bool {
        let mut shared = self.shared.lock();
        if shared.queue.len() != 0 {
            return true;
        }
        if !listed.swap(true, Ordering::SeqCst) {
            shared.waiting.push_back(Weak::clone(qp));
        }
        false
    }

    /// `ibv_modify_srq`: `limit` arms the limit event, `max_wr` resizes.
    ///
    /// # Errors
    /// `EINVAL` for a limit above the size, or a size below what is posted or beyond the device's.
    pub fn modify(self: &Arc<Self>, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let mut shared = self.shared.lock();
        let size = max_wr.unwrap_or_else(|| shared.queue.capacity());
        let limit = limit.unwrap_or(shared.limit);
        if size == 0 || size > QP_WR_MAX || (size as usize) < shared.queue.len() || limit > size {
            return Err(Errno::INVAL);
        }
        shared.queue.set_capacity(size);
        shared.limit = limit;
        self.check_limit(&mut shared);
        Ok(())
    }

    /// `ibv_query_srq`.
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        let shared = self.shared.lock();
        let queue = &shared.queue;
        SrqAttr { max_wr: queue.capacity(), max_sge: queue.max_sge(), srq_limit: shared.limit }
    }

    /// Checks that it may be destroyed.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses it.
    pub fn check_unused(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Whether a receive is posted.
    pub(crate) fn has_receive(&self) -> bool {
        self.shared.lock().queue.len() != 0
    }

    pub(crate) fn pop(self: &Arc<Self>, work: &mut RecvWork) -> bool {
        let mut shared = self.shared.lock();
        let found = shared.queue.pop(work);
        self.check_limit(&mut shared);
        found
    }

    /// Takes the oldest receive if it has room for `length` bytes.
    pub(crate) fn pop_for(self: &Arc<Self>, length: u64, work: &mut RecvWork) -> Fit {
        let mut shared = self.shared.lock();
        let fit = shared.queue.pop_for(length, work);
        self.check_limit(&mut shared);
        fit
    }

    pub(crate) fn user(self: &Arc<Self>) -> SrqUser {
        self.users.fetch_add(1, Ordering::AcqRel);
        SrqUser(Arc::clone(self))
    }

    /// Raises the limit event once and disarms it (ibv_modify_srq(3)).
    fn check_limit(self: &Arc<Self>, shared: &mut Shared) {
        if (shared.queue.len() as u64) < u64::from(shared.limit) {
            shared.limit = 0;
            let element = Element::Srq(Arc::clone(self));
            self.context.post_event(AsyncEvent { kind: EventKind::SrqLimitReached, element });
        }
    }
}

/// The hold that a queue pair has on its shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqUser(Arc<Srq>);

impl Drop for SrqUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
