//! The memory of blocks, and the list of free ones.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use crate::limits::HEAD_LEN_MAX;
use weft_sys::{PrivateBlock, SharedMemory};

/// The memory of a block.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Memory that only the block's owner can access.
    Private(PrivateBlock),
    /// Memory that a peer can access, too.
    Shared(SharedRange),
    /// The block is being dropped.
    Gone,
}

/// A range of shared memory, with room for a block's header before it.
#[derive(Clone, Debug)]
pub(crate) struct SharedRange {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl SharedRange {
    /// Returns the position of `len` bytes at `offset`.
    pub(super) fn at(&self, offset: usize, len: usize) -> usize {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "an access past the end of a block"
        );
        self.start + offset
    }

    /// Returns the position of a header of `len` bytes.
    pub(super) fn head(&self, len: usize) -> usize {
        assert!(len <= HEAD_LEN_MAX && len <= self.start, "a header without room");
        self.start - len
    }
}

type OnFree = Box<dyn Fn() + Send + Sync>;

/// The free list to which blocks return.
pub(crate) struct Home {
    state: Mutex<Free>,
    pub(super) freed: Condvar,
    pub(super) on_free: OnceLock<OnFree>,
}

pub(super) struct Free {
    pub(super) blocks: Vec<(Memory, u32)>,
    pub(super) closed: bool,
    pub(super) fewest: usize,
}

impl Home {
    /// Creates the list with all blocks free.
    pub(super) fn new(blocks: Vec<(Memory, u32)>) -> Self {
        let fewest = blocks.len();
        let state = Mutex::new(Free { blocks, closed: false, fewest });
        Self { state, freed: Condvar::new(), on_free: OnceLock::new() }
    }

    pub(crate) fn put(&self, memory: Memory, index: u32) {
        self.lock().blocks.push((memory, index));
        self.freed.notify_one();
        if let Some(on_free) = self.on_free.get() {
            on_free();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Free> {
        // Each change is a single operation, so the list is consistent even after a panic.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
