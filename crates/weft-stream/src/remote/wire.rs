//! What moves bytes and words between the windows of two hosts.

use std::sync::atomic::AtomicU64;

use super::window::StateWord;

/// A posted operation: done when [`Wire::done`] has come to it.
pub type Ticket = u64;

/// A reliable connection whose operations take effect at the peer in the order of posting, as those
/// of a reliably connected queue pair do. It is used by the process that made it, and only there.
pub trait Wire {
    /// RDMA Writes: the bytes at each offset of the own copy go to the same offset of the peer's
    /// ring, then the word, as it is given here, to its place among what the peer hears. `None` if
    /// too much is under way, or the connection has ended.
    fn post(&self, bytes: &[(usize, usize)], word: StateWord, value: u64) -> Option<Ticket>;

    /// The same for the head, together with the tail, which is looked at when the order among all
    /// that is posted has been settled: what the peer hears of it never goes back.
    fn post_head(&self, bytes: &[(usize, usize)], head: u64, tail: &AtomicU64) -> Option<Ticket>;

    /// The last operation that has taken effect, and with it all before.
    fn done(&self) -> Ticket;

    /// Whether so much is under way that nothing more can be posted.
    fn is_crowded(&self) -> bool;

    /// Makes progress; a thread that waits calls it.
    fn drive(&self);

    /// The caller is about to sleep, and makes no progress for a while.
    fn rest(&self);

    /// Whether the connection has ended: nothing more takes effect at either side.
    fn is_broken(&self) -> bool;
}
