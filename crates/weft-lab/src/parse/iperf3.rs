//! The results of `iperf3 --json`.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// What one run measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Bytes per second that the receiver counted.
    pub received: f64,
    /// TCP congestion control of the sender.
    pub congestion_control: String,
}

impl Report {
    /// Reads the standard output of the client.
    ///
    /// # Errors
    ///
    /// If it is not JSON, reports an error, or lacks a quantity.
    pub fn parse(output: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(output).context("iperf3 printed no JSON")?;
        if let Some(error) = report.get("error") {
            bail!("iperf3: {error}");
        }
        let value =
            |pointer| report.pointer(pointer).with_context(|| format!("iperf3: no {pointer}"));
        let bits = value("/end/sum_received/bits_per_second")?.as_f64().context("not a number")?;
        let congestion_control = value("/end/sender_tcp_congestion")?.as_str().unwrap_or("unknown");
        Ok(Self { received: bits / 8.0, congestion_control: congestion_control.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rate_and_congestion_control() {
        let output = r#"{"end": {"sum_received": {"bits_per_second": 8e9},
            "sender_tcp_congestion": "cubic"}}"#;
        let expected = Report { received: 1e9, congestion_control: "cubic".into() };
        assert_eq!(Report::parse(output).unwrap(), expected);
    }

    #[test]
    fn output_without_a_result_is_an_error() {
        assert!(Report::parse("").is_err());
        assert!(Report::parse(r#"{"error": "unable to connect"}"#).is_err());
        assert!(Report::parse(r#"{"end": {}}"#).is_err());
    }
}
