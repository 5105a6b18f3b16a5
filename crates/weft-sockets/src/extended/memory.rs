//! Memory that peers can map, and mappings of peers' memory.
//!
//! A peer opens a segment through this process's descriptor in `/proc`. So nothing has to be sent,
//! and nothing is left when the process is killed. The peer checks that the file is a sealed
//! segment with the inode that the owner has named, so that it cannot shrink under the mapping.
//!
//! # Safety
//! Only the fork handlers freeze and thaw the lock.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use weft_stream::Grant;
use weft_sys::calls::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, fstat, open, stat};
use weft_sys::calls::io::Errno;
use weft_sys::{SharedMemory, SignalLock};

const PAGE: usize = 4_096;

/// A segment of this process, or of its parent from before the fork.
#[derive(Debug)]
struct Segment {
    memory: SharedMemory,
    fd: OwnedFd,
    inode: u64,
}

static OWN: SignalLock<Vec<Segment>> = SignalLock::new(Vec::new());

/// Allocates a segment of whole pages and returns its address.
pub(crate) fn allocate(len: usize) -> Result<usize, Errno> {
    let len = len.checked_next_multiple_of(PAGE).filter(|&len| len > 0).ok_or(Errno::INVAL)?;
    let (memory, fd) = SharedMemory::create(len)?;
    // Reserve the pages now: a later fault without memory would be a SIGBUS.
    fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(|_| Errno::NOMEM)?;
    let inode = fstat(&fd)?.st_ino;
    let addr = memory.addr();
    OWN.lock().push(Segment { memory, fd, inode });
    Ok(addr)
}

/// Frees the segment at an address.
pub(crate) fn release(addr: usize) -> Result<(), Errno> {
    let mut own = OWN.lock();
    let at = own.iter().position(|segment| segment.memory.addr() == addr).ok_or(Errno::INVAL)?;
    let segment = own.swap_remove(at);
    drop(own);
    drop(segment);
    Ok(())
}

/// Describes a part of a segment to a peer.
pub(crate) fn describe(addr: usize, len: usize, rights: u32) -> Result<Grant, Errno> {
    let own = OWN.lock();
    let found = own.iter().find_map(|segment| {
        let offset = addr.checked_sub(segment.memory.addr())?;
        let inside = offset.checked_add(len)? <= segment.memory.len();
        inside.then_some((segment, offset))
    });
    let (segment, offset) = found.ok_or(Errno::INVAL)?;
    Ok(Grant {
        pid: std::process::id(),
        fd: segment.fd.as_raw_fd().unsigned_abs(),
        inode: segment.inode,
        offset: offset as u64,
        len: len as u64,
        rights,
    })
}

/// Maps a peer's segment. The peer may have described anything.
pub(crate) fn map(grant: &Grant, writable: bool) -> Result<SharedMemory, Errno> {
    let path = format!("/proc/{}/fd/{}", grant.pid, grant.fd);
    let denied = |errno| if errno == Errno::ACCESS { Errno::PERM } else { Errno::STALE };
    // The type is checked before the open, because opening a device may have side effects.
    let status = stat(&path).map_err(denied)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile
        || status.st_ino != grant.inode
    {
        return Err(Errno::STALE);
    }
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open(&path, flags, Mode::empty()).map_err(denied)?;
    let status = fstat(&fd)?;
    if status.st_ino != grant.inode {
        return Err(Errno::STALE);
    }
    let len = usize::try_from(status.st_size).map_err(|_| Errno::STALE)?;
    let inside = grant.offset.checked_add(grant.len).is_some_and(|end| end <= len as u64);
    if !inside {
        return Err(Errno::STALE);
    }
    SharedMemory::open(fd.as_fd(), len, writable).map_err(|errno| match errno {
        Errno::NOMEM => Errno::NOMEM,
        _ => Errno::STALE,
    })
}

/// Locks the list before a fork, so that no other thread is in the middle of a change.
pub(crate) fn freeze() {
    OWN.freeze();
}

/// Unlocks it after the fork, in the parent and in the child.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`freeze`].
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller has frozen `OWN`.
    unsafe { OWN.thaw() };
}
