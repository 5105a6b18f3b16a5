//! Descriptors of any kind.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd, RawFd};

pub use rustix::io::{Errno, FdFlags, retry_on_intr};
pub use rustix::stdio::stderr;

pub use super::data::{read, write};
use super::raw::{call, int, number, open_by};

/// Duplicates a descriptor, to a number of at least `least` (`F_DUPFD_CLOEXEC`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_dupfd_cloexec(fd: impl AsFd, least: RawFd) -> Result<OwnedFd, Errno> {
    let arguments = [number(&fd), int(libc::F_DUPFD_CLOEXEC), int(least), 0, 0, 0];
    // SAFETY: the call accesses no memory, and returns a new descriptor.
    unsafe { open_by(libc::SYS_fcntl, arguments) }
}

/// The flags of a descriptor (`F_GETFD`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_getfd(fd: impl AsFd) -> Result<FdFlags, Errno> {
    // SAFETY: `F_GETFD` accesses no memory.
    let flags = unsafe { call(libc::SYS_fcntl, [number(&fd), int(libc::F_GETFD), 0, 0, 0, 0]) };
    flags.map(|flags| FdFlags::from_bits_retain(flags as u32))
}

/// Number of bytes that can be read at once (`FIONREAD`).
///
/// # Errors
/// Those of `ioctl(2)`.
pub fn ioctl_fionread(fd: impl AsFd) -> Result<u64, Errno> {
    let mut bytes: libc::c_int = 0;
    let place = &raw mut bytes as usize;
    // SAFETY: the request writes an int, and `bytes` is one that lives during the call.
    unsafe { call(libc::SYS_ioctl, [number(&fd), libc::FIONREAD as usize, place, 0, 0, 0]) }?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}
