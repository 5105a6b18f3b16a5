//! The wait for a foreign initiator's first FPDU.
//!
//! RFC 5044 (section 7.1.2) forbids the responder to send before the initiator's first FPDU,
//! because an initiator may not be ready for FPDUs before it has read the reply: siw takes bytes
//! right behind the reply for an error. With RFC 6581 the initiator agrees to send a first message;
//! without it (siw's default) the initiator's program must send first. Programs written for
//! InfiniBand do not know that rule. If the server's program sends first, both sides would wait for
//! ever.
//!
//! Therefore the wait ends some time after the peer's TCP has the whole reply. A working initiator
//! has read the reply by then, and accepts FPDUs from then on. No message or option of MPA or TCP
//! confirms that it has, so the wait has to be a time. siw itself does not wait at all.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Qp;
use super::work::WORK_SEND;
use crate::reactor::Source;
use crate::timer::Timer;

/// Time from the delivery of our reply. The peer's connection manager reads it within milliseconds.
const WAIT: Duration = Duration::from_millis(300);

#[derive(Debug)]
struct FirstFpdu {
    qp: Weak<Qp>,
}

/// Starts the wait. It ends with the timer, or when the timer is dropped.
pub(super) fn wait_for(qp: &Qp) -> Timer {
    Timer::after(qp.reactor(), WAIT, Arc::new(FirstFpdu { qp: Arc::downgrade(&qp.me()) }))
}

impl Source for FirstFpdu {
    fn ready(&self) {}

    fn expired(&self, now: Instant) {
        if let Some(qp) = self.qp.upgrade() {
            qp.conn.lock().stop_holding(now, &qp);
            qp.drive(WORK_SEND);
        }
    }
}
