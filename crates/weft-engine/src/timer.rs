//! A timer of the reactor's that ends with its owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::reactor::{self, Handle, Source, TimerId};

/// Calls [`Source::expired`] of its owner once, unless it is dropped before. The reactor keeps the
/// owner alive meanwhile.
///
/// Another thread may call that before the timer has been put where the owner looks for it: start
/// it under the lock that [`Source::expired`] takes.
#[derive(Debug)]
pub(crate) struct Timer {
    reactor: Handle,
    id: TimerId,
}

impl Timer {
    /// Expires at `deadline`.
    pub(crate) fn at(reactor: Handle, deadline: Instant, owner: Arc<dyn Source>) -> Self {
        Self { reactor, id: reactor.get().start_timer(deadline, owner) }
    }

    /// Expires when `time` has passed.
    pub(crate) fn after(reactor: Handle, time: Duration, owner: Arc<dyn Source>) -> Self {
        Self::at(reactor, reactor::now() + time, owner)
    }

    /// When it expires.
    pub(crate) fn deadline(&self) -> Instant {
        self.id.deadline()
    }

    /// Whether it has expired. A call of [`Source::expired`] may be for an earlier timer.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.deadline()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.reactor.get().stop_timer(self.id);
    }
}
