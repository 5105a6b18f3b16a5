//! The bounds of what the command reads, and of how long it waits.

/// Longest answer to read: room for the largest number of queue pairs a process can have.
pub(crate) const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Time until the second sample: rates need two.
#[cfg(feature = "tui")]
pub(crate) const FIRST_INTERVAL_MAX: std::time::Duration = std::time::Duration::from_millis(300);
