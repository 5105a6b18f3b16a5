//! What has come from a peer and cannot be handed over yet.

use std::collections::VecDeque;

/// What is kept of a stream that is not in order, or in the middle of a message.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Segments that came before an earlier one: that at `n` is `n + 1` behind the missing one.
    pub(super) early: VecDeque<Option<Box<[u8]>>>,
    pub(super) early_len: usize,
    /// A Send under way, the length it will have, and since when it is.
    pub(super) partial: Vec<u8>,
    pub(super) partial_len: usize,
    pub(super) partial_at: u64,
}
