//! Writers that wait for room where the peer reads nothing.
//!
//! TCP takes more than the rings: its buffers grow to several megabytes in each direction. A
//! program that sends so much before it reads, to itself or to a peer that waits for something
//! else, would wait for ever. So a connection without room, of which nothing has been read for
//! [`STALL_NS`], falls back to TCP.

use std::sync::atomic::{AtomicU64, Ordering};

/// For how long a peer may read nothing while a writer waits. Readers that are merely slow make
/// shorter pauses.
pub(crate) const STALL_NS: u64 = 1_000_000_000;

/// What a writer without room has last seen.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// How much the peer had read.
    read: AtomicU64,
    /// Since when it has been as much, in nanoseconds; 0: nobody has looked.
    since: AtomicU64,
}

impl Stall {
    /// A writer finds no room at the time `now`, and the peer has `read` so much. Whether the peer
    /// has read nothing for too long.
    pub(crate) fn is_over(&self, read: u64, now: u64) -> bool {
        let before = self.read.swap(read, Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        if before == read && since != 0 {
            return now.saturating_sub(since) >= STALL_NS;
        }
        self.since.store(now, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{STALL_NS, Stall};

    #[test]
    fn stall_lasts_until_the_peer_reads() {
        let stall = Stall::default();
        assert!(!stall.is_over(0, 2 * STALL_NS), "it begins with the first look");
        assert!(!stall.is_over(0, 3 * STALL_NS - 1));
        assert!(!stall.is_over(1, 3 * STALL_NS), "something was read");
        assert!(!stall.is_over(1, 4 * STALL_NS - 1));
        assert!(stall.is_over(1, 4 * STALL_NS));
        assert!(!stall.is_over(2, 5 * STALL_NS));
    }
}
