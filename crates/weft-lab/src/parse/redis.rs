//! Parses the output of `redis-benchmark --csv`.

use anyhow::{Context as _, Result};

/// Returns the requests per second of the single test.
///
/// # Errors
///
/// If the output has no such number.
pub fn requests_per_second(output: &str) -> Result<f64> {
    // A line of headings, then one for each test: its name, the rate, latencies.
    let row = output.lines().nth(1).context("redis-benchmark: no result")?;
    let rate = row.split(',').nth(1).context("redis-benchmark: no rate")?;
    rate.trim_matches('"').parse().with_context(|| format!("redis-benchmark: {rate}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_the_test_is_read() {
        let output = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"34188.04\",\"0.024\"\n";
        assert_eq!(requests_per_second(output).expect("a rate"), 34_188.04);
        requests_per_second("nothing").expect_err("no rate");
    }
}
