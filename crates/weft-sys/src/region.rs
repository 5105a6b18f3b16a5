//! Memory that belongs to the program, and that a peer reads and writes.
//!
//! # Safety
//! A [`Region`] is created by an `unsafe` constructor whose caller guarantees that the memory is
//! valid. All later accesses are range-checked here. The bytes are never exposed as a Rust
//! reference, because the program and its peers change them at any time: they are copied, or
//! changed by CPU atomics.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// A range of the program's memory: an address and a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    addr: usize,
    len: usize,
}

impl Region {
    /// A region of `len` bytes at `addr`; `None` if the range wraps around the address space.
    ///
    /// # Safety
    /// The range must be mapped, readable and (if [`Region::copy_in`] or an atomic is used on it)
    /// writable whenever a method of this value or of a copy of it is called. No Rust object other
    /// than raw memory may live there.
    #[must_use]
    pub unsafe fn new(addr: usize, len: usize) -> Option<Self> {
        addr.checked_add(len)?;
        Some(Self { addr, len })
    }

    /// The first address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes at `offset`; `None` if it does not lie inside.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        Some(Self { addr: self.addr + offset, len })
    }

    /// Copies `src` to the start of the region.
    ///
    /// # Panics
    /// If `src` is longer than the region: the caller must have checked bounds.
    pub fn copy_in(&self, src: &[u8]) {
        assert!(src.len() <= self.len, "copy past the end of a region");
        // SAFETY: the destination lies inside the region (asserted), which the caller of `new`
        // keeps mapped and writable. `src` does not overlap it, because it is a buffer of Weft's
        // own, and regions hold only memory of the program.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.addr as *mut u8, src.len()) }
    }

    /// Copies the whole region to the start of `dst`.
    ///
    /// # Panics
    /// If `dst` is shorter than the region.
    #[inline]
    pub fn fill(&self, dst: &mut [u8]) {
        assert!(self.len <= dst.len(), "copy past the end of a buffer");
        // SAFETY: the caller of `new` keeps the source mapped and readable. The destination has
        // room for `len` bytes (asserted), and does not overlap: it is a buffer of Weft's own.
        unsafe { std::ptr::copy_nonoverlapping(self.addr as *const u8, dst.as_mut_ptr(), self.len) }
    }

    /// Appends the region's bytes to `dst`.
    pub fn copy_out(&self, dst: &mut Vec<u8>) {
        dst.reserve(self.len);
        let old = dst.len();
        // SAFETY: `old` is at most the capacity, so the result lies inside the allocation or one
        // past its end.
        let end = unsafe { dst.as_mut_ptr().add(old) };
        // SAFETY: the caller of `new` keeps the source mapped and readable. The destination has
        // room for `len` bytes after `reserve`. They are distinct allocations.
        unsafe { std::ptr::copy_nonoverlapping(self.addr as *const u8, end, self.len) }
        // SAFETY: the copy has initialised the `len` bytes after `old`, and they lie within the
        // capacity.
        unsafe { dst.set_len(old + self.len) }
    }

    /// Changes the first eight bytes atomically by `change`, and returns their old value in the
    /// CPU's byte order. `None` if the region is shorter or not aligned to eight bytes.
    pub fn update_u64(&self, mut change: impl FnMut(u64) -> u64) -> Option<u64> {
        if self.len < 8 || !self.addr.is_multiple_of(8) {
            return None;
        }
        //= rfc7306#section-5.3
        //# Atomicity of the Read-Modify-Write (RMW) on the Responder's node by the Atomic Operation
        //# MUST be assured in the context of concurrent atomic accesses by other RDMAP Streams on
        //# the same RNIC.
        // SAFETY: the bytes are eight, aligned (checked), mapped and writable (by `new`'s
        // contract). Other accesses by the program may race; they are single instructions of the
        // CPU, with which an atomic operation of a network card races in the same way.
        let cell = unsafe { AtomicU64::from_ptr(self.addr as *mut u64) };
        cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests keep `bytes` alive and untouched while the region is used.
        unsafe { Region::new(bytes.as_mut_ptr() as usize, bytes.len()) }.expect("no wrap")
    }

    #[test]
    fn part_of_a_region_lies_inside_it() {
        let mut bytes = [0u8; 16];
        let whole = region(&mut bytes);
        assert!(whole.part(8, 8).is_some());
        assert!(whole.part(16, 0).is_some());
        assert!(whole.part(9, 8).is_none());
        assert!(whole.part(usize::MAX, 2).is_none());
    }

    #[test]
    fn copies_reach_their_offset() {
        let mut bytes = [0u8; 8];
        let whole = region(&mut bytes);
        whole.part(2, 3).expect("inside").copy_in(&[1, 2, 3]);
        let mut out = vec![9];
        whole.copy_out(&mut out);
        assert_eq!(out, [9, 0, 0, 1, 2, 3, 0, 0, 0]);
        let mut buffer = [7; 4];
        whole.part(3, 3).expect("inside").fill(&mut buffer);
        assert_eq!(buffer, [2, 3, 0, 7]);
    }

    #[test]
    fn atomics_need_alignment() {
        let mut words = [5u64, 0];
        // SAFETY: `words` outlives the region, and nothing else uses it meanwhile.
        let whole = unsafe { Region::new(words.as_mut_ptr() as usize, 16) }.expect("no wrap");
        assert_eq!(whole.update_u64(|old| old + 2), Some(5));
        assert_eq!(whole.part(1, 8).expect("inside").update_u64(|old| old), None);
        assert_eq!(whole.part(8, 4).expect("inside").update_u64(|old| old), None);
        assert_eq!(words[0], 7);
    }
}
