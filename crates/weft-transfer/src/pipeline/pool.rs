//! Pools of blocks, which are allocated once. The free blocks are the flow control of a pipeline.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weft_sys::{SharedMemory, private_blocks};

use super::block::Block;
use super::memory::{Free, Home, Memory, SharedRange};

/// Bytes before each block of a shared pool: one page, so that blocks are aligned to pages.
const HEAD_ROOM: usize = 4_096;

/// A pool of blocks of one length. Clones share the pool.
#[derive(Clone)]
pub struct Pool {
    home: Arc<Home>,
    count: usize,
    block_len: usize,
    segment: Option<Arc<OwnedFd>>,
}

impl Pool {
    /// Allocates `count` blocks of `block_len` bytes of private memory. They are aligned to pages
    /// if their length is a multiple of a page, as direct I/O requires.
    ///
    /// # Errors
    /// `EINVAL` if the pool would be empty; `ENOMEM`.
    pub fn private(count: usize, block_len: usize) -> Result<Self, Errno> {
        let blocks = private_blocks(count, block_len)?.into_iter().map(Memory::Private);
        Ok(Self::of(blocks.collect(), block_len, None))
    }

    /// Allocates the blocks in one sealed memfd, which another process can map. Each has room for a
    /// header before it.
    ///
    /// # Errors
    /// Like [`Pool::private`], or an error of creating the memfd, such as `EMFILE`.
    pub fn shared(count: usize, block_len: usize) -> Result<Self, Errno> {
        let stride = block_len.checked_add(HEAD_ROOM).filter(|_| block_len > 0);
        let stride = stride.ok_or(Errno::INVAL)?;
        let len = count.checked_mul(stride).filter(|len| *len > 0).ok_or(Errno::INVAL)?;
        let (memory, fd) = SharedMemory::create(len)?;
        let memory = Arc::new(memory);
        let block = |index: usize| {
            let memory = Arc::clone(&memory);
            let start = index * stride + HEAD_ROOM;
            Memory::Shared(SharedRange { memory, start, len: block_len })
        };
        Ok(Self::of((0..count).map(block).collect(), block_len, Some(Arc::new(fd))))
    }

    fn of(blocks: Vec<Memory>, block_len: usize, segment: Option<Arc<OwnedFd>>) -> Self {
        let count = blocks.len();
        let mut blocks: Vec<_> = blocks.into_iter().zip(0..).collect();
        // Blocks are taken from the end of the list, so this makes the first block the first to be
        // taken.
        blocks.reverse();
        Self { home: Arc::new(Home::new(blocks)), count, block_len, segment }
    }

    /// Takes a free block, and sleeps until there is one. Returns `None` if the pool is closed.
    #[must_use]
    pub fn take(&self) -> Option<Block> {
        let mut state = self.home.lock();
        while state.blocks.is_empty() && !state.closed {
            let waited = self.home.freed.wait(state);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.pop(state)
    }

    /// Takes a free block, and sleeps for at most `time` until there is one.
    #[must_use]
    pub fn take_within(&self, time: Duration) -> Option<Block> {
        let end = Instant::now() + time;
        let mut state = self.home.lock();
        while state.blocks.is_empty() && !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = match self.home.freed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        self.pop(state)
    }

    /// Takes a free block if there is one and the pool is open.
    #[must_use]
    pub fn try_take(&self) -> Option<Block> {
        self.pop(self.home.lock())
    }

    fn pop(&self, mut state: MutexGuard<'_, Free>) -> Option<Block> {
        if state.closed {
            return None;
        }
        let (memory, index) = state.blocks.pop()?;
        state.fewest = state.fewest.min(state.blocks.len());
        drop(state);
        Some(Block::new(memory, Some(Arc::clone(&self.home)), index))
    }

    /// Closes the pool: it hands out no more blocks, and all waiting threads wake.
    pub fn close(&self) {
        self.home.lock().closed = true;
        self.home.freed.notify_all();
    }

    /// Registers a function that the thread which drops a block calls after the block has returned.
    /// It must not wait, and must not take locks under which blocks are dropped. Only the first
    /// registration counts.
    pub fn on_free(&self, on_free: impl Fn() + Send + Sync + 'static) {
        let _ = self.home.on_free.set(Box::new(on_free));
    }

    /// The number of blocks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The length of each block in bytes.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// The number of free blocks.
    #[must_use]
    pub fn free(&self) -> usize {
        self.home.lock().blocks.len()
    }

    /// The smallest number of free blocks so far.
    #[must_use]
    pub fn fewest_free(&self) -> usize {
        self.home.lock().fewest
    }

    /// Returns the memfd of a shared pool, for another process to map.
    #[must_use]
    pub fn segment(&self) -> Option<BorrowedFd<'_>> {
        self.segment.as_ref().map(|fd| fd.as_fd())
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
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn dropped_blocks_return() {
        let pool = Pool::private(2, 4_096).expect("memory");
        let (one, two) = (pool.try_take().expect("free"), pool.try_take().expect("free"));
        assert_eq!((one.index(), two.index()), (0, 1));
        assert!(pool.try_take().is_none());
        assert!(pool.take_within(Duration::from_millis(1)).is_none());
        let frees = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&frees);
        pool.on_free(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        drop(two);
        assert_eq!(frees.load(Ordering::SeqCst), 1);
        assert_eq!(pool.try_take().map(|block| block.index()), Some(1));
        assert_eq!((pool.free(), pool.fewest_free()), (1, 0));
    }

    #[test]
    fn waiting_thread_gets_a_returned_block_or_wakes_at_the_close() {
        let pool = Pool::private(1, 4_096).expect("memory");
        let block = pool.take().expect("free");
        let waiting = thread::spawn({
            let pool = pool.clone();
            move || (pool.take().map(drop), pool.take().map(std::mem::forget), pool.take())
        });
        drop(block);
        while pool.fewest_free() > 0 || pool.free() > 0 {
            thread::yield_now();
        }
        pool.close();
        let (first, _, last) = waiting.join().expect("no panic");
        assert!(first.is_some() && last.is_none());
    }
}
