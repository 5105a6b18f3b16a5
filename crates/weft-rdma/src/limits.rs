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
/// As many reads and atomics at a time as the devices of both ends can have (rdma_connect(3)).
pub(crate) const READS_ANY: u8 = u8::MAX;
/// Completions that one look at a pair takes at most.
pub const BATCH: usize = 32;
/// Bytes of private data of a connection that all transports carry: a request of InfiniBand has the
/// least.
pub const PRIVATE_DATA_MAX: usize = 56;
/// Bytes of private data that the interface can carry, and iWARP does.
pub const IWARP_PRIVATE_DATA_MAX: usize = u8::MAX as usize;
