//! Whether the peer is still there while nothing is read from it, because what it has sent waits
//! for receives that the program does not post.
//!
//! Behind bytes that nobody reads nobody sees the end of the stream: a peer that disconnects, or
//! whose process is gone, cannot even send its FIN into a window that is shut. What *we* send to a
//! socket that has been closed is answered with a reset, though. So as long as nothing is read, a
//! Weft peer gets from time to time a count that it knows already.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Qp;
use super::work::WORK_SEND;
use crate::reactor::Source;
use crate::timer::Timer;

/// Time between two such messages. A program that waits for a disconnect waits so long for it.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Stalled {
    qp: Weak<Qp>,
}

/// Starts to wait. The wait ends with the timer, or when the timer is dropped.
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
