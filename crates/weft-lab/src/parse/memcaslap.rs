//! Parses the output of `memcaslap`.

use anyhow::{Context as _, Result, ensure};

/// What one run measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Operations per second.
    pub rate: f64,
    /// Total number of operations.
    pub operations: f64,
}

impl Report {
    /// Reads the standard output.
    ///
    /// # Errors
    ///
    /// If it has no result, or a `get` missed a key that had been set.
    pub fn parse(output: &str) -> Result<Self> {
        let after = |name: &str| {
            let rest = output.rsplit_once(name).map(|(_, rest)| rest);
            let value = rest.and_then(|rest| rest.split_whitespace().next());
            value.with_context(|| format!("memcaslap: no {name}"))
        };
        let misses = after("get_misses:")?;
        ensure!(misses == "0", "memcaslap: {misses} keys were missing");
        Ok(Self { rate: after(" TPS:")?.parse()?, operations: after(" Ops:")?.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_operations_are_read_and_misses_are_an_error() {
        let output = "cmd_set: 4809\nget_misses: 0\n\n\
            Run time: 1.0s Ops: 48011 TPS: 48007 Net_rate: 53.7M/s\n";
        let expected = Report { rate: 48_007.0, operations: 48_011.0 };
        assert_eq!(Report::parse(output).expect("a result"), expected);
        Report::parse(&output.replace("misses: 0", "misses: 7")).expect_err("misses");
        Report::parse("nothing").expect_err("no result");
    }
}
