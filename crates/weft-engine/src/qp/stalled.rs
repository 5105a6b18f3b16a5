//! Detects a dead peer while nothing is read from it, because its messages wait for receives that
//! the program does not post.
//!
//! The end of a stream is not seen behind unread bytes: a peer that disconnects, or whose process
//! has ended, cannot even send its FIN into a closed window. But its host answers what *we* send
//! with a reset. So as long as nothing is read, a Weft peer gets an acknowledgement that it already
//! has from time to time.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Qp;
use super::work::WORK_SEND;
use crate::reactor::Source;
use crate::timer::Timer;

/// Time between two such messages. A program that waits for a disconnect waits that long for it.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Stalled {
    qp: Weak<Qp>,
}

/// Starts the wait. It ends with the timer, or when the timer is dropped.
pub(super) fn wait_for(qp: &Qp) -> Timer {
    Timer::after(qp.reactor(), INTERVAL, Arc::new(Stalled { qp: Arc::downgrade(&qp.me()) }))
}

impl Source for Stalled {
    fn ready(&self) {}

    fn expired(&self, now: Instant) {
        if let Some(qp) = self.qp.upgrade() {
            qp.conn.lock().ask_stalled_peer(now, &qp);
            qp.drive(WORK_SEND);
        }
    }
}
