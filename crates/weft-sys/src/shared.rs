//! Memory that two processes map: segments made by `memfd_create(2)`, sealed so that no process can
//! shrink one while another uses it.
//!
//! # Safety
//! A [`SharedMemory`] owns its mapping, which exists until it is dropped. Every access is
//! range-checked here. The other process may change the bytes at any time, so they are never
//! exposed as a Rust reference, except to atomics: they are copied.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::calls::fs::{
    FsWord, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use crate::calls::io::Errno;
use crate::calls::mm::{MapFlags, ProtFlags, mmap, munmap};
use crate::layout::SharedLayout;
use crate::region::Region;

/// The file system of ordinary segments (`statfs(2)`).
const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// A mapping of a segment.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: all accesses are copies through raw pointers or atomic. A racing copy yields any bytes,
// which callers must expect anyway, since they share the memory with another process.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates a segment of `len` bytes, all zero, that no process can resize. Returns the mapping,
    /// and the descriptor for other processes.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and similar errors.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let (memory, fd) = Self::create_unsealed(len)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((memory, fd))
    }

    /// Creates a segment to which only the returned mapping can write: holders of the descriptor
    /// can only read.
    ///
    /// # Errors
    /// Those of [`SharedMemory::create`]; `EINVAL` from kernels before 5.1.
    pub fn create_for_readers(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let (memory, fd) = Self::create_unsealed(len)?;
        let sealed =
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&fd, sealed)?;
        Ok((memory, fd))
    }

    fn create_unsealed(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let fd = memfd_create("weft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        Ok((Self::map(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?, fd))
    }

    /// Maps a segment that another process has created, for reading and, if `writable`, for
    /// writing.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is not a sealed segment of exactly `len` bytes; an error of
    /// `mmap(2)`.
    pub fn open(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        if fstat(fd)?.st_size.cast_unsigned() != len as u64 {
            return Err(Errno::INVAL);
        }
        Self::open_beginning(fd, len, writable)
    }

    /// Maps the first `len` bytes of a segment that may be longer.
    ///
    /// # Errors
    /// Those of [`SharedMemory::open`].
    pub fn open_beginning(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        // If the segment were shrunk later, an access would kill the process.
        let seals = fcntl_get_seals(fd)?;
        let size = u64::try_from(fstat(fd)?.st_size).map_err(|_| Errno::INVAL)?;
        if len == 0 || size < len as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(Errno::INVAL);
        }
        // A hole that the other process punches into huge pages may find none left, which kills the
        // process as well.
        if fstatfs(fd)?.f_type != TMPFS_MAGIC {
            return Err(Errno::INVAL);
        }
        let writing = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        Self::map(fd, len, ProtFlags::READ | writing)
    }

    /// Maps the first `len` bytes of a segment of this process, which has that many.
    ///
    /// # Errors
    /// An error of `mmap(2)`.
    pub(crate) fn view(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        Self::map(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Takes ownership of a mapping.
    ///
    /// # Errors
    /// `ENOMEM` if `start` is NULL.
    ///
    /// # Safety
    /// `len` bytes at `start` are mapped and shared, and no other code unmaps them. Inaccessible
    /// parts are not accessed.
    pub(crate) unsafe fn from_raw(start: *mut u8, len: usize) -> Result<Self, Errno> {
        NonNull::new(start).map(|start| Self { start, len }).ok_or(Errno::NOMEM)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, rights: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, fd, 0)? };
        NonNull::new(start.cast()).map(|start| Self { start, len }).ok_or(Errno::NOMEM)
    }

    /// The length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A segment is never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of the mapping.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// If the word does not lie inside or is not aligned. The caller computes offsets itself.
    #[must_use]
    #[inline]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        let at = self.at::<AtomicU32>(offset);
        // SAFETY: `at` has checked range and alignment, the mapping lives as long as `self`, and
        // each process accesses it only by copies and atomics.
        unsafe { &*at }
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// Those of [`SharedMemory::word32`].
    #[must_use]
    #[inline]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        let at = self.at::<AtomicU64>(offset);
        // SAFETY: `at` has checked range and alignment, the mapping lives as long as `self`, and
        // each process accesses it only by copies and atomics.
        unsafe { &*at }
    }

    /// The structure at `offset` (see [`shared_layout`](crate::shared_layout)).
    ///
    /// # Panics
    /// Those of [`SharedMemory::word32`].
    #[must_use]
    #[inline]
    pub fn structure<T: SharedLayout>(&self, offset: usize) -> &T {
        let at = self.at::<T>(offset);
        // SAFETY: `at` has checked range and alignment, the mapping lives as long as `self`, and a
        // `SharedLayout` structure consists of atomics, for which any bytes of the peer are valid.
        unsafe { &*at }
    }

    /// Prefetches the cache line at `offset` for writing.
    ///
    /// # Panics
    /// If the line does not lie inside.
    #[inline]
    pub fn prefetch_for_writing(&self, offset: usize) {
        let at = self.range(offset, 1);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction is a hint without side effects, and the address lies inside the
        // mapping.
        unsafe {
            std::arch::x86_64::_mm_prefetch(at.cast(), std::arch::x86_64::_MM_HINT_ET0);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they would not lie inside.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: the destination lies inside the mapping (checked by `range`). `bytes` is an
        // ordinary slice of this process, which no mapping of a segment overlaps.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Panics
    /// If the source does not lie inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.range(offset, bytes.len());
        // SAFETY: the source lies inside the mapping (checked by `range`). `bytes` is an ordinary
        // slice of this process, which no mapping of a segment overlaps.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Appends `len` bytes from `offset` to `out`.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let old = out.len();
        out.resize(old + len, 0);
        self.copy_out(offset, &mut out[old..]);
    }

    /// Copies a whole region of the program to `offset`.
    ///
    /// # Panics
    /// If it would not lie inside.
    #[inline]
    pub fn copy_from(&self, offset: usize, source: &Region) {
        let to = self.range(offset, source.len());
        // SAFETY: the creator of the region guarantees that the source is mapped and readable, and
        // the destination lies inside the mapping. `copy` allows them to overlap.
        unsafe { std::ptr::copy(source.addr() as *const u8, to, source.len()) }
    }

    /// Copies a whole region of the program to `offset`, with its last word last, by one store:
    /// programs wait for a message by polling its last bytes.
    ///
    /// # Panics
    /// If it would not lie inside.
    #[inline]
    pub fn place(&self, offset: usize, source: &Region) {
        let to = self.range(offset, source.len());
        let from = source.addr() as *const u8;
        // SAFETY: the creator of the region guarantees that the source is mapped and readable, and
        // the destination lies inside the mapping.
        unsafe { place(from, to, source.len()) }
    }

    /// Does the same as [`SharedMemory::place`] for bytes of this process.
    ///
    /// # Panics
    /// If they would not lie inside.
    pub fn place_bytes(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: the destination lies inside the mapping, and the source is an ordinary slice.
        unsafe { place(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Fills a whole region of the program from `offset`.
    ///
    /// # Panics
    /// If the source does not lie inside.
    #[inline]
    pub fn copy_to(&self, offset: usize, target: &Region) {
        let from = self.range(offset, target.len());
        // SAFETY: the source lies inside the mapping (checked by `range`), and the creator of the
        // region guarantees that the target is mapped and writable. `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, target.addr() as *mut u8, target.len()) }
    }

    /// Changes the eight bytes at `offset` atomically by `change`, and returns their old value in
    /// the CPU's byte order. `None` if they do not lie inside or are not aligned.
    pub fn update_u64(&self, offset: usize, mut change: impl FnMut(u64) -> u64) -> Option<u64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.len {
            return None;
        }
        let word = self.word64(offset);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old))).ok()
    }

    fn at<T>(&self, offset: usize) -> *const T {
        assert!(offset.is_multiple_of(align_of::<T>()), "a word must be aligned");
        self.range(offset, size_of::<T>()).cast_const().cast()
    }

    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "an access past the end of a segment"
        );
        // SAFETY: `offset` is at most `len` (asserted), so the result lies inside the mapping or
        // one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline]
