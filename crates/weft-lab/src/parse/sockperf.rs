//! Parses the output of a `sockperf` client.

use anyhow::{Context as _, Result};

/// What one run measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Median latency one way, in microseconds.
    pub median: f64,
    /// 99.9th percentile of the latency one way, in microseconds.
    pub tail: f64,
    /// Number of messages in both directions.
    pub messages: f64,
}

impl Report {
    /// Reads the standard output of the client.
    ///
    /// # Errors
    ///
    /// If it has no result.
    pub fn parse(output: &str) -> Result<Self> {
        let after = |name: &str| {
            let rest = output.split_once(name).map(|(_, rest)| rest);
            let rest = rest.map(|rest| rest.trim_start_matches([' ', '=']));
            let value = rest.and_then(|rest| rest.split([' ', ';', '\n']).next());
            value.with_context(|| format!("sockperf: no {name}"))
        };
        let median = after("percentile 50.000")?;
        let tail = after("percentile 99.900")?;
        let messages = after("ReceivedMessages")?;
        let (median, tail) = (median.parse()?, tail.parse()?);
        Ok(Self { median, tail, messages: 2.0 * messages.parse::<f64>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_number_of_messages_are_read() {
        let output = "sockperf: [Valid Duration] RunTime=1.450 sec; SentMessages=99; \
            ReceivedMessages=100\nsockperf: ---> percentile 99.900 =   11.030\n\
            sockperf: ---> percentile 50.000 =    0.746\n";
        let expected = Report { median: 0.746, tail: 11.03, messages: 200.0 };
        assert_eq!(Report::parse(output).expect("a result"), expected);
        Report::parse("nothing").expect_err("no result");
    }
}
