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

/// A kind of work on blocks at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reading files into blocks.
    Read,
    /// Compressing and sealing blocks, by the threads that read.
    Seal,
    /// Writing blocks to data channels.
    Send,
    /// Opening and expanding blocks, by the threads that receive them.
    Open,
    /// Writing the contents of blocks to files.
    Write,
}

/// How much of one kind of work there was at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The work.
    pub work: Work,
    /// The threads that do it. Each data channel has one.
    pub threads: usize,
    /// The share of their time in which they did it, in thousandths.
    pub busy: u16,
    /// How long a block waited for it on average. For reading, how long a thread waited for a free
    /// block. `None` where blocks do not wait.
    pub waited: Option<Duration>,
}

/// The stages of this end that are measured, in the order in which a block passes them.
pub type Stages = [Option<Stage>; 3];

/// How long blocks have waited.
#[derive(Debug, Default)]
pub(super) struct Waits {
    total: AtomicU64,
    count: AtomicU64,
}

impl Waits {
    /// Counts a wait.
    pub(super) fn add(&self, time: Duration) {
        self.total.fetch_add(nanoseconds(time), Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// The mean of all waits.
    pub(super) fn mean(&self) -> Option<Duration> {
        let mean = self.total.load(Relaxed).checked_div(self.count.load(Relaxed));
        mean.map(Duration::from_nanos)
    }
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

    /// Returns the work as that of `threads` threads in this time.
    pub(super) fn stage(
        &self,
        work: Work,
        threads: usize,
        time: Duration,
        waited: Option<Duration>,
    ) -> Stage {
        Stage { work, threads, busy: self.share(threads, time), waited }
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

    #[test]
    fn mean_of_waits_is_that_of_all_of_them() {
        let waits = Waits::default();
        assert_eq!(waits.mean(), None);
        for milliseconds in [1, 2, 6] {
            waits.add(Duration::from_millis(milliseconds));
        }
        assert_eq!(waits.mean(), Some(Duration::from_millis(3)));
    }
}
