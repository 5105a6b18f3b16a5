//! The list of the free blocks of a pool.

use std::sync::{Condvar, Mutex};

use weft_sys::{PrivateBlock, lock};

/// The list to which blocks return.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) free: Mutex<Free>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct Free {
    /// The memory of each free block, and its number.
    pub(super) blocks: Vec<(PrivateBlock, u32)>,
    pub(super) is_closed: bool,
}

impl Home {
    /// Creates the list with all blocks free.
    pub(super) fn new(blocks: Vec<(PrivateBlock, u32)>) -> Self {
        let free = Mutex::new(Free { blocks, is_closed: false });
        Self { free, changed: Condvar::new() }
    }

    pub(super) fn put(&self, memory: PrivateBlock, index: u32) {
        lock(&self.free).blocks.push((memory, index));
        self.changed.notify_one();
    }
}
