//! A private copy of a piece of a segment, which can replace the piece.
//!
//! # Safety
//! A replica owns its mapping until [`Replica::put`] has moved it.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};

use super::{Piece, Place, READ_WRITE, last_error, map};
use crate::calls::io::Errno;
use crate::calls::seek;

/// The copy, and the piece that it replaces.
#[derive(Debug)]
pub(super) struct Replica {
    piece: Piece,
    copy: usize,
}

impl Replica {
    /// Copies a piece: from its segment if that is known, else from the program's mapping.
    ///
    /// # Errors
    /// `ENOMEM`; `EFAULT` if the program's mapping is not readable.
    pub(super) fn of(piece: &Piece, segment: Option<RawFd>) -> Result<Self, Errno> {
        let len = piece.range.len();
        let place = Place { at: None, len, rights: READ_WRITE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let copy = unsafe { map(&place, flags, -1, 0)? } as usize;
        let replica = Self { piece: piece.clone(), copy };
        match segment {
            Some(fd) => replica.fill(fd)?,
            None if piece.rights & libc::PROT_READ != 0 => {
                // SAFETY: the kernel has just reported that the piece is mapped and readable, and
                // the copy is as long and distinct.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        piece.range.start as *const u8,
                        copy as *mut u8,
                        len,
                    );
                }
            }
            None => return Err(Errno::FAULT),
        }
        if piece.rights != READ_WRITE {
            // SAFETY: these are pages of the copy, which no thread uses yet.
            let done = unsafe { libc::mprotect(copy as *mut libc::c_void, len, piece.rights) };
            if done < 0 {
                return Err(last_error());
            }
        }
        Ok(replica)
    }

    /// Reads the segment's data; the rest is zero in both.
    fn fill(&self, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: the caller's descriptor stays open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let (start, end) = (self.piece.offset, self.piece.offset + self.piece.range.len() as u64);
        let mut at = start;
        while at < end {
            let data = match seek(file, at, libc::SEEK_DATA) {
                Err(Errno::NXIO) => return Ok(()),
                found => found?.min(end),
            };
            at = seek(file, data, libc::SEEK_HOLE)?.min(end);
            self.read(fd, data, at)?;
        }
        Ok(())
    }

    fn read(&self, fd: RawFd, mut from: u64, to: u64) -> Result<(), Errno> {
        while from < to {
            let offset = usize::try_from(from - self.piece.offset).map_err(|_| Errno::OVERFLOW)?;
            let len = usize::try_from(to - from).map_err(|_| Errno::OVERFLOW)?;
            let at = (self.copy + offset) as *mut libc::c_void;
            let file_offset = libc::off_t::try_from(from).map_err(|_| Errno::OVERFLOW)?;
            // SAFETY: `offset + len` is at most the length of the copy, which no other thread uses.
            let read = unsafe { libc::pread(fd, at, len, file_offset) };
            match u64::try_from(read) {
                Ok(0) => return Err(Errno::IO),
                Ok(read) => from += read,
                Err(_) => return Err(last_error()),
            }
        }
        Ok(())
    }

    /// Replaces the piece by the copy.
    ///
    /// # Errors
    /// An error of `mremap(2)`.
    ///
    /// # Safety
    /// The piece's memory may be replaced by this copy.
    pub(super) unsafe fn put(self) -> Result<(), Errno> {
        let len = self.piece.range.len();
        let (old, new) = (self.copy as *mut libc::c_void, self.piece.range.start);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the mapping that moves belongs to the replica, and the caller guarantees that the
        // target may be replaced.
        let moved = unsafe { libc::mremap(old, len, len, flags, new as *mut libc::c_void) };
        if moved == libc::MAP_FAILED {
            return Err(last_error());
        }
        // The mapping belongs to the program now.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the replica, and has not been moved.
        unsafe { libc::munmap(self.copy as *mut libc::c_void, self.piece.range.len()) };
    }
}
