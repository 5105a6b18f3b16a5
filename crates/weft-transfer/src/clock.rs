//! A clock, in nanoseconds since its start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_sys::nanoseconds;

/// A clock, cheap to clone and to read.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock, from the instant on.
    System(Instant),
    /// A clock that a test sets.
    Manual(ManualClock),
}

impl Clock {
    /// Creates a clock of the system's monotonic time that starts at zero now.
    #[must_use]
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// The nanoseconds since its start.
    #[must_use]
    pub fn now(&self) -> u64 {
        match self {
            Self::System(start) => nanoseconds(start.elapsed()),
            Self::Manual(clock) => clock.0.load(Ordering::Relaxed),
        }
    }
}

/// A clock that advances only on request.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(nanoseconds(by), Ordering::Relaxed);
    }
}
