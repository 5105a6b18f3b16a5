//! An allocator beside the program's, for a library whose functions are called out of handlers of
//! signals: a handler that has interrupted the program's allocator must not enter it again.
//!
//! Blocks have the sizes of powers of two. Those that are free stand in a list for each size; large
//! ones are mappings of their own. No handler runs in the middle of it ([`crate::Section`]), and
//! each change is one store, so that a child of `fork(2)` finds it whole whatever other threads of
//! its parent were at.
//!
//! # Safety
//! A block belongs to its allocator's caller until it is given back, and to the list of its size
//! from then on; its first word is the address of the next one then.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::lock::Lock;
use crate::section::Section;

/// The smallest block, as a power of two: what most things are aligned to.
const SMALLEST: u32 = 4;
/// The largest one that is kept when it is free.
const LARGEST: u32 = 16;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Bytes that the kernel is asked for at once, for blocks.
const CHUNK: usize = 256 << 10;
/// To which mappings are aligned.
const PAGE: usize = 4_096;

struct Free {
    /// Blocks of each size.
    lists: [*mut u8; SIZES],
    /// What is left of the last chunk.
    rest: (*mut u8, usize),
}

// SAFETY: addresses, of memory that any thread may use.
unsafe impl Send for Free {}

/// The allocator. There may be several.
pub struct Heap(Lock<Free>);

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

/// The size of a block for this, as a power of two.
fn size(layout: Layout) -> u32 {
    let least = layout.size().max(layout.align()).max(1 << SMALLEST);
    usize::BITS - (least - 1).leading_zeros()
}

fn map(len: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) };
    start.map_or(null_mut(), <*mut _>::cast)
}

impl Heap {
    /// An allocator that has nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Lock::new(Free { lists: [null_mut(); SIZES], rest: (null_mut(), 0) }))
    }

    /// This is a child just born, which has one thread.
    ///
    /// # Safety
    /// The thread is not in the middle of a call of the allocator.
    pub unsafe fn forked(&self) {
        // SAFETY: a thread that held it does not exist here, and has left everything whole.
        unsafe { self.0.thaw() };
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Free {
    fn pop(&mut self, list: usize) -> Option<*mut u8> {
        let block = self.lists[list];
        if block.is_null() {
            return None;
        }
        // SAFETY: a free block, whose first word is the next one's address.
        self.lists[list] = unsafe { block.cast::<*mut u8>().read() };
        Some(block)
    }

    fn push(&mut self, list: usize, block: *mut u8) {
        // SAFETY: a block that has just been given back, with room for a word.
        unsafe { block.cast::<*mut u8>().write(self.lists[list]) };
        self.lists[list] = block;
    }

    /// A block that has never been one. What is left of a chunk that is too short is lost.
    fn carve(&mut self, len: usize) -> *mut u8 {
        let (start, left) = self.rest;
        // Blocks are aligned to their size, as far as mappings are aligned.
        let skip = (start as usize).wrapping_neg() & (len.min(PAGE) - 1);
        if left < skip + len {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            self.rest = (chunk, CHUNK);
            return self.carve(len);
        }
        let block = start.wrapping_add(skip);
        self.rest = (block.wrapping_add(len), left - skip - len);
        block
    }
}

// SAFETY: blocks are as long and as aligned as they have to be, and given to one owner at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = size(layout);
        if layout.align() > PAGE {
            return null_mut();
        }
        if size > LARGEST {
            return map(layout.size().next_multiple_of(PAGE));
        }
        let list = (size - SMALLEST) as usize;
        let _section = Section::begin();
        let mut free = self.0.lock();
        free.pop(list).unwrap_or_else(|| free.carve(1 << size))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let size = size(layout);
        if size > LARGEST {
            // SAFETY: a mapping of this length, which its owner has given back.
            let _ = unsafe { munmap(block.cast(), layout.size().next_multiple_of(PAGE)) };
            return;
        }
        let _section = Section::begin();
        self.0.lock().push((size - SMALLEST) as usize, block);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is one of a layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if size(layout) <= LARGEST && size(layout) == size(new) {
            return block;
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            let len = layout.size().min(new_size);
            // SAFETY: both are as long, and one is new.
            unsafe { std::ptr::copy_nonoverlapping(block, moved, len) };
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of many sizes by several threads: aligned, apart from each other, and kept whole.
    #[test]
    fn blocks_are_apart_from_each_other() {
        static HEAP: Heap = Heap::new();
        let work = |seed: u64| {
            move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held: Vec<(usize, Layout, u8)> = Vec::new();
                let check = |(at, layout, mark): (usize, Layout, u8)| {
                    let block = at as *mut u8;
                    // SAFETY: allocated with this layout, and filled.
                    let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
                    assert!(bytes.iter().all(|&byte| byte == mark));
                    // SAFETY: allocated with this layout, and filled, and not used any more.
                    unsafe { HEAP.dealloc(block, layout) };
                };
                for mark in 0..4_000_u32 {
                    let len = 1_usize << random.u32(0..18);
                    let layout =
                        Layout::from_size_align(random.usize(1..=len), 1 << random.u32(0..=12));
                    let layout = layout.expect("a power of two");
                    // SAFETY: the layout has a size.
                    let block = unsafe { HEAP.alloc(layout) };
                    assert!(!block.is_null());
                    assert_eq!(block as usize % layout.align(), 0);
                    let mark = mark as u8;
                    // SAFETY: just allocated.
                    unsafe { block.write_bytes(mark, layout.size()) };
                    held.push((block as usize, layout, mark));
                    if held.len() > 50 {
                        check(held.swap_remove(random.usize(..held.len())));
                    }
                }
                held.into_iter().for_each(check);
            }
        };
        let threads: Vec<_> = (0..4).map(|seed| std::thread::spawn(work(seed))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    #[test]
    fn a_block_grows() {
        let heap = Heap::new();
        let layout = |len| Layout::from_size_align(len, 8).expect("small");
        // SAFETY: the layout has a size.
        let mut block = unsafe { heap.alloc(layout(20)) };
        // SAFETY: just allocated.
        unsafe { block.write_bytes(7, 20) };
        for (old, new) in [(20, 30), (30, 1_000), (1_000, 200_000), (200_000, 100)] {
            // SAFETY: allocated with the old size.
            block = unsafe { heap.realloc(block, layout(old), new) };
            // SAFETY: as long as that at least.
            assert!(unsafe { std::slice::from_raw_parts(block, 20) } == [7; 20]);
        }
        // SAFETY: allocated with this size.
        unsafe { heap.dealloc(block, layout(100)) };
    }
}
