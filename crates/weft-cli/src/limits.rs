//! The bounds of what the command reads, and of how long it waits.

use std::time::Duration;

/// Longest answer to read: room for the largest number of queue pairs a process can have.
pub(crate) const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Time until the second sample: rates need two.
pub(crate) const FIRST_INTERVAL_MAX: Duration = Duration::from_millis(300);
