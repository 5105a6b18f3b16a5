//! The memory of blocks, and where it is while they are free.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use crate::limits::HEAD_LEN_MAX;
use weft_sys::{PrivateBlock, SharedMemory};

/// Where a block's bytes are.
#[derive(Debug)]
pub(crate) enum Memory {
    /// In memory that only the block's holder reaches.
    Private(PrivateBlock),
    /// In memory that a peer reaches, too.
    Shared(SharedRange),
    /// The block is being dropped.
    Gone,
}

/// A range of shared memory. In front of it is room for a block's header.
#[derive(Clone, Debug)]
pub(crate) struct SharedRange {
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl SharedRange {
    /// Where `len` bytes from `offset` on begin.
    pub(super) fn at(&self, offset: usize, len: usize) -> usize {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "an access past the end of a block"
        );
        self.start + offset
    }

    /// Where a header of `len` bytes begins.
    pub(super) fn head(&self, len: usize) -> usize {
        assert!(len <= HEAD_LEN_MAX && len <= self.start, "a header without room");
        self.start - len
    }
}

type OnFree = Box<dyn Fn() + Send + Sync>;

/// Where blocks return to.
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
    /// With all blocks in it.
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
        // Each change is one step: a panic leaves the list whole.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
