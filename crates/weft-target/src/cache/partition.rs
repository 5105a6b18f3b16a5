//! A part of the cache with a lock of its own: an index, and the memory of its blocks.
//!
//! The lock of a block is taken while that of the index is held only if nothing waits for it. So a
//! thread that holds a block may wait for the index.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use weft_sys::lock;

use super::index::{Index, Slot};
use super::layout::Key;
use crate::aligned::Aligned;
use crate::locks::at_once;

/// A partition.
#[derive(Debug)]
pub(super) struct Partition {
    index: Mutex<Index>,
    blocks: Box<[RwLock<Block>]>,
}

/// The memory of a block.
#[derive(Debug)]
pub(super) struct Block {
    /// The block of a unit whose bytes these are. It has this slot in the index.
    key: Option<Key>,
    /// Bytes that are there: fewer at the end of a unit.
    len: usize,
    bytes: Aligned,
}

/// A block that is about to change. Unless it is published after a change, it has no slot
/// afterwards.
#[derive(Debug)]
pub struct Claim<'a> {
    partition: &'a Partition,
    slot: Slot,
    key: Key,
    block: RwLockWriteGuard<'a, Block>,
    /// The bytes are those of the store.
    is_sound: bool,
}

/// A block that is being written without a slot.
#[derive(Debug)]
pub struct Bar<'a> {
    partition: &'a Partition,
    key: Key,
}

/// A block that is read.
#[derive(Debug)]
pub enum Opened<'a> {
    /// The bytes are copied.
    Copied,
    /// The block has to be filled.
    Missing(Claim<'a>),
    /// The store has to be read, and nothing is kept.
    Uncached,
}

