//! Blocks of private memory: one mapping that is cut into pieces of equal length.
//!
//! # Safety
//! [`private_blocks`] hands out each piece of the mapping once, and a [`PrivateBlock`] cannot be
//! cloned. So only the holder of a block reaches its bytes, and may use them as slices. The mapping
//! lives until its last block is dropped.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::calls::io::Errno;
use crate::calls::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A private mapping.
#[derive(Debug)]
struct Whole {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; this type reads and writes nothing.
unsafe impl Send for Whole {}
// SAFETY: a shared reference gives no access: the fields are private, and only `drop` uses them.
unsafe impl Sync for Whole {}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and each block that points into it keeps this value
        // alive.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One piece of a private mapping, which no other code can reach.
#[derive(Debug)]
pub struct PrivateBlock {
    start: NonNull<u8>,
    len: usize,
    _whole: Arc<Whole>,
}

// SAFETY: the block owns its bytes like a `Box<[u8]>`.
unsafe impl Send for PrivateBlock {}
// SAFETY: a shared reference to the block gives only `&[u8]`.
unsafe impl Sync for PrivateBlock {}

impl Deref for PrivateBlock {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: these are `len` mapped, initialised bytes. They are reachable only through this
        // block, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PrivateBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: these are `len` mapped, initialised bytes. They are reachable only through this
        // block, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Allocates `count` blocks of `len` bytes, all zero. Each starts at a multiple of the largest
/// power of two that divides `len`, up to the page size: at a page if `len` is a multiple of it.
///
/// # Errors
/// `EINVAL` if there are no bytes; `ENOMEM`.
pub fn private_blocks(count: usize, len: usize) -> Result<Vec<PrivateBlock>, Errno> {
    let total = count.checked_mul(len).filter(|total| *total > 0).ok_or(Errno::INVAL)?;
    isize::try_from(total).map_err(|_| Errno::NOMEM)?;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), total, rights, MapFlags::PRIVATE)? };
    let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
    let whole = Arc::new(Whole { start, len: total });
    // Huge pages save faults and translations. Without them the call has no effect.
    // SAFETY: the advice concerns this mapping, and does not change its contents.
    let _ = unsafe { madvise(start.as_ptr().cast(), total, Advice::LinuxHugepage) };
    let block = |index: usize| {
        // SAFETY: `index` is below `count`, so the block lies within the `total` bytes.
        let start = unsafe { start.add(index * len) };
        PrivateBlock { start, len, _whole: Arc::clone(&whole) }
    };
    Ok((0..count).map(block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_its_own_bytes() {
        let mut blocks = private_blocks(3, 4_096).expect("memory");
        for (value, block) in (1..).zip(&mut blocks) {
            assert_eq!(block.as_ptr() as usize % 4_096, 0, "begins at a page");
            assert!(block.iter().all(|byte| *byte == 0));
            block.fill(value);
        }
        let last = blocks.pop().expect("three");
        drop(blocks);
        // The mapping lives as long as one of its blocks.
        assert!(last.len() == 4_096 && last.iter().all(|byte| *byte == 3));
    }

    #[test]
    fn empty_or_too_large_sizes_are_refused() {
        assert_eq!(private_blocks(0, 4_096).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(4, 0).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(usize::MAX, 2).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(usize::MAX / 2, 2).map(drop), Err(Errno::NOMEM));
    }
}
