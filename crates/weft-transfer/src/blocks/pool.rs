//! Pools of blocks, which are allocated once.

use std::fmt;
use std::sync::{Arc, PoisonError};

use rustix::io::Errno;
use weft_sys::{lock, private_blocks};

use super::block::Block;
use super::home::{Free, Home};

/// A pool of blocks of one length. Clones share the pool.
#[derive(Clone)]
pub struct Pool {
    home: Arc<Home>,
    count: usize,
    block_len: usize,
}

impl Pool {
    /// Allocates `count` blocks of `block_len` bytes. They are aligned to pages if their length is
    /// a multiple of a page, as direct I/O requires.
    ///
    /// # Errors
    /// `EINVAL` if the pool would be empty; `ENOMEM`.
    pub fn new(count: usize, block_len: usize) -> Result<Self, Errno> {
        let mut blocks: Vec<_> = private_blocks(count, block_len)?.into_iter().zip(0..).collect();
        // Blocks are taken from the end of the list, so this makes the first block the first to be
        // taken.
        blocks.reverse();
        Ok(Self { home: Arc::new(Home::new(blocks)), count, block_len })
    }

    /// Takes a free block, and sleeps until there is one. Returns `None` if the pool is closed.
    #[must_use]
    pub fn take(&self) -> Option<Block> {
        let mut free = lock(&self.home.free);
        while free.blocks.is_empty() && !free.is_closed {
            free = self.home.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        self.pop(&mut free)
    }

    /// Takes a free block if there is one and the pool is open.
    #[must_use]
    pub fn try_take(&self) -> Option<Block> {
        self.pop(&mut lock(&self.home.free))
    }

    fn pop(&self, free: &mut Free) -> Option<Block> {
        if free.is_closed {
            return None;
        }
        let (memory, index) = free.blocks.pop()?;
        Some(Block::new(memory, Arc::clone(&self.home), index))
    }

    /// Closes the pool: it hands out no more blocks, and all waiting threads wake.
    pub fn close(&self) {
        lock(&self.home.free).is_closed = true;
        self.home.changed.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, block_len, .. } = self;
        f.debug_struct("Pool").field("count", count).field("block_len", block_len).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn dropped_blocks_return() {
        let pool = Pool::new(2, 4_096).expect("memory");
        let (one, two) = (pool.try_take().expect("free"), pool.try_take().expect("free"));
        assert_eq!((one.index(), two.index()), (0, 1));
        assert!(pool.try_take().is_none());
        drop(two);
        assert_eq!(pool.try_take().map(|block| block.index()), Some(1));
    }

    #[test]
    fn waiting_thread_gets_a_returned_block_or_wakes_at_the_close() {
        let pool = Pool::new(1, 4_096).expect("memory");
        let block = pool.take().expect("free");
        let (taken, has_taken) = channel();
        let waiting = thread::spawn({
            let pool = pool.clone();
            move || {
                let first = pool.take();
                taken.send(()).expect("a test");
                let is_last = pool.take().is_none();
                (first.is_some(), is_last)
            }
        });
        drop(block);
        has_taken.recv().expect("a block");
        pool.close();
        assert_eq!(waiting.join().expect("no panic"), (true, true));
        assert!(pool.try_take().is_none());
    }
}
