//! State and attributes of a queue pair: `ibv_modify_qp`, `ibv_query_qp`.

use std::sync::atomic::Ordering;

use super::work::{WORK_DRAIN, WORK_RECEIVE, WORK_SEND};
use super::{Qp, peers, transition};
use crate::attr::{AddressVector, AttrMask, QpAttr, QpCap, QpState};
use crate::limits::READ_DEPTH_MAX;
use crate::queue::recv::RecvWork;
use crate::{Errno, Result};

impl Qp {
    /// `ibv_query_qp`: the attributes, the sizes, and whether every send request produces a
    /// completion.
    #[must_use]
    pub fn query(&self) -> (QpAttr, QpCap, bool) {
        let mut attr = *self.attr.lock();
        attr.qp_state = self.state();
        attr.cur_qp_state = attr.qp_state;
        attr.cap = self.init.cap;
        (attr, self.init.cap, self.init.sq_sig_all)
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// `EINVAL` for a transition that does not exist, and for attributes that are missing, do not
    /// belong to the transition, or are out of range.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let mask = transition::relevant(self.init.qp_type, mask);
        let from = self.state();
        let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_qp_state != from {
            return Err(Errno::INVAL);
        }
        transition::check(self.init.qp_type, from, to, mask)?;
        self.check_values(attr, mask)?;
        self.store(attr, mask);
        match to {
            QpState::Reset => self.reset(),
            QpState::Err => self.enter_error(),
            _ => self.enter(from, to),
        }
        Ok(())
    }

    pub(super) fn check_values(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let gids = self.context().device().gids().len();
        let route_ok =
            |av: &AddressVector| av.global.is_none_or(|route| usize::from(route.sgid_index) < gids);
        let checks = [
            (AttrMask::PORT, attr.port_num == 1),
            (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
            (AttrMask::PATH_MTU, (1..=5).contains(&attr.path_mtu)),
            (AttrMask::AV, route_ok(&attr.ah_attr)),
            (AttrMask::DEST_QPN, attr.dest_qp_num < 1 << 24),
            (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= READ_DEPTH_MAX),
            (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= READ_DEPTH_MAX),
            (AttrMask::TIMEOUT, attr.timeout <= 31),
            (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
            (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
            (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer <= 31),
        ];
        let good = checks.iter().all(|(bit, ok)| !mask.contains(*bit) || *ok);
        if good { Ok(()) } else { Err(Errno::INVAL) }
    }

    pub(super) fn store(&self, attr: &QpAttr, mask: AttrMask) {
        let mut own = self.attr.lock();
        let own = &mut *own;
        let mut set = |bit: AttrMask, copy: &mut dyn FnMut(&mut QpAttr)| {
            if mask.contains(bit) {
                copy(own);
            }
        };
        set(AttrMask::ACCESS_FLAGS, &mut |own| own.qp_access_flags = attr.qp_access_flags);
        set(AttrMask::PKEY_INDEX, &mut |own| own.pkey_index = attr.pkey_index);
        set(AttrMask::PORT, &mut |own| own.port_num = attr.port_num);
        set(AttrMask::QKEY, &mut |own| own.qkey = attr.qkey);
        set(AttrMask::AV, &mut |own| own.ah_attr = attr.ah_attr);
        set(AttrMask::PATH_MTU, &mut |own| own.path_mtu = attr.path_mtu);
        set(AttrMask::TIMEOUT, &mut |own| own.timeout = attr.timeout);
        set(AttrMask::RETRY_CNT, &mut |own| own.retry_cnt = attr.retry_cnt);
        set(AttrMask::RNR_RETRY, &mut |own| own.rnr_retry = attr.rnr_retry);
        set(AttrMask::RQ_PSN, &mut |own| own.rq_psn = attr.rq_psn);
        set(AttrMask::SQ_PSN, &mut |own| own.sq_psn = attr.sq_psn);
        set(AttrMask::MAX_QP_RD_ATOMIC, &mut |own| own.max_rd_atomic = attr.max_rd_atomic);
        set(AttrMask::MAX_DEST_RD_ATOMIC, &mut |own| {
            own.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        });
        set(AttrMask::MIN_RNR_TIMER, &mut |own| own.min_rnr_timer = attr.min_rnr_timer);
        set(AttrMask::DEST_QPN, &mut |own| own.dest_qp_num = attr.dest_qp_num);
        set(AttrMask::PATH_MIG_STATE, &mut |own| own.path_mig_state = attr.path_mig_state);
        set(AttrMask::EN_SQD_ASYNC_NOTIFY, &mut |own| {
            own.en_sqd_async_notify = attr.en_sqd_async_notify;
        });
    }

    /// Changes between the states INIT, RTR, RTS and SQD.
    pub(super) fn enter(&self, from: QpState, to: QpState) {
        let attr = *self.attr.lock();
        if let Some(datagram) = &self.datagram {
            return datagram.enter(self, to, attr.qkey);
        }
        let is_connected = {
            let mut conn = self.conn.lock();
            // An error that came in between takes precedence.
            if self.state() == QpState::Err {
                return;
            }
            conn.link.set_rules(&attr, to);
            self.publish_state(to);
            conn.link.check_drained(self);
            !conn.link.phase.is_idle()
        };
        // A queue pair of the connection manager has its connection before it changes state.
        if from == QpState::Init && to == QpState::Rtr && !is_connected {
            peers::connect(self);
        }
        self.drive(WORK_RECEIVE | WORK_DRAIN | WORK_SEND);
    }

    pub(crate) fn enter_error(&self) {
        if let Some(datagram) = &self.datagram {
            self.publish_state(QpState::Err);
            return datagram.fail(self);
        }
        peers::forget(self);
        self.publish_state(QpState::Err);
        self.conn.lock().link.fail(self, None, 0);
        self.drive(WORK_SEND);
    }

    pub(super) fn reset(&self) {
        peers::forget(self);
        self.publish_state(QpState::Reset);
        self.drop_connection();
        self.stop_retry_timer();
        self.sq.lock().clear();
        let mut work = RecvWork::default();
        while self.rq.lock().pop(&mut work) {}
        self.send_cq().forget(self.number);
        self.recv_cq().forget(self.number);
        self.last_wqe_reported.store(false, Ordering::Release);
        *self.attr.lock() = QpAttr::default();
    }
}
