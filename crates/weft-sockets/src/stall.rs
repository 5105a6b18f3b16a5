//! Detects writers that wait for room while the peer does not read.
//!
//! TCP takes more bytes than the rings: its buffers grow to several megabytes in each direction. A
//! program that sends that much before it reads, to itself or to a peer that waits for something
//! else, would wait for ever. So a connection without room falls back to TCP if the peer has read
//! nothing for [`STALL_NS`].

use std::sync::atomic::{AtomicU64, Ordering};

/// How long the peer may read nothing while a writer waits, in nanoseconds. The pauses of slow
/// readers are shorter.
pub(crate) const STALL_NS: u64 = 1_000_000_000;

/// The last observation of a writer without room.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// How many bytes the peer had read.
    read: AtomicU64,
    /// Since when the number has not changed, in nanoseconds; 0 before the first observation.
    since: AtomicU64,
}

impl Stall {
    /// Records that a writer has no room at the time `now`, and that the peer has `read` this many
    /// bytes. Returns whether the peer has read nothing for too long.
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
        assert!(!stall.is_over(0, 2 * STALL_NS), "the stall begins with the first observation");
        assert!(!stall.is_over(0, 3 * STALL_NS - 1));
        assert!(!stall.is_over(1, 3 * STALL_NS), "the peer has read");
        assert!(!stall.is_over(1, 4 * STALL_NS - 1));
        assert!(stall.is_over(1, 4 * STALL_NS));
        assert!(!stall.is_over(2, 5 * STALL_NS));
    }
}
