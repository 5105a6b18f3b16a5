//! Tracks for how long cores count as scarce, after yields that took long to return.
//!
//! One long yield means nothing: an interrupt, or a virtual core that did not run, looks the same.
//! If threads outnumber cores the next yield is long as well. Contention then lasts shortly at
//! first, and twice as long each time that it is found again soon after it has ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Shortest and longest time, in nanoseconds, for which contention lasts.
const SPAN_MIN_NS: u64 = 1_000_000;
const SPAN_MAX_NS: u64 = 128_000_000;
/// Contention is found again "soon" within this many times its last duration.
const SOON: u64 = 2;
/// Number of consecutive long yields that mean contention.
const LONG_MIN: u32 = 2;

/// What is known about contention. If two threads learn at once, one result is lost.
#[derive(Debug, Default)]
pub(crate) struct CpuContention {
    until: AtomicU64,
    span: AtomicU64,
    /// Number of consecutive long yields.
    long: AtomicU32,
}

impl CpuContention {
    /// A yield that takes more than this many nanoseconds is long.
    pub(crate) const LONG_NS: u64 = 20_000;

    /// The initial state, in which nothing is known.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self { until: AtomicU64::new(0), span: AtomicU64::new(0), long: AtomicU32::new(0) }
    }

    /// Whether cores count as scarce at the time `now`, in nanoseconds.
    #[inline]
    pub(crate) fn is_believed(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    /// Records a yield that returned at the time `now` after `took`, both in nanoseconds.
    pub(crate) fn learn(&self, took: u64, now: u64) {
        let long = if took > Self::LONG_NS { self.long.load(Ordering::Relaxed) + 1 } else { 0 };
        self.long.store(long % LONG_MIN, Ordering::Relaxed);
        if long < LONG_MIN {
            return;
        }
        let span = self.span.load(Ordering::Relaxed);
        let soon = self.until.load(Ordering::Relaxed).saturating_add(SOON * span);
        let longer = if now < soon { 2 * span } else { 0 };
        let span = longer.clamp(SPAN_MIN_NS, SPAN_MAX_NS);
        self.span.store(span, Ordering::Relaxed);
        self.until.store(now.saturating_add(span), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_found_repeatedly_is_remembered_longer() {
        let contention = CpuContention::new();
        let mut now = 1_000_000_000;
        let mut lost = 0;
        for _ in 0..20 {
            (0..LONG_MIN).for_each(|_| contention.learn(CpuContention::LONG_NS + 1, now));
            lost += LONG_MIN;
            while contention.is_believed(now) {
                now += 100_000;
            }
        }
        assert!(now > 1_000_000_000 + 12 * SPAN_MAX_NS, "{lost} offers in {now} ns");
    }

    #[test]
    fn contention_not_found_again_is_soon_forgotten() {
        let contention = CpuContention::new();
        assert!(!contention.is_believed(1));
        for now in (1..50).map(|times| times * 20_000_000) {
            (0..LONG_MIN).for_each(|_| contention.learn(CpuContention::LONG_NS + 1, now));
            assert!(contention.is_believed(now + SPAN_MIN_NS - 1));
            assert!(!contention.is_believed(now + SPAN_MIN_NS));
        }
    }

    #[test]
    fn yields_that_return_soon_now_and_then_are_no_contention() {
        let contention = CpuContention::new();
        for now in 1..50 {
            contention.learn(CpuContention::LONG_NS * now, now);
            contention.learn(CpuContention::LONG_NS / now, now);
            assert!(!contention.is_believed(now));
        }
    }
}
