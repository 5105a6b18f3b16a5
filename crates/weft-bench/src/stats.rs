//! Statistics: latencies and their percentiles, medians over rounds, and the formulas of the
//! benchmarks that have one.

use std::time::Duration;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

/// Longest latency that is distinguished from longer ones.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Precision: three significant digits.
const DIGITS: u8 = 3;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        let made = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS);
        Self(made.expect("1 is less than half of the maximum, and 3 digits are allowed"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The latency that `percent` of all do not exceed, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e3
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so that nothing of the other is out of range.
        self.0 += &other.0;
    }

    /// The values and how often each has come, for the control connection.
    pub(crate) fn to_counts(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value())).collect()
    }

    /// # Errors
    /// If a value cannot be one of a histogram's.
    pub(crate) fn from_counts(counts: &[(u64, u64)]) -> Result<Self> {
        let mut all = Self::new();
        for &(value, count) in counts {
            all.0
                .record_n(value.min(LATENCY_MAX_NS), count)
                .map_err(|error| anyhow!("a latency of {value} ns: {error}"))?;
        }
        Ok(all)
    }
}

/// The middle of the values; of an even number the mean of the two in the middle. 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The share of an operation's time that computation can have: with `alone` the time of the
/// operation with no computation, and `with` its time beside a computation of `work`,
/// `(work - (with - alone)) / alone` (Rashti, equation 3.4).
pub(crate) fn overlap_ratio(alone: f64, work: f64, with: f64) -> f64 {
    ((work - (with - alone)) / alone).clamp(0.0, 1.0)
}

/// How far an operation went on by itself while its program computed for longer than it takes: 1 if
/// nothing of its time was `left` afterwards, 0 if all was that it takes `alone`.
pub(crate) fn independent_progress(alone: f64, left: f64) -> f64 {
    (1.0 - left / alone).clamp(0.0, 1.0)
}

/// Half the time of all round trips over several connections at once, by message.
pub(crate) fn normalised_latency_us(elapsed: Duration, round_trips: u64) -> f64 {
    elapsed.as_secs_f64() * 1e6 / 2.0 / round_trips.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn percentiles_of_one_to_a_thousand() {
        let mut all = Latencies::new();
        (1..=1000).for_each(|us| all.record(Duration::from_micros(us)));
        let near = |percent, us: f64| (all.percentile_us(percent) - us).abs() / us < 0.002;
        assert!(near(50.0, 500.0) && near(99.0, 990.0) && near(99.9, 999.0));
        assert!((all.max_us() - 1000.0).abs() < 1.0);
    }

    #[test]
    fn latencies_survive_the_control_connection_and_add_up() {
        let mut all = Latencies::new();
        [1, 20, 300, 4_000_000].iter().for_each(|&ns| all.record(Duration::from_nanos(ns)));
        let mut again = Latencies::from_counts(&all.to_counts()).expect("sound");
        assert_eq!(again.0.len(), 4);
        assert_eq!(again.max_us(), all.max_us());
        again.merge(&all);
        assert_eq!(again.0.len(), 8);
        // A stranger's numbers do no harm.
        let odd = Latencies::from_counts(&[(0, 1), (u64::MAX, u64::MAX)]).expect("clamped");
        assert!(!odd.0.is_empty());
    }

    #[test]
    fn overlap_is_what_the_operation_leaves_to_the_program() {
        // The computation fits beside the operation.
        assert_eq!(overlap_ratio(100.0, 80.0, 100.0), 0.8);
        // None of it does: the two follow each other.
        assert_eq!(overlap_ratio(100.0, 80.0, 180.0), 0.0);
        assert_eq!(overlap_ratio(100.0, 100.0, 100.0), 1.0);
    }

    #[test]
    fn independent_progress_is_the_part_not_left() {
        assert_eq!(independent_progress(100.0, 0.0), 1.0);
        assert_eq!(independent_progress(100.0, 25.0), 0.75);
        assert_eq!(independent_progress(100.0, 120.0), 0.0);
    }

    #[test]
    fn normalised_latency_halves_and_divides() {
        assert_eq!(normalised_latency_us(Duration::from_micros(1000), 100), 5.0);
    }
}
