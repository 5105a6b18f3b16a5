//! Moves bytes and words between the windows of two hosts.

use std::sync::atomic::AtomicU64;

use super::window::StateWord;

/// The number of a posted operation. The operation is over when [`Wire::done`] has reached it.
pub type Ticket = u64;

/// A reliable connection whose operations take effect at the peer in the order of posting, like
/// those of an RC queue pair. Only the process that made it uses it.
pub trait Wire {
    /// Posts RDMA Writes: the bytes at each offset of the local copy go to the same offset of the
    /// peer's ring, and then `value` goes to `word` in the peer's copy of this end's state. `None`
    /// if too much is under way, or the connection has ended.
    fn post(&self, bytes: &[(usize, usize)], word: StateWord, value: u64) -> Option<Ticket>;

    /// Posts the head in the same way, together with the tail. The tail is read when the order of
    /// all posts has been settled, so that the peer never sees it decrease.
    fn post_head(&self, bytes: &[(usize, usize)], head: u64, tail: &AtomicU64) -> Option<Ticket>;

    /// The last operation that has taken effect, as have all before it.
    fn done(&self) -> Ticket;

    /// Whether so much is under way that nothing more can be posted.
    fn is_crowded(&self) -> bool;

    /// Makes progress; called by a thread that waits.
    fn drive(&self);

    /// Tells the wire that the caller is about to sleep, and will not drive it for a while.
    fn rest(&self);

    /// Whether the connection has ended, so that nothing more takes effect at either side.
    fn is_broken(&self) -> bool;
}
