//! Progress of a queue pair: which thread does its work, and when.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_sys::LockGuard;

use super::Qp;
use super::conn::Conn;
use super::work::{WORK_DRAIN, WORK_RECEIVE, WORK_RETRY_RNR, WORK_RING, WORK_SEND};
use crate::attr::QpType;
use crate::limits::{CONNECT_TIME_MAX, DEFER_ACKS_MAX, RETRY_TIME_MAX};
use crate::link::host::Work;
use crate::link::{AwaitedPeer, Link};
use crate::reactor::{Handle, Source};
use crate::srq::AwaitsReceive;
use crate::timer::Timer;

/// Number of requests between two polls from which on further bursts are expected.
const BURST_MIN: u64 = 4;

impl Qp {
    /// Does the work `what`, or leaves it to the thread that holds the connection's lock.
    pub(super) fn drive(&self, mut what: u32) {
        if let Some(datagram) = &self.datagram {
            return datagram.drive(self);
        }
        while what != 0 || self.pending_work.load(Ordering::SeqCst) != 0 {
            let Some(mut conn) = self.lock_conn_or_leave_work(what) else { return };
            if self.pending_work.load(Ordering::SeqCst) != 0 {
                what |= self.pending_work.swap(0, Ordering::SeqCst);
            }
            let mut again = false;
            if what & WORK_RETRY_RNR != 0 {
                conn.link.retry_waiting(self);
                again = true;
            }
            if what & WORK_RING != 0 || again {
                conn.receive_shared(self);
            }
            if what & WORK_RECEIVE != 0 || again {
                let drain = again || what & WORK_DRAIN != 0;
                if conn.receive(self, drain) {
                    self.requeue();
                }
            }
            if !conn.link.wants_receive() {
                // With a shared queue the flag has another meaning: the queue pair is on that
                // queue's list.
                if self.init.srq.is_none() && self.awaiting_receive.load(Ordering::SeqCst) {
                    self.awaiting_receive.store(false, Ordering::SeqCst);
                }
            } else if self.await_receive(&conn.link) {
                self.pending_work.fetch_or(WORK_RETRY_RNR, Ordering::SeqCst);
            }
            let wants_ack_only = what & WORK_SEND == 0 && conn.link.only_acks_due(self);
            let acks_due = conn.link.acks_due();
            // On an extended connection the response goes over another connection, and must not
            // arrive before the acknowledgement.
            let may_wait = acks_due < DEFER_ACKS_MAX && self.init.qp_type != QpType::XrcRecv;
            if wants_ack_only && may_wait && self.reactor().get().may_defer() {
                if conn.link.defer_acks() {
                    self.defer();
                }
            } else {
                conn.transmit(self);
            }
            let notices = std::mem::take(&mut conn.link.notices);
            drop(conn);
            self.handle_notices(notices);
            what = 0;
        }
    }

