//! An allocator separate from the program's, for a library whose functions are called from signal
//! handlers: a handler that has interrupted the program's allocator must not enter it again.
//!
//! Block sizes are powers of two. Free blocks are in a list for each size; large blocks are
//! mappings of their own. No signal handler runs during an operation ([`crate::Section`]), and each
//! change is one store, so a child of `fork(2)` finds the heap consistent whatever other threads of
//! its parent were doing.
//!
//! # Safety
//! A block belongs to the allocator's caller until it is freed, and then to the list of its size;
//! its first word then holds the address of the next block.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use crate::calls::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use crate::lock::Lock;
use crate::section::Section;

/// Smallest block size, as a power of two: the alignment of most types.
const SMALLEST: u32 = 4;
/// Largest block size, as a power of two, that is kept in a list when free.
const LARGEST: u32 = 16;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Number of bytes that one request to the kernel gets for blocks.
const CHUNK: usize = 256 << 10;
/// The alignment of mappings.
const PAGE: usize = 4_096;

struct Free {
    /// The free blocks of each size.
    lists: [*mut u8; SIZES],
    /// The rest of the last chunk: address and length.
    rest: (*mut u8, usize),
}

// SAFETY: the pointers are addresses of memory that any thread may use.
unsafe impl Send for Free {}

/// An allocator. There may be several.
pub struct Heap(Lock<Free>);

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

/// The block size for a layout, as a power of two.
fn size(layout: Layout) -> u32 {
    let least = layout.size().max(layout.align()).max(1 << SMALLEST);
    usize::BITS - (least - 1).leading_zeros()
}

fn map(len: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
    let start = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) };
    start.map_or(null_mut(), <*mut _>::cast)
}

impl Heap {
    /// Creates an allocator that has no memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Lock::new(Free { lists: [null_mut(); SIZES], rest: (null_mut(), 0) }))
    }

    /// Frees the allocator's lock in a child just born, which has one thread.
    ///
    /// # Safety
    /// The calling thread is not inside a call of the allocator.
    pub unsafe fn forked(&self) {
        // SAFETY: in the child no thread holds the lock: the caller is outside the allocator, other
        // threads do not exist, and each of their changes was one store, which left the lists
        // consistent.
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
        // SAFETY: the block is free, so its first word is the address of the next one.
        self.lists[list] = unsafe { block.cast::<*mut u8>().read() };
        Some(block)
    }

    fn push(&mut self, list: usize, block: *mut u8) {
        // SAFETY: the block has just been freed, and is at least one word long.
        unsafe { block.cast::<*mut u8>().write(self.lists[list]) };
        self.lists[list] = block;
    }

    /// Cuts a new block from the last chunk. If the rest of that is too short it is lost.
    fn carve(&mut self, len: usize) -> *mut u8 {
        let (start, left) = self.rest;
        // Blocks are aligned to their size, up to the alignment of mappings.
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

// SAFETY: blocks are at least as long and as aligned as the layout requires, and belong to one
// owner at a time.
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
            // SAFETY: `alloc` made a mapping of this length for the layout, and its owner has freed
            // it.
            let _ = unsafe { munmap(block.cast(), layout.size().next_multiple_of(PAGE)) };
            return;
        }
        let _section = Section::begin();
        self.0.lock().push((size - SMALLEST) as usize, block);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `new_size` and the alignment form a layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if size(layout) <= LARGEST && size(layout) == size(new) {
            return block;
        }
        // SAFETY: the caller guarantees that the size is not zero.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            let len = layout.size().min(new_size);
            // SAFETY: both blocks have at least `len` bytes, and the new one overlaps no other.
            unsafe { std::ptr::copy_nonoverlapping(block, moved, len) };
            // SAFETY: the caller guarantees that `block` was allocated with `layout`, and it is not
            // used any more.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several threads allocate blocks of many sizes, which must be aligned, disjoint and keep
    /// their bytes.
    #[test]
    fn blocks_are_aligned_and_do_not_overlap() {
        static HEAP: Heap = Heap::new();
        let work = |seed: u64| {
            move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held: Vec<(usize, Layout, u8)> = Vec::new();
                let check = |(at, layout, mark): (usize, Layout, u8)| {
                    let block = at as *mut u8;
                    // SAFETY: `block` was allocated with this layout, and all of its bytes were
                    // written.
                    let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
                    assert!(bytes.iter().all(|&byte| byte == mark));
                    // SAFETY: `block` was allocated with this layout, and is not used any more.
                    unsafe { HEAP.dealloc(block, layout) };
                };
                for mark in 0..4_000_u32 {
                    let len = 1_usize << random.u32(0..18);
                    let layout =
                        Layout::from_size_align(random.usize(1..=len), 1 << random.u32(0..=12));
                    let layout = layout.expect("a power of two");
                    // SAFETY: the layout's size is not zero.
                    let block = unsafe { HEAP.alloc(layout) };
                    assert!(!block.is_null());
                    assert_eq!(block as usize % layout.align(), 0);
                    let mark = mark as u8;
                    // SAFETY: the block was allocated just now with this size.
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
    fn reallocation_keeps_the_bytes() {
        let heap = Heap::new();
        let layout = |len| Layout::from_size_align(len, 8).expect("small");
        // SAFETY: the layout's size is not zero.
        let mut block = unsafe { heap.alloc(layout(20)) };
        // SAFETY: the block was allocated just now with 20 bytes.
        unsafe { block.write_bytes(7, 20) };
        for (old, new) in [(20, 30), (30, 1_000), (1_000, 200_000), (200_000, 100)] {
            // SAFETY: `block` was allocated with the layout of `old`, and `new` is not zero.
            block = unsafe { heap.realloc(block, layout(old), new) };
            // SAFETY: all sizes are at least 20 bytes, which were written above.
            assert!(unsafe { std::slice::from_raw_parts(block, 20) } == [7; 20]);
        }
        // SAFETY: `block` was last allocated with this layout.
        unsafe { heap.dealloc(block, layout(100)) };
    }
}
