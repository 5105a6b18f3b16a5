//! Blocks of private memory: one mapping, cut once into pieces of one length.
//!
//! # Safety
//! [`private_blocks`] hands out each piece of the mapping once, and a [`PrivateBlock`] cannot be
//! cloned. So the holder of a block is the only one that reaches its bytes, and may have them as
//! slices. The mapping stays until the last block of it is dropped.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A private mapping.
#[derive(Debug)]
struct Whole {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; this type reads and writes nothing.
unsafe impl Send for Whole {}
// SAFETY: a shared reference gives nothing: the fields are private, and only `drop` uses them.
unsafe impl Sync for Whole {}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and each block that points into it holds this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One piece of a private mapping, which nobody else reaches.
#[derive(Debug)]
pub struct PrivateBlock {
    start: NonNull<u8>,
    len: usize,
    _whole: Arc<Whole>,
}

// SAFETY: the block owns its bytes as a `Box<[u8]>` does.
unsafe impl Send for PrivateBlock {}
// SAFETY: a shared block gives `&[u8]` only.
unsafe impl Sync for PrivateBlock {}

impl Deref for PrivateBlock {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` mapped bytes that are zero or written since, reached through this block
        // only, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PrivateBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` mapped bytes that are zero or written since, reached through this block
        // only, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Makes `count` blocks of `len` bytes, all zero, each beginning at a multiple of `len`'s largest
/// power of two up to the page size: at a page where `len` is a multiple of it.
///
/// # Errors
/// `EINVAL` for none or empty ones; `ENOMEM`.
pub fn private_blocks(count: usize, len: usize) -> Result<Vec<PrivateBlock>, Errno> {
    let total = count.checked_mul(len).filter(|total| *total > 0).ok_or(Errno::INVAL)?;
    isize::try_from(total).map_err(|_| Errno::NOMEM)?;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that is mapped.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), total, rights, MapFlags::PRIVATE)? };
    let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
    let whole = Arc::new(Whole { start, len: total });
    // Fewer faults and translations. Where there are no huge pages it changes nothing.
    // SAFETY: advice about the pages of a mapping of ours, whose contents it does not change.
    let _ = unsafe { madvise(start.as_ptr().cast(), total, Advice::LinuxHugepage) };
    let block = |index: usize| {
        // SAFETY: `index` is below `count`, so that the block lies within the `total` bytes.
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
        // The mapping lives as long as one block of it does.
        assert!(last.len() == 4_096 && last.iter().all(|byte| *byte == 3));
    }

    #[test]
    fn nothing_is_no_mapping() {
        assert_eq!(private_blocks(0, 4_096).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(4, 0).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(usize::MAX, 2).map(drop), Err(Errno::INVAL));
        assert_eq!(private_blocks(usize::MAX / 2, 2).map(drop), Err(Errno::NOMEM));
    }
}