    /// Locks the connection. If another thread holds the lock, leaves `what` to that thread and
    /// returns `None`.
    pub(super) fn lock_conn_or_leave_work(&self, what: u32) -> Option<LockGuard<'_, Conn, true>> {
        self.conn.try_lock().or_else(|| {
            self.pending_work.fetch_or(what, Ordering::SeqCst);
            // The other thread may have read `pending_work` just before, and unlocked since.
            self.conn.try_lock()
        })
    }

    pub(super) fn reactor(&self) -> Handle {
        self.context().reactor()
    }

    /// Continues in the next pass.
    pub(super) fn requeue(&self) {
        self.reactor().get().requeue(self.me());
    }

    pub(super) fn handle_notices(&self, notices: crate::link::Notices) {
        match notices.rnr {
            Some(Some(wait)) => self.start_rnr_timer(wait.timer),
            Some(None) => self.stop_retry_timer(),
            None => {}
        }
        match notices.awaited {
            Some(AwaitedPeer::Gone) => self.start_retry_timer(self.retry_time()),
            Some(AwaitedPeer::NotYetThere) => self.start_retry_timer(CONNECT_TIME_MAX),
            None => {}
        }
        if notices.disconnected {
            let monitor = self.monitor.lock().as_ref().and_then(Weak::upgrade);
            if let Some(monitor) = monitor {
                monitor.disconnected();
            }
        }
    }

    pub(super) fn start_rnr_timer(&self, timer: u8) {
        const FOREVER: u8 = 7;
        let retries = self.attr.lock().rnr_retry;
        if retries >= FOREVER {
            return;
        }
        // Each message that waits has its own retries.
        self.start_retry_timer(rnr_delay(timer) * (u32::from(retries) + 1));
    }

    /// How long a card repeats a request that is not acknowledged (IBTA 9.7.6.1.3), up to a bound.
    pub(super) fn retry_time(&self) -> Duration {
        const FOREVER: u8 = 0;
        let attr = self.attr.lock();
        if attr.timeout == FOREVER {
            return RETRY_TIME_MAX;
        }
        let timeout = Duration::from_nanos(4_096 << attr.timeout.min(31));
        RETRY_TIME_MAX.min(timeout * (u32::from(attr.retry_cnt) + 1))
    }

    pub(super) fn start_retry_timer(&self, wait: Duration) {
        // Lock before starting the timer, because it may expire at once.
        let mut timer = self.retry_timer.lock();
        *timer = Some(Timer::after(self.reactor(), wait, self.me()));
    }

    pub(super) fn stop_retry_timer(&self) {
        *self.retry_timer.lock() = None;
    }

    /// Registers for the next receive, because messages wait for one. Returns whether a receive is
    /// already posted.
    pub(super) fn await_receive(&self, link: &Link<Self>) -> bool {
        if self.xrcd().is_some() {
            let awaited = link.awaited_queue().and_then(|number| self.find_queue(number));
            // If the queue is gone, processing the message again reports that error.
            return awaited.is_none_or(|srq| srq.await_receive_among_others(self.waiter()));
        }
        match &self.init.srq {
            Some(srq) => srq.await_receive(self.waiter(), &self.awaiting_receive),
            None => {
                // Posting adds the receive to the queue before it reads this flag.
                self.awaiting_receive.store(true, Ordering::SeqCst);
                self.has_receive()
            }
        }
    }

    pub(super) fn waiter(&self) -> Weak<dyn AwaitsReceive> {
        Weak::clone(&self.me) as _
    }
}

impl AwaitsReceive for Qp {
    fn left_srq_list(&self) {
        self.awaiting_receive.store(false, Ordering::SeqCst);
    }

    fn receive_posted(&self) {
        self.drive(WORK_RETRY_RNR);
    }

    fn receive_given_back(&self) {
        self.pending_work.fetch_or(WORK_RETRY_RNR, Ordering::SeqCst);
        self.requeue();
    }
}

impl Source for Qp {
    fn ready(&self) {
        self.drive(WORK_RECEIVE | WORK_DRAIN);
    }

    fn ready_to(&self, ended: bool) {
        self.drive(if ended { WORK_RECEIVE | WORK_DRAIN } else { WORK_RECEIVE });
    }

    fn flush(&self) {
        self.deferred.store(false, Ordering::Release);
        self.posts_bursts.store(self.unsent() >= BURST_MIN, Ordering::Relaxed);
        self.drive(WORK_SEND);
    }

    fn requeued(&self) {
        self.drive(WORK_RECEIVE | WORK_DRAIN);
    }

    fn expired(&self, now: Instant) {
        // The timer may have been stopped or replaced in the meantime.
        let due = self.retry_timer.lock().take_if(|timer| timer.is_due(now));
        if due.is_none() {
            return;
        }
        self.conn.lock().link.give_up_waiting(self);
        self.drive(WORK_SEND | WORK_RECEIVE | WORK_DRAIN);
    }
}

/// The delay that a value of `min_rnr_timer` encodes (IBTA table 45).
fn rnr_delay(timer: u8) -> Duration {
    const HUNDREDTHS_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let hundredths = HUNDREDTHS_MS.get(usize::from(timer)).copied().unwrap_or(65536);
    Duration::from_micros(u64::from(hundredths) * 10)
}
