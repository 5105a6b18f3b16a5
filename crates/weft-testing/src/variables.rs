//! Numbers in environment variables.

use std::env;

/// The value of a variable, if it is set.
///
/// # Panics
/// If it is no number.
pub(crate) fn number_of(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}
