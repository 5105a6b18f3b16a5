//! Counters of a measurement, and its time span.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;

use crate::stats::Latencies;

/// One WARM_UP-th of a measurement's time is not counted: windows, buffers and caches adapt first.
pub(super) const WARM_UP: u32 = 10;

/// The counters of a thread.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) started: u64,
    pub(crate) lost: u64,
    pub(crate) ended: u64,
    pub(crate) measured: u64,
    pub(crate) measured_bytes: u64,
    pub(crate) measured_time: Duration,
    pub(crate) latencies: Latencies,
    pub(crate) after: Latencies,
    pub(crate) overlap_us: Option<[f64; 3]>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            started: 0,
            lost: 0,
            ended: 0,
            measured: 0,
            measured_bytes: 0,
            measured_time: Duration::ZERO,
            latencies: Latencies::new(),
            after: Latencies::new(),
            overlap_us: None,
        }
    }

    /// Adds the counters of another thread from the same time.
    pub(crate) fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.lost += other.lost;
        self.ended += other.ended;
        self.measured += other.measured;
        self.measured_bytes += other.measured_bytes;
        self.measured_time = self.measured_time.max(other.measured_time);
        self.latencies.merge(&other.latencies);
        self.after.merge(&other.after);
        self.overlap_us = self.overlap_us.or(other.overlap_us);
    }
}

/// The time span of a measurement: first the warm-up, then the counted time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) counts_from: Instant,
    pub(super) end: Instant,
}

impl Span {
    pub(super) fn starting_now(duration: Duration) -> Self {
        let now = Instant::now();
        Self { counts_from: now + duration / WARM_UP, end: now + duration }
    }

    pub(super) fn counts(&self, now: Instant) -> bool {
        now >= self.counts_from
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.end
    }

    /// Returns the counted time so far.
    pub(super) fn counted(&self) -> Duration {
        Instant::now().saturating_duration_since(self.counts_from)
    }
}

/// Waits for `gap`: spins if it is shorter than a wakeup takes, and sleeps otherwise.
pub(super) fn pause(gap: Duration) {
    const SLEEP_MIN: Duration = Duration::from_micros(100);
    if gap >= SLEEP_MIN {
        std::thread::sleep(gap);
    } else if !gap.is_zero() {
        let end = Instant::now() + gap;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// Sets this thread's timer slack to the minimum: sleeps otherwise end up to 50 us late.
pub(crate) fn sleep_precisely() {
    // If the kernel refuses, gaps are merely longer.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}