unsafe fn place(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let tail = len.min(WORD);
    // SAFETY: `len - tail` is at most `len`, so both ranges are valid. `copy` allows them to
    // overlap.
    unsafe { std::ptr::copy(from, to, len - tail) };
    // SAFETY: `len - tail` is at most `len`, so the result lies within the range or one past its
    // end.
    let from = unsafe { from.add(len - tail) };
    // SAFETY: `len - tail` is at most `len`, so the result lies within the range or one past its
    // end.
    let to = unsafe { to.add(len - tail) };
    std::sync::atomic::fence(Ordering::Release);
    if tail == WORD {
        // SAFETY: these are the last eight bytes of the source, which may have any alignment.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: these are the last eight bytes of the destination, which may have any alignment.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    } else {
        // SAFETY: these are the last `tail` bytes of both ranges. `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, to, tail) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives the value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_share_their_bytes() {
        let (ours, fd) = SharedMemory::create(8_192).expect("memory");
        let theirs = SharedMemory::open(fd.as_fd(), 8_192, true).expect("the same segment");
        ours.copy_in(100, b"fabric");
        let mut bytes = [0; 6];
        theirs.copy_out(100, &mut bytes);
        assert_eq!(&bytes, b"fabric");
        theirs.word64(4_096).store(7, Ordering::Relaxed);
        assert_eq!(ours.update_u64(4_096, |old| old + 1), Some(7));
        assert_eq!(theirs.word64(4_096).load(Ordering::Relaxed), 8);
        assert_eq!(ours.update_u64(4_097, |old| old), None);
        assert_eq!(ours.update_u64(8_192, |old| old), None);
    }

    #[test]
    fn segment_that_could_be_truncated_is_refused() {
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let unsealed = unsealed.expect("a memfd");
        ftruncate(&unsealed, 4_096).expect("room");
        let refused = SharedMemory::open(unsealed.as_fd(), 4_096, true);
        assert_eq!(refused.map(drop), Err(Errno::INVAL));
        let (_memory, fd) = SharedMemory::create(4_096).expect("memory");
        assert!(SharedMemory::open(fd.as_fd(), 8_192, true).is_err(), "another size");
        assert!(ftruncate(&fd, 0).is_err(), "sealed");
    }

    #[test]
    fn huge_pages_are_refused() {
        const LEN: usize = 2 << 20;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Not every kernel supports them.
        let Ok(fd) = memfd_create("test", flags) else { return };
        ftruncate(&fd, LEN as u64).expect("no page is taken yet");
        fcntl_add_seals(&fd, SealFlags::SHRINK).expect("a seal");
        let refused = SharedMemory::open(fd.as_fd(), LEN, true);
        assert_eq!(refused.map(drop), Err(Errno::INVAL));
    }

    #[test]
    fn readers_cannot_write() {
        let (ours, fd) = SharedMemory::create_for_readers(4_096).expect("memory");
        assert!(SharedMemory::open(fd.as_fd(), 4_096, true).is_err());
        let theirs = SharedMemory::open(fd.as_fd(), 4_096, false).expect("for reading");
        ours.word32(0).store(3, Ordering::Relaxed);
        assert_eq!(theirs.word32(0).load(Ordering::Relaxed), 3);
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn no_access_past_the_end() {
        let (memory, _fd) = SharedMemory::create(4_096).expect("memory");
        memory.copy_in(4_090, &[0; 7]);
    }
}
