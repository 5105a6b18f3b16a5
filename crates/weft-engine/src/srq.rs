//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::Lock;

use crate::context::Context;
use crate::cq::{Cq, CqUser};
use crate::event::{AsyncEvent, Element, EventKind, Object};
use crate::limits::{QP_WR_MAX, SGE_MAX};
use crate::pd::{Pd, PdUser};
use crate::queue::recv::{Fit, RecvQueue, RecvWork};
use crate::wr::RecvRequest;
use crate::{Errno, Result};

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Number of work requests that fit.
    pub max_wr: u32,
    /// Number of scatter entries of each.
    pub max_sge: u32,
    /// When fewer receives than this are posted, one `SRQ_LIMIT_REACHED` event is raised; 0
    /// disables it.
    pub srq_limit: u32,
}

/// A queue pair whose messages wait for a receive from a shared receive queue.
pub(crate) trait AwaitsReceive: Send + Sync + std::fmt::Debug {
    /// Called when the shared receive queue removes the queue pair from its waiting list.
    fn left_srq_list(&self);

    /// Called when a receive is available for the messages that wait.
    fn receive_posted(&self);

    /// Called, perhaps by a thread that has another queue pair locked, when another queue pair has
    /// given back a receive. The messages that wait may have it in the reactor's next pass.
    fn receive_given_back(&self);
}

#[derive(Debug)]
struct SharedQueue {
    queue: RecvQueue,
    limit: u32,
    /// Queue pairs whose messages found the queue empty, in order of arrival.
    waiting: VecDeque<Weak<dyn AwaitsReceive>>,
}

impl SharedQueue {
    /// Takes the next waiting queue pair off the list, if a receive is posted and one waits.
    fn next_waiting(&mut self) -> Option<Arc<dyn AwaitsReceive>> {
        while self.queue.len() != 0 {
            if let Some(qp) = self.waiting.pop_front()?.upgrade() {
                qp.left_srq_list();
                return Some(qp);
            }
        }
        None
    }
}

/// The XRC domain that numbers shared receive queues.
pub(crate) trait QueueDomain: Send + Sync + std::fmt::Debug {
    /// Removes the queue with this number.
    fn remove(&self, number: u32);
}

/// The additional state of a shared receive queue in an XRC domain.
#[derive(Debug)]
struct Xrc {
    domain: Arc<dyn QueueDomain>,
    number: u32,
    cq: Arc<Cq>,
    /// Reference to the completion queue until this queue is destroyed.
    hold: Lock<Option<CqUser>>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    context: Arc<Context>,
    pd: PdUser,
    /// The C ABI's pointer for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    shared: Lock<SharedQueue>,
    users: AtomicUsize,
    xrc: Option<Xrc>,
}

impl Srq {
    /// `ibv_create_srq`; ignores `attr.srq_limit`, as the manual says.
    ///
    /// # Errors
    /// `EINVAL` for sizes beyond the device's limits.
    pub fn new(pd: &Arc<Pd>, attr: SrqAttr) -> Result<Arc<Self>> {
        check(attr)?;
        Ok(Self::make(pd, attr, None))
    }

    /// Creates a queue with a number, which `domain` has assigned and by which peers name it. Its
    /// receives complete to `cq`.
    pub(crate) fn numbered(
        pd: &Arc<Pd>,
        attr: SrqAttr,
        domain: Arc<dyn QueueDomain>,
        number: u32,
        cq: &Arc<Cq>,
    ) -> Arc<Self> {
        let hold = Lock::new(Some(cq.user()));
        Self::make(pd, attr, Some(Xrc { domain, number, cq: Arc::clone(cq), hold }))
    }

    fn make(pd: &Arc<Pd>, attr: SrqAttr, xrc: Option<Xrc>) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(pd.context()),
            pd: pd.user(),
            cookie: AtomicUsize::new(0),
            shared: Lock::new(SharedQueue {
                queue: RecvQueue::new(attr.max_wr, attr.max_sge),
                limit: 0,
                waiting: VecDeque::new(),
            }),
            users: AtomicUsize::new(0),
            xrc,
        })
    }

    /// `ibv_get_srq_num`: the number by which a peer names this queue. Only a queue in an XRC
    /// domain has one.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// The completion queue of this queue's receives, if it is not their queue pair's.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// The context of this queue.
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
    /// `ENOMEM` if the queue is full, `EINVAL` for too many scatter entries.
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

    /// Adds a queue pair to the list of those that wait for a receive, unless `listed` says that it
    /// is on it. Returns true, without adding it, if a receive is posted.
    pub(crate) fn await_receive(&self, qp: Weak<dyn AwaitsReceive>, listed: &AtomicBool) -> bool {
        let mut shared = self.shared.lock();
        if shared.queue.len() != 0 {
            return true;
        }
        if !listed.swap(true, Ordering::SeqCst) {
            shared.waiting.push_back(qp);
        }
        false
    }

    /// Like [`Srq::await_receive`], for a queue pair that may be on the lists of several queues.
    pub(crate) fn await_receive_among_others(&self, qp: Weak<dyn AwaitsReceive>) -> bool {
        let mut shared = self.shared.lock();
        if shared.queue.len() != 0 {
            return true;
        }
        if !shared.waiting.iter().any(|other| other.ptr_eq(&qp)) {
            shared.waiting.push_back(qp);
        }
        false
    }

    /// `ibv_modify_srq`: `limit` arms the limit event, `max_wr` resizes the queue.
    ///
    /// # Errors
    /// `EINVAL` for a limit above the size, and for a size below the number of posted receives or
    /// beyond the device's limit.
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

    /// `ibv_destroy_srq`: afterwards no peer reaches the queue.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses the queue.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Errno::BUSY);
        }
        if let Some(xrc) = &self.xrc {
            xrc.domain.remove(xrc.number);
            *xrc.hold.lock() = None;
        }
        Ok(())
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

    /// Puts a receive back as the oldest one, because its message never arrived whole.
    pub(crate) fn give_back(&self, work: &RecvWork) {
        let mut shared = self.shared.lock();
        shared.queue.give_back(work);
        // Those that find nothing wait again.
        while let Some(qp) = shared.next_waiting() {
            qp.receive_given_back();
        }
    }

    pub(crate) fn user(self: &Arc<Self>) -> SrqUser {
        self.users.fetch_add(1, Ordering::AcqRel);
        SrqUser(Arc::clone(self))
    }

    /// If fewer receives are posted than the limit, raises the limit event and disarms it
    /// (ibv_modify_srq(3)).
    fn check_limit(self: &Arc<Self>, shared: &mut SharedQueue) {
        if (shared.queue.len() as u64) < u64::from(shared.limit) {
            shared.limit = 0;
            let element = Element::Srq(Arc::clone(self) as Arc<dyn Object>);
            self.context.post_event(AsyncEvent { kind: EventKind::SrqLimitReached, element });
        }
    }
}

impl Object for Srq {
    fn cookie(&self) -> &AtomicUsize {
        &self.cookie
    }
}

/// Checks the sizes of a queue.
///
/// # Errors
/// `EINVAL` for sizes beyond the device's limits.
pub(crate) fn check(attr: SrqAttr) -> Result<()> {
    let fits = attr.max_wr != 0 && attr.max_wr <= QP_WR_MAX && attr.max_sge <= SGE_MAX;
    if fits { Ok(()) } else { Err(Errno::INVAL) }
}

/// A queue pair's reference to its shared receive queue, which keeps that from being destroyed.
#[derive(Debug)]
pub(crate) struct SrqUser(Arc<Srq>);

impl Drop for SrqUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
