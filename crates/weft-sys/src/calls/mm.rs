//! Mappings of memory.
//!
//! # Safety
//! The caller guarantees what a call does to memory, as its manual page requires.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
pub use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::raw::{call, number};

/// Maps a part of a file.
///
/// # Errors
/// Those of `mmap(2)`.
///
/// # Safety
/// Those of `mmap(2)`: with `MAP_FIXED` the caller owns the range; nobody uses what was mapped
/// there before.
pub unsafe fn mmap(
    at: *mut c_void,
    len: usize,
    access: ProtFlags,
    flags: MapFlags,
    file: impl AsFd,
    offset: u64,
) -> Result<*mut c_void, Errno> {
    let (access, flags) = (access.bits() as usize, flags.bits() as usize);
    let arguments = [at as usize, len, access, flags, number(&file), offset as usize];
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_mmap, arguments) }.map(|at| at as *mut c_void)
}

/// Maps zeros.
///
/// # Errors
/// Those of `mmap(2)`.
///
/// # Safety
/// Those of [`mmap`].
pub unsafe fn mmap_anonymous(
    at: *mut c_void,
    len: usize,
    access: ProtFlags,
    flags: MapFlags,
) -> Result<*mut c_void, Errno> {
    let flags = flags.bits() as usize | libc::MAP_ANONYMOUS as usize;
    let arguments = [at as usize, len, access.bits() as usize, flags, usize::MAX, 0];
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_mmap, arguments) }.map(|at| at as *mut c_void)
}

/// Unmaps a range.
///
/// # Errors
/// Those of `munmap(2)`.
///
/// # Safety
/// Nobody uses the range.
pub unsafe fn munmap(at: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) }.map(drop)
}

/// Changes how a range can be accessed.
///
/// # Errors
/// Those of `mprotect(2)`.
///
/// # Safety
/// Nobody accesses the range in a way that is no longer allowed.
pub unsafe fn mprotect(at: *mut c_void, len: usize, access: MprotectFlags) -> Result<(), Errno> {
    let arguments = [at as usize, len, access.bits() as usize, 0, 0, 0];
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_mprotect, arguments) }.map(drop)
}

/// Tells the kernel how a range is used.
///
/// # Errors
/// Those of `madvise(2)`.
///
/// # Safety
/// Nobody relies on what the advice discards.
pub unsafe fn madvise(at: *mut c_void, len: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_madvise, [at as usize, len, advice as usize, 0, 0, 0]) }.map(drop)
}
