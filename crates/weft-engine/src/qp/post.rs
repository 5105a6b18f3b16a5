//! Posting of work requests.

use std::sync::atomic::Ordering;

use weft_sys::LockGuard;

use super::Qp;
use super::work::{WORK_RETRY_RNR, WORK_SEND};
use crate::attr::{QpState, QpType};
use crate::limits::{DEFER_BYTES_MAX, DEFER_REQUESTS_MAX};
use crate::queue::send::SendQueue;
use crate::wr::{RecvRequest, SendRequest};
use crate::{Errno, Result};

impl Qp {
    /// Starts posting send requests. Other threads that post wait until the value is dropped;
    /// dropping it starts the work.
    #[must_use]
    pub fn start_post(&self) -> Poster<'_> {
        Poster { qp: self, sq: Some(self.sq.lock()), was_idle: false, posted: 0 }
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// `EINVAL` in the RESET state, for a queue pair without a receive queue of its own, and for
    /// too many scatter entries; `ENOMEM` if the queue is full.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        let state = self.state();
        if state == QpState::Reset || self.init.srq.is_some() || !self.init.qp_type.receives() {
            return Err(Errno::INVAL);
        }
        self.rq.lock().push(request)?;
        // Read the state again: an error in the meantime has flushed only what was posted before.
        if self.state() == QpState::Err {
            match &self.datagram {
                Some(datagram) => datagram.flush_receives(self),
                None => self.conn.lock().link.flush_receives(self),
            }
            self.drive(0);
        } else if self.awaiting_receive.load(Ordering::SeqCst) {
            self.drive(WORK_RETRY_RNR);
        }
        Ok(())
    }

    /// Sends posted requests now, or leaves them to the next poll, to send them together with
    /// requests that are posted until then.
    pub(super) fn start_work(&self, first_of_idle: bool, unsent: u64, unsent_bytes: u64) {
        let reactor = self.reactor().get();
        let enough = unsent >= DEFER_REQUESTS_MAX || unsent_bytes >= DEFER_BYTES_MAX;
        let alone = first_of_idle && !self.posts_bursts.load(Ordering::Relaxed);
        if alone || enough || !reactor.may_defer() {
            let _busy = reactor.busy();
            self.drive(WORK_SEND);
        } else {
            self.defer();
        }
    }

    pub(super) fn defer(&self) {
        if !self.deferred.swap(true, Ordering::AcqRel) {
            self.reactor().get().defer(self.me());
        }
    }
}

/// The locked send queue of a queue pair, for posting.
#[derive(Debug)]
pub struct Poster<'a> {
    qp: &'a Qp,
    sq: Option<LockGuard<'a, SendQueue>>,
    was_idle: bool,
    /// Number of requests that this value has posted.
    posted: usize,
}

impl Poster<'_> {
    /// Posts one work request.
    ///
    /// # Errors
    /// `EINVAL` before RTS, for an operation that the type does not support, and for a malformed
    /// request; `ENOMEM` if the queue is full.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<()> {
        self.push_to(request, 0)
    }

    /// Posts a send request for a shared receive queue of the peer, on an extended connection;
    /// other connections ignore the number.
    ///
    /// # Errors
    /// As [`Poster::push`].
    pub fn push_to(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<()> {
        if matches!(self.qp.state(), QpState::Reset | QpState::Init | QpState::Rtr)
            || !self.qp.init.qp_type.has(&request.operation)
        {
            return Err(Errno::INVAL);
        }
        let Some(sq) = &mut self.sq else { return Err(Errno::INVAL) };
        if self.posted == 0 {
            self.was_idle = sq.len() == 0;
        }
        let srqn = if self.qp.init.qp_type == QpType::XrcSend { srqn } else { 0 };
        sq.push(request, srqn)?;
        self.qp.has_unsent.store(true, Ordering::Release);
        self.posted += 1;
        Ok(())
    }

    /// Removes what this value has posted. None of it has been sent yet, because the queue is still
    /// locked.
    pub fn cancel(mut self) {
        if let Some(sq) = &mut self.sq {
            sq.take_back(self.posted);
        }
        self.posted = 0;
    }
}

impl Drop for Poster<'_> {
    fn drop(&mut self) {
        let (unsent, unsent_bytes) =
            self.sq.take().map_or((0, 0), |sq| (sq.unsent(), sq.unsent_bytes()));
        if self.posted == 0 {
            return;
        }
        let failed = matches!(self.qp.state(), QpState::Err | QpState::Sqe);
        if failed && self.qp.datagram.is_none() {
            self.qp.conn.lock().link.flush_sends(self.qp, None, 0);
            self.qp.drive(0);
        } else {
            self.qp.start_work(self.was_idle, unsent, unsent_bytes);
        }
    }
}
