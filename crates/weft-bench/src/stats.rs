//! Statistics: latencies and their percentiles, medians over rounds, and the formulas of some
//! benchmarks.

use std::time::Duration;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

/// Longer latencies are recorded as this one.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Precision of the histogram in significant digits.
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

    /// Returns the latency that `percent` of all latencies do not exceed, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e3
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        // Both histograms have the same range.
        self.0 += &other.0;
    }

    /// Returns each value with its count, for the control connection.
    pub(crate) fn to_counts(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value())).collect()
    }

    /// # Errors
    /// If a value does not fit into the histogram.
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

/// Returns the median: for an even number of values the mean of the middle two, for none 0.
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

/// Returns the share of an operation's time that a computation can use: `(work - (with - alone)) /
/// alone` (Rashti, equation 3.4). `alone` is the time of the operation without a computation,
/// `with` the time with a computation of `work`.
pub(crate) fn overlap_ratio(alone: f64, work: f64, with: f64) -> f64 {
    ((work - (with - alone)) / alone).clamp(0.0, 1.0)
}

/// Returns how far an operation has proceeded by itself while its program computed for longer than
/// the operation takes `alone`: 1 if no time was `left` afterwards, 0 if all of it was.
pub(crate) fn independent_progress(alone: f64, left: f64) -> f64 {
    (1.0 - left / alone).clamp(0.0, 1.0)
}

/// Returns the normalised latency: half the time of all concurrent round trips, divided by their
/// number.
pub(crate) fn normalised_latency_us(elapsed: Duration, round_trips: u64) -> f64 {
    elapsed.as_secs_f64() * 1e6 / 2.0 / round_trips.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_the_mean_of_the_middle_two() {
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
        // Numbers of a hostile peer are harmless.
        let odd = Latencies::from_counts(&[(0, 1), (u64::MAX, u64::MAX)]).expect("clamped");
        assert!(!odd.0.is_empty());
    }

    #[test]
    fn overlap_is_the_share_left_to_the_program() {
        // The computation fits into the operation's time.
        assert_eq!(overlap_ratio(100.0, 80.0, 100.0), 0.8);
        // Nothing overlaps: the operation and the computation add up.
        assert_eq!(overlap_ratio(100.0, 80.0, 180.0), 0.0);
        assert_eq!(overlap_ratio(100.0, 100.0, 100.0), 1.0);
    }

    #[test]
    fn independent_progress_is_the_part_already_done() {
        assert_eq!(independent_progress(100.0, 0.0), 1.0);
        assert_eq!(independent_progress(100.0, 25.0), 0.75);
        assert_eq!(independent_progress(100.0, 120.0), 0.0);
    }

    #[test]
    fn normalised_latency_is_half_the_time_per_round_trip() {
        assert_eq!(normalised_latency_us(Duration::from_micros(1000), 100), 5.0);
    }
}