/// A block that is being written: no other write of the same bytes is between that of the store and
/// that of the cache.
#[derive(Debug)]
pub enum Owned<'a> {
    /// It has a slot.
    Claimed(Claim<'a>),
    /// It gets none meanwhile.
    Barred(Bar<'a>),
}

/// The result of a look for a block in the index.
enum Found<'a> {
    Block(RwLockWriteGuard<'a, Block>, Slot),
    /// Another thread holds it.
    Busy(Slot),
    None,
}

impl Partition {
    /// Returns a partition of this many blocks. Their memory is touched by this thread, and so is
    /// at its node.
    pub(super) fn new(blocks: u32, block_len: usize) -> Self {
        let block = || {
            // Zeros would be pages that nobody has touched.
            let bytes = Aligned::filled(block_len, u8::MAX);
            RwLock::new(Block { key: None, len: 0, bytes })
        };
        Self {
            index: Mutex::new(Index::new(blocks)),
            blocks: (0..blocks).map(|_| block()).collect(),
        }
    }

    /// The number of its blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The number of blocks that are used.
    pub(super) fn used(&self) -> u32 {
        lock(&self.index).used()
    }

    /// Copies bytes of a block that is there, without a wait. Returns whether that was done.
    pub(super) fn copy(&self, key: Key, at: usize, into: &mut [u8]) -> bool {
        let mut index = lock(&self.index);
        let Some(slot) = index.find(key) else { return false };
        let Some(block) = at_once(self.blocks[slot as usize].try_read()) else { return false };
        index.touch(slot);
        drop(index);
        block.copy(key, at, into)
    }

    /// Copies bytes of a block that is there, or that another thread is filling.
    pub(super) fn open(&self, key: Key, at: usize, into: &mut [u8]) -> Opened<'_> {
        loop {
            let mut index = lock(&self.index);
            let Some(slot) = index.find(key) else {
                if index.is_barred(key) {
                    return Opened::Uncached;
                }
                let claim = self.claim(&mut index, key);
                return claim.map_or(Opened::Uncached, Opened::Missing);
            };
            index.touch(slot);
            drop(index);
            let block = self.read(slot);
            if block.copy(key, at, into) {
                return Opened::Copied;
            }
            if block.key == Some(key) {
                // It is shorter: the unit has grown.
                drop(block);
                self.forget(key);
            }
        }
    }

    /// Takes a block that is going to be written; `is_whole` if all of it is. `None` if that would
    /// take a wait.
    pub(super) fn try_own(&self, key: Key, is_whole: bool) -> Option<Owned<'_>> {
        let mut index = lock(&self.index);
        match self.look_up(&mut index, key) {
            Found::Block(block, slot) => Some(Owned::Claimed(self.held(slot, key, block))),
            Found::None => Some(self.own_new(&mut index, key, is_whole)),
            Found::Busy(_) => None,
        }
    }

    /// Waits for the thread that uses a block, if there is one.
    pub(super) fn wait_for(&self, key: Key) {
        let found = self.look_up(&mut lock(&self.index), key);
        if let Found::Busy(slot) = found {
            drop(self.write(slot));
        }
    }

    /// Makes the slot of a block free, if it has one.
    pub(super) fn forget(&self, key: Key) {
        loop {
            let found = self.look_up(&mut lock(&self.index), key);
            let (block, slot) = match found {
                Found::Block(block, slot) => (block, slot),
                Found::Busy(slot) => (self.write(slot), slot),
                Found::None => return,
            };
            if block.key == Some(key) {
                let mut claim = self.held(slot, key, block);
                claim.taint();
                return;
            }
        }
    }

    /// The blocks of a unit that `wanted` selects.
    pub(super) fn keys(&self, wanted: impl Fn(Key) -> bool) -> Vec<Key> {
        let index = lock(&self.index);
        (0..self.blocks.len() as Slot)
            .filter_map(|slot| index.key(slot))
            .filter(|key| wanted(*key))
            .collect()
    }

    fn own_new(&self, index: &mut Index, key: Key, is_whole: bool) -> Owned<'_> {
        // Nothing orders another write of the same block with one that gets a slot now.
        if is_whole
            && !index.is_barred(key)
            && let Some(claim) = self.claim(index, key)
        {
            return Owned::Claimed(claim);
        }
        index.bar(key);
        Owned::Barred(Bar { partition: self, key })
    }

    fn look_up(&self, index: &mut Index, key: Key) -> Found<'_> {
        let Some(slot) = index.find(key) else { return Found::None };
        index.touch(slot);
        self.try_write(slot).map_or(Found::Busy(slot), |block| Found::Block(block, slot))
    }

    /// Gives a slot to a block that has none. `None` if all candidates are in use.
    fn claim(&self, index: &mut Index, key: Key) -> Option<Claim<'_>> {
        let free = |slot| Some((slot, self.try_write(slot)?));
        let (slot, mut block) = index.candidates().find_map(free)?;
        index.assign(slot, key);
        block.key = None;
        Some(Claim { partition: self, slot, key, block, is_sound: false })
    }

    fn held<'a>(&'a self, slot: Slot, key: Key, block: RwLockWriteGuard<'a, Block>) -> Claim<'a> {
        Claim { partition: self, slot, key, block, is_sound: true }
    }

    fn read(&self, slot: Slot) -> RwLockReadGuard<'_, Block> {
        self.blocks[slot as usize].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, slot: Slot) -> RwLockWriteGuard<'_, Block> {
        self.blocks[slot as usize].write().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_write(&self, slot: Slot) -> Option<RwLockWriteGuard<'_, Block>> {
        at_once(self.blocks[slot as usize].try_write())
    }
}

impl Block {
    /// Copies bytes, if they are there.
    fn copy(&self, key: Key, at: usize, into: &mut [u8]) -> bool {
        let is_there = self.key == Some(key) && at + into.len() <= self.len;
        if is_there {
            into.copy_from_slice(&self.bytes[at..][..into.len()]);
        }
        is_there
    }
}

impl Claim<'_> {
    /// The first `len` bytes of a block that is filled.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        self.taint();
        self.block.len = len;
        &mut self.block.bytes[..len]
    }

    /// The store may be another one from here on.
    pub fn taint(&mut self) {
        self.is_sound = false;
    }

    /// The store has these bytes at an offset in the block, and the rest as it was before.
    pub fn change(mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        let is_new = self.block.key.is_none();
        if is_new && at > 0 || !is_new && end > self.block.len {
            // Some of the block is not known.
            return;
        }
        self.block.bytes[at..end].copy_from_slice(bytes);
        if is_new {
            self.block.len = end;
        }
        self.publish();
    }

    /// The bytes are those of the store.
    pub fn publish(mut self) {
        self.block.key = Some(self.key);
        self.is_sound = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_sound {
            self.block.key = None;
            lock(&self.partition.index).release(self.slot);
        }
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        lock(&self.partition.index).unbar(self.key);
    }
}
