//! The results of `qperf -vv -uu`: every quantity, in base units.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// The options that make qperf print what [`Report::parse`] reads.
pub const OPTIONS: [&str; 2] = ["-vv", "-uu"];

/// What the tests of one run of qperf measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    tests: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Report {
    /// Reads the standard output of qperf.
    ///
    /// # Errors
    ///
    /// If it contains no test.
    pub fn parse(output: &str) -> Result<Self> {
        let mut tests = BTreeMap::new();
        let mut current: Option<&mut BTreeMap<String, f64>> = None;
        for line in output.lines() {
            if let Some(name) = line.strip_suffix(':') {
                current = Some(tests.entry(name.trim().to_owned()).or_default());
            } else if let (Some(test), Some((name, value))) = (&mut current, line.split_once('=')) {
                // Skip values that are not numbers, such as the congestion control.
                let number = value.split_whitespace().next().and_then(|word| word.parse().ok());
                if let Some(number) = number {
                    test.insert(name.trim().to_owned(), number);
                }
            }
        }
        (!tests.is_empty())
            .then_some(Self { tests })
            .with_context(|| format!("no test in {output:?}"))
    }

    /// Returns the quantity `name` of `test`: times in nanoseconds, rates per second, sizes in
    /// bytes.
    ///
    /// # Errors
    ///
    /// If the test did not run or did not measure that.
    pub fn value(&self, test: &str, name: &str) -> Result<f64> {
        let quantity = self.tests.get(test).and_then(|test| test.get(name));
        quantity
            .copied()
            .with_context(|| format!("qperf printed no {name:?} of {test:?}: {self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
tcp_lat:
    latency          =        32600 ns
    msg_size         =            8 bytes
rc_bw:
    bw               =     80284544 bytes/sec
    mtu              =         2048 bytes
    name             =        left
";

    #[test]
    fn reads_every_number() {
        let report = Report::parse(OUTPUT).unwrap();
        assert_eq!(report.value("tcp_lat", "latency").unwrap(), 32_600.0);
        assert_eq!(report.value("rc_bw", "bw").unwrap(), 80_284_544.0);
        assert!(report.value("rc_bw", "name").is_err());
        assert!(report.value("rc_lat", "latency").is_err());
    }

    #[test]
    fn output_without_a_test_is_an_error() {
        assert!(Report::parse("").is_err());
        assert!(Report::parse("failed to connect\n").is_err());
    }
}
