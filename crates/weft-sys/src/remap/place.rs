//! Finds the mappings of this process's segments, and makes mappings.
//!
//! # Safety
//! Only [`map`] maps; its caller guarantees that the memory at that address may be replaced.
#![allow(unsafe_code)]

use std::ops::{ControlFlow, Range};
use std::os::fd::RawFd;

use crate::calls::io::Errno;
use crate::forkable::Forkable;
use crate::maps::{self, Entry};

/// Length of a page in bytes.
pub(super) const PAGE: usize = 4_096;
pub(super) const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// An address range and rights for a mapping.
pub(super) struct Place {
    /// `None` lets the kernel choose the address.
    pub(super) at: Option<usize>,
    pub(super) len: usize,
    pub(super) rights: libc::c_int,
}

/// # Safety
/// What is mapped at `place.at` may be replaced.
pub(super) unsafe fn map(
    place: &Place,
    flags: libc::c_int,
    fd: RawFd,
    offset: u64,
) -> Result<*mut libc::c_void, Errno> {
    let addr = place.at.unwrap_or(0) as *mut libc::c_void;
    let flags = if place.at.is_some() { flags | libc::MAP_FIXED } else { flags };
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the caller guarantees that the memory at `place.at` may be replaced; without an
    // address the kernel replaces nothing.
    let mapped = unsafe { libc::mmap(addr, place.len, place.rights, flags, fd, offset) };
    if mapped == libc::MAP_FAILED { Err(last_error()) } else { Ok(mapped) }
}

pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A mapping of a segment.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<usize>,
    pub(super) rights: libc::c_int,
    pub(super) inode: u64,
    pub(super) offset: u64,
}

/// All mappings of this process's segments that are `wanted`.
pub(super) fn pieces(wanted: impl Fn(&Entry<'_>) -> bool) -> Result<Vec<Piece>, Errno> {
    let name = Name::own();
    let mut pieces = Vec::new();
    maps::visit(&(0..usize::MAX), &mut |entry| {
        if name.is_of(entry) && wanted(entry) {
            let Entry { rights, inode, offset, .. } = *entry;
            pieces.push(Piece { range: entry.range.clone(), rights, inode, offset });
        }
        ControlFlow::Continue(())
    })?;
    Ok(pieces)
}

/// The name of this process's segments. A child uses another name for its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(pub(super) [u8; NAME_LEN]);

const NAME_PREFIX: &str = "weft-region-";
const NAME_LEN: usize = NAME_PREFIX.len() + 16;

impl Name {
    pub(super) fn own() -> Self {
        static NAME: Forkable<Name> = Forkable::new(|| {
            let mut random = [0; 8];
            // If there are no random bytes, a child's segments get the name of the parent's, which
            // it does not have.
            let _ = crate::calls::rand::getrandom(
                &mut random,
                crate::calls::rand::GetRandomFlags::empty(),
            );
            let name = format!("{NAME_PREFIX}{:016x}", u64::from_ne_bytes(random));
            Name(name.as_bytes().try_into().unwrap_or([b'?'; NAME_LEN]))
        });
        *NAME.get()
    }

    pub(super) fn is_of(&self, entry: &Entry<'_>) -> bool {
        let name = entry.name.strip_prefix(b"/memfd:");
        let name = name.and_then(|rest| rest.strip_suffix(b" (deleted)"));
        entry.is_shared && name == Some(&self.0[..])
    }
}
