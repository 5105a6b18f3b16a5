//! A reactor timer that stops when it is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::reactor::{self, Handle, Source, TimerId};

/// Calls the owner's [`Source::expired`] once, unless it is dropped before. The reactor keeps the
/// owner alive meanwhile.
///
/// Another thread may make that call before the owner has stored the timer, so start the timer
/// under the lock that the owner's [`Source::expired`] takes.
#[derive(Debug)]
pub(crate) struct Timer {
    reactor: Handle,
    id: TimerId,
}

impl Timer {
    /// Starts a timer that expires at `deadline`.
    pub(crate) fn at(reactor: Handle, deadline: Instant, owner: Arc<dyn Source>) -> Self {
        Self { reactor, id: reactor.get().start_timer(deadline, owner) }
    }

    /// Starts a timer that expires when `time` has passed.
    pub(crate) fn after(reactor: Handle, time: Duration, owner: Arc<dyn Source>) -> Self {
        Self::at(reactor, reactor::now() + time, owner)
    }

    /// When the timer expires.
    pub(crate) fn deadline(&self) -> Instant {
        self.id.deadline()
    }

    /// Whether the timer has expired. A call of [`Source::expired`] may be for an earlier timer.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.deadline()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.reactor.get().stop_timer(self.id);
    }
}
