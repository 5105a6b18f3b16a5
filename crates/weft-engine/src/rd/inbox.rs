//! Received data that cannot be delivered yet.

use std::collections::VecDeque;

/// Segments out of order, and an incomplete message.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Segments that arrived early: index `n` is `n + 1` sequences behind the missing one.
    pub(super) early: VecDeque<Option<Box<[u8]>>>,
    pub(super) early_len: usize,
    /// An incomplete Send, its full length, and when it started.
    pub(super) partial: Vec<u8>,
    pub(super) partial_len: usize,
    pub(super) partial_at: u64,
}
