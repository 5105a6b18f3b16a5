//! The queue pair as the [`Host`](crate::link::host::Host) of its connection: it provides posted
//! work and memory, and applies the protocol's effects.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Qp;
use crate::Result;
use crate::access::Access;
use crate::attr::QpState;
use crate::cq::Batch;
use crate::event::{AsyncEvent, Element, EventKind, Object};
use crate::link::host::{Completions, Effects, Memory, Work};
use crate::mr::{AccessContext, ExtraDomains};
use crate::mw::Mw;
use crate::queue::recv::{RecvQueue, RecvWork};
use crate::queue::send::SendQueue;
use crate::registered::{self, Keyed, MrCache};
use crate::srq::Srq;
use crate::wc::Completion;
use crate::wr::WindowBind;

impl Work for Qp {
    type Queue = Arc<Srq>;

    #[inline]
    fn sends(&self) -> impl DerefMut<Target = SendQueue> {
        self.sq.lock()
    }

    #[inline]
    fn may_have_unsent(&self) -> bool {
        self.has_unsent.load(Ordering::Acquire)
    }

    #[inline]
    fn note_unsent(&self, sends: &SendQueue) {
        self.has_unsent.store(sends.unsent() != 0, Ordering::Relaxed);
    }

    #[inline]
    fn receives(&self) -> impl DerefMut<Target = RecvQueue> {
        self.rq.lock()
    }

    fn has_receive(&self) -> bool {
        match &self.init.srq {
            Some(srq) => srq.has_receive(),
            None => self.rq.lock().len() != 0,
        }
    }

    fn take_receive(&self, queue: Option<&Arc<Srq>>, work: &mut RecvWork) -> bool {
        match queue.or(self.init.srq.as_ref()) {
            Some(srq) => srq.pop(work),
            None => self.rq.lock().pop(work),
        }
    }

    fn give_back_receive(&self, queue: Option<&Arc<Srq>>, work: &RecvWork) {
        if let Some(srq) = queue.or(self.init.srq.as_ref()) {
            srq.give_back(work);
        }
    }

    fn find_queue(&self, number: u32) -> Option<Arc<Srq>> {
        self.xrcd()?.find(number)
    }
}

impl Memory for Qp {
    type Keys = MrCache;

    #[inline]
    fn context(&self) -> AccessContext<'_> {
        let xrcd = self.init.xrcd.as_deref().map(|xrcd| xrcd as &dyn ExtraDomains);
        AccessContext { pd: &self.pd, xrcd, qp_num: self.number }
    }

    #[inline]
    fn receive_context<'a>(&'a self, queue: Option<&'a Arc<Srq>>) -> AccessContext<'a> {
        let pd = queue.map_or(&self.pd, |srq| srq.pd());
        AccessContext { pd, xrcd: None, qp_num: self.number }
    }

    fn invalidate(&self, key: u32) -> bool {
        self.invalidate_if(key, |_| true)
    }

    fn invalidate_for_peer(&self, key: u32) -> bool {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.invalidate_if(key, |access| access.intersects(remote))
    }

    fn bind(&self, window: &Mw, rkey: u32, bind: &WindowBind) -> Result<()> {
        window.bind(self.number, rkey, bind)
    }
}

impl Effects for Qp {
    #[inline]
    fn send_completions(&self) -> impl Completions {
        self.send_cq().start_batch()
    }

    #[inline]
    fn receive_completions(&self) -> impl Completions {
        self.recv_cq().start_batch()
    }

    #[inline]
    fn complete_receive(&self, queue: Option<&Arc<Srq>>, completion: Completion, solicited: bool) {
        let cq = queue.and_then(|srq| srq.cq()).unwrap_or_else(|| self.recv_cq());
        cq.push(completion, solicited);
    }

    fn enter_state(&self, state: QpState) {
        self.publish_state(state);
    }

    fn raise(&self, event: EventKind) {
        self.report(event);
    }

    fn send_queue_drained(&self) {
        self.report_drained();
    }

    fn last_receive_taken(&self) {
        self.report_last_wqe();
    }
}

impl Completions for Batch<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        Batch::has_room(self)
    }

    #[inline]
    fn push(&mut self, completion: Completion, solicited: bool) {
        Batch::push(self, completion, solicited);
    }
}

impl Qp {
    /// Invalidates a window that this queue pair has bound, or a region of its protection domain if
    /// `may` accepts the region's rights.
    fn invalidate_if(&self, key: u32, may: impl FnOnce(Access) -> bool) -> bool {
        match registered::find(key) {
            Some(Keyed::Window(window)) => window.invalidate(self.number),
            Some(Keyed::Region(mr)) if Arc::ptr_eq(mr.pd(), &self.pd) && may(mr.access()) => {
                mr.invalidate();
                true
            }
            _ => false,
        }
    }

    pub(crate) fn publish_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
    }

    pub(crate) fn report_drained(&self) {
        if self.attr.lock().en_sqd_async_notify {
            self.report(EventKind::SqDrained);
        }
    }

    /// Reports that no further receive of the shared queue will be taken (IBTA 10.2.9.3).
    pub(crate) fn report_last_wqe(&self) {
        if !self.last_wqe_reported.swap(true, Ordering::AcqRel) {
            self.report(EventKind::QpLastWqeReached);
        }
    }

    pub(crate) fn report(&self, kind: EventKind) {
        let element = Element::Qp(self.me() as Arc<dyn Object>);
        self.context().post_event(AsyncEvent { kind, element });
    }

    pub(crate) fn unsent(&self) -> u64 {
        self.sq.lock().unsent()
    }
}
