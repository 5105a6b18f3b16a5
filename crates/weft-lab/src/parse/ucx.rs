//! Parses the last line of `ucx_perftest`'s output.

use anyhow::{Context as _, Result};

/// The results of a test over all iterations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Final {
    /// Latency one way, in nanoseconds.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Messages per second.
    pub message_rate: f64,
    /// Number of iterations.
    pub iterations: f64,
}

impl Final {
    /// Reads the standard output of the client: iterations; median, last and overall latency in
    /// microseconds; last and overall bandwidth in MiB a second; last and overall message rate.
    ///
    /// # Errors
    ///
    /// If it has no such line.
    pub fn parse(output: &str) -> Result<Self> {
        let line = output.lines().find_map(|line| line.trim().strip_prefix("Final:"));
        let fields: Option<Vec<f64>> =
            line.map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect());
        match fields.as_deref() {
            Some(&[iterations, _, _, latency, _, bandwidth, _, message_rate]) => Ok(Self {
                latency: latency * 1e3,
                bandwidth: bandwidth * f64::from(1 << 20),
                message_rate,
                iterations,
            }),
            _ => Err(anyhow::anyhow!("no result in {output:?}")).context("ucx_perftest"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overall_results_of_the_last_line_are_read() {
        let output = "[thread 0]  100  0.2\n\
                      Final:  300000  0.170  0.183  0.190  41.70  42.00  5465722  5465000\n";
        let expected = Final {
            latency: 190.0,
            bandwidth: 42.0 * 1_048_576.0,
            message_rate: 5_465_000.0,
            iterations: 300_000.0,
        };
        assert_eq!(Final::parse(output).expect("a result"), expected);
        Final::parse("nothing").expect_err("no result");
    }
}
