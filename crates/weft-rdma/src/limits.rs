//! Limits and times.

use std::time::Duration;

/// Connection requests that wait at a listener.
pub(crate) const BACKLOG_MAX: i32 = 64;
/// The longest time in which an address of this host is resolved to a device.
pub(crate) const RESOLVE_TIME: Duration = Duration::from_secs(5);
/// Retry counts of a connection: 7 repeats until the peer has posted a receive.
pub(crate) const RETRIES: u8 = 7;
/// The most reads of the peer's memory that an accepted connection has at a time.
pub(crate) const READS_MAX: u8 = 4;
