//! Measures how busy the threads of an end are, to show what limits the rate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use weft_sys::nanoseconds;

/// The load of an end, in thousandths of its threads' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Time spent reading or writing files.
    pub disk: u16,
    /// Time spent sealing or opening blocks.
    pub cpu: u16,
    /// Time spent sending blocks. A sink does not measure it, because it waits for blocks while it
    /// receives.
    pub network: u16,
}

/// The total time that threads have spent on one kind of work.
#[derive(Debug, Default)]
pub(super) struct Busy(AtomicU64);

impl Busy {
    /// Runs some work, and adds its duration.
    pub(super) fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.0.fetch_add(nanoseconds(start.elapsed()), Relaxed);
        result
    }

    /// Returns the share of the time of `threads` threads, in thousandths.
    pub(super) fn share(&self, threads: usize, time: Duration) -> u16 {
        let all = time.as_nanos().saturating_mul(threads.max(1) as u128).max(1);
        u16::try_from(u128::from(self.0.load(Relaxed)) * 1_000 / all).unwrap_or(1_000).min(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_counts_all_threads() {
        let busy = Busy(AtomicU64::new(500));
        assert_eq!(busy.share(1, Duration::from_nanos(1_000)), 500);
        assert_eq!(busy.share(2, Duration::from_nanos(1_000)), 250);
        assert_eq!(busy.share(1, Duration::ZERO), 1_000);
    }
}
