//! Parses the output of `wrk`.

use anyhow::{Context as _, Result, ensure};

/// What one run measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Requests per second.
    pub rate: f64,
    /// Total number of requests.
    pub requests: f64,
}

impl Report {
    /// Reads the standard output.
    ///
    /// # Errors
    ///
    /// If it has no result, or reports errors.
    pub fn parse(output: &str) -> Result<Self> {
        for error in ["Socket errors", "Non-2xx"] {
            ensure!(!output.contains(error), "wrk: {output}");
        }
        let rate = output.split_once("Requests/sec:").context("wrk: no rate")?.1;
        let rate = rate.split_whitespace().next().context("wrk: no rate")?;
        let requests = output.split_once(" requests in").context("wrk: no number")?.0;
        let requests = requests.split_whitespace().last().context("wrk: no number")?;
        Ok(Self { rate: rate.parse()?, requests: requests.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_requests_are_read_and_reported_errors_are_an_error() {
        let output = "  1 threads\n  300 requests in 2.00s, 1MB read\nRequests/sec:    150.5\n";
        let expected = Report { rate: 150.5, requests: 300.0 };
        assert_eq!(Report::parse(output).expect("a result"), expected);
        Report::parse("Socket errors: connect 1\nRequests/sec: 1\n").expect_err("errors");
    }
}
