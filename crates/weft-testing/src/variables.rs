//! Numbers in environment variables, and the announcement of what a run takes instead of them.

use std::env;
use std::io::{self, Write as _};

/// Returns the number in an environment variable, or `None` if the variable is not set.
///
/// # Panics
/// If the value is not a number.
pub(crate) fn number_of(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// Returns a seed that differs from run to run.
pub(crate) fn fresh_seed() -> u64 {
    u64::from(fastrand::u32(..))
}

/// Writes a line to standard error at once. The test runner does not hold it back until the test
/// fails, so that it is there after a crash or a hang, too.
pub(crate) fn announce(line: &str) {
    // The line is for a reader; the test goes on without it.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
