//! Numbers in environment variables.

use std::env;

/// Returns the number in an environment variable, or `None` if the variable is not set.
///
/// # Panics
/// If the value is not a number.
pub(crate) fn number_of(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}
