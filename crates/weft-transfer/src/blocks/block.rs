//! Blocks: pieces of a pool's memory.

use std::fmt;
use std::sync::Arc;

use weft_sys::PrivateBlock;

use super::home::Home;

/// A block of memory with one owner. It returns to its pool when it is dropped.
pub struct Block {
    /// `None` only while the block is dropped.
    memory: Option<PrivateBlock>,
    home: Arc<Home>,
    index: u32,
}

impl Block {
    pub(super) fn new(memory: PrivateBlock, home: Arc<Home>, index: u32) -> Self {
        Self { memory: Some(memory), home, index }
    }

    /// The number of the block in its pool.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A block is never empty.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }

    /// Returns the bytes mutably.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }

    /// Swaps the memory of two blocks of one length without copying. Returns false and changes
    /// nothing if their lengths differ.
    pub(crate) fn exchange(&mut self, other: &mut Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        std::mem::swap(&mut self.memory, &mut other.memory);
        true
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.home.put(memory, self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;

    #[test]
    fn blocks_of_one_length_exchange_their_memory() {
        let (pool, short) = (Pool::new(2, 4_096), Pool::new(1, 2_048));
        let (pool, short) = (pool.expect("memory"), short.expect("memory"));
        let take = |pool: &Pool| pool.try_take().expect("a free block");
        let (mut one, mut two, mut other) = (take(&pool), take(&pool), take(&short));
        one.bytes_mut()[0] = 1;
        assert!(one.exchange(&mut two) && !one.exchange(&mut other));
        assert_eq!((two.bytes()[0], one.index(), one.len(), other.len()), (1, 0, 4_096, 2_048));
    }
}
