//! Creation and destruction of queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::{Lock, NoteLock};

use super::conn::Conn;
use super::datagram::ROUTES;
use super::init::QpInit;
use super::peers::{find, numbers};
use super::{Holds, Qp, peers};
use crate::attr::{QpAttr, QpCap, QpState, QpType};
use crate::context::Context;
use crate::cq::Cq;
use crate::event::{AsyncEvent, Element};
use crate::limits::{DATAGRAM_MAX, INLINE_MAX, INLINE_MIN, MESSAGE_MAX, QP_WR_MAX, SGE_MAX};
use crate::link::{Config, Link};
use crate::pd::Pd;
use crate::queue::recv::RecvQueue;
use crate::queue::send::{SendLimits, SendQueue};
use crate::srq::Srq;
use crate::ud::Datagram;
use crate::xrc::Xrcd;
use crate::{Errno, Result, registered, shm, ud};

impl Qp {
    /// `ibv_create_qp`. The sizes become the requested ones, and the inline size at least
    /// [`INLINE_MIN`].
    ///
    /// # Errors
    /// `EINVAL` for sizes beyond the device's limits; `ENOMEM` if no number or key is left.
    pub fn new(pd: &Arc<Pd>, mut init: QpInit) -> Result<Arc<Self>> {
        init.cap.max_inline_data = init.cap.max_inline_data.max(INLINE_MIN);
        let cap = init.cap;
        let fits = cap.max_send_wr <= QP_WR_MAX
            && cap.max_recv_wr <= QP_WR_MAX
            && cap.max_send_sge <= SGE_MAX
            && cap.max_recv_sge <= SGE_MAX
            && cap.max_inline_data <= INLINE_MAX;
        if !fits {
            return Err(Errno::INVAL);
        }
        let is_target = init.qp_type == QpType::XrcRecv;
        if is_target != init.xrcd.is_some() || (init.srq.is_some() && !init.qp_type.receives()) {
            return Err(Errno::INVAL);
        }
        let holds = Holds {
            pd: pd.user(),
            send_cq: init.send_cq.user(),
            recv_cq: init.recv_cq.user(),
            srq: init.srq.as_ref().map(Srq::user),
        };
        let (number, datagram) = match init.qp_type {
            QpType::Ud => {
                let reactor = pd.context().reactor();
                let open = |port| ud::Port::open(reactor, port, ROUTES);
                let (number, port) = numbers().allocate_for_datagrams(open)?;
                (number, Some(Datagram::new(port)))
            }
            _ => (numbers().allocate()?, None),
        };
        let ack_stag = match registered::reserve() {
            Ok(key) => key,
            Err(error) => {
                numbers().release(number);
                return Err(error);
            }
        };
        let limits = SendLimits {
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_message: if datagram.is_some() { DATAGRAM_MAX } else { MESSAGE_MAX },
            sq_sig_all: init.sq_sig_all,
        };
        let own_receives = if init.srq.is_some() { 0 } else { cap.max_recv_wr };
        let qp = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            number,
            ack_stag,
            pd: Arc::clone(pd),
            holds: Lock::new(Some(holds)),
            cookie: AtomicUsize::new(0),
            attr: Lock::new(QpAttr::default()),
            state: AtomicU32::new(QpState::Reset as u32),
            sq: Lock::new(SendQueue::new(limits)),
            rq: Lock::new(RecvQueue::new(own_receives, cap.max_recv_sge)),
            conn: NoteLock::new(Conn::new(Link::new(link_config(number, ack_stag, &init)))),
            datagram,
            pending_work: AtomicU32::new(0),
            deferred: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            posts_bursts: AtomicBool::new(false),
            awaiting_receive: AtomicBool::new(false),
            retry_timer: Lock::new(None),
            monitor: Lock::new(None),
            last_wqe_reported: AtomicBool::new(false),
            users: AtomicUsize::new(1),
            init,
        });
        shm::find_by(|number| Some(find(number)? as _));
        numbers().bind(number, &qp);
        Ok(qp)
    }

    /// `ibv_create_qp_ex` with an XRC domain: creates the target of an extended connection. It uses
    /// the queues and protection domains of the shared receive queues of the domain; its own stay
    /// empty.
    ///
    /// # Errors
    /// `ENOMEM` if no number or key is left.
    pub fn new_target(context: &Arc<Context>, xrcd: &Arc<Xrcd>) -> Result<Arc<Self>> {
        let pd = Pd::new(context);
        let cq = Cq::new(context, 1, None)?;
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            send_cq: Arc::clone(&cq),
            recv_cq: cq,
            srq: None,
            xrcd: Some(Arc::clone(xrcd)),
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        Self::new(&pd, init)
    }

    /// `ibv_open_qp`: opens the target of this process with this number, if it belongs to the
    /// domain. The last [`Qp::destroy`] destroys it.
    #[must_use]
    pub fn open_target(xrcd: &Arc<Xrcd>, number: u32) -> Option<Arc<Self>> {
        let qp = find(number)?;
        let is_of_domain = qp.xrcd().is_some_and(|own| Arc::ptr_eq(own, xrcd));
        let share = |users: usize| (users != 0).then_some(users + 1);
        let is_shared = is_of_domain
            && qp.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, share).is_ok();
        is_shared.then_some(qp)
    }

    /// `ibv_destroy_qp`. Afterwards the program gets no completion and no event of it. A shared
    /// queue pair is destroyed by its last user.
    pub fn destroy(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if self.datagram.is_some() {
            ud::multicast::forget(self);
        }
        peers::forget(self);
        self.publish_state(QpState::Reset);
        self.drop_connection();
        numbers().release(self.number);
        registered::release(self.ack_stag);
        self.stop_retry_timer();
        *self.monitor.lock() = None;
        self.send_cq().forget(self.number);
        self.recv_cq().forget(self.number);
        let is_own = |event: &AsyncEvent| match &event.element {
            Element::Qp(qp) => qp.is(self),
            _ => false,
        };
        self.context().forget_events(is_own);
        *self.holds.lock() = None;
    }

    pub(super) fn fresh_conn(&self) -> Conn {
        Conn::new(Link::new(link_config(self.number, self.ack_stag, &self.init)))
    }

    pub(super) fn drop_connection(&self) {
        if let Some(datagram) = &self.datagram {
            return datagram.stop();
        }
        let old = std::mem::replace(&mut *self.conn.lock(), self.fresh_conn());
        old.linger(self);
    }
}

fn link_config(number: u32, ack_stag: u32, init: &QpInit) -> Config {
    Config { number, ack_stag, qp_type: init.qp_type, shares_receives: init.srq.is_some() }
}
