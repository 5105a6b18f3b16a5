//! Limits of input sizes and waiting times.

/// Longest answer of a process: enough for the largest number of queue pairs that one can have.
pub(crate) const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Time until the second sample, because rates need two.
#[cfg(feature = "tui")]
pub(crate) const FIRST_INTERVAL_MAX: std::time::Duration = std::time::Duration::from_millis(300);
