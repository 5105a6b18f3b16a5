//! Pipes.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
pub use rustix::pipe::{PipeFlags, SpliceFlags};

use super::raw::{call, int, number};

/// Makes a pipe, and returns its reading and its writing end.
///
/// # Errors
/// Those of `pipe2(2)`.
pub fn pipe_with(flags: PipeFlags) -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends: [libc::c_int; 2] = [0; 2];
    let arguments = [ends.as_mut_ptr() as usize, flags.bits() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes two numbers to a local variable.
    unsafe { call(libc::SYS_pipe2, arguments) }?;
    // SAFETY: the kernel has just made both descriptors, and nothing else owns them.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((reader, writer))
}

/// Size of a pipe, in bytes (`F_GETPIPE_SZ`).
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_getpipe_size(pipe: impl AsFd) -> Result<usize, Errno> {
    // SAFETY: `F_GETPIPE_SZ` accesses no memory.
    unsafe { call(libc::SYS_fcntl, [number(&pipe), int(libc::F_GETPIPE_SZ), 0, 0, 0, 0]) }
}

/// Changes the size of a pipe (`F_SETPIPE_SZ`), and returns it.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn fcntl_setpipe_size(pipe: impl AsFd, size: usize) -> Result<usize, Errno> {
    // SAFETY: `F_SETPIPE_SZ` accesses no memory.
    unsafe { call(libc::SYS_fcntl, [number(&pipe), int(libc::F_SETPIPE_SZ), size, 0, 0, 0]) }
}

/// Copies what is in a pipe to another one, and returns the number of bytes.
///
/// # Errors
/// Those of `tee(2)`.
pub fn tee(from: impl AsFd, to: impl AsFd, len: usize, flags: SpliceFlags) -> Result<usize, Errno> {
    // SAFETY: the call accesses no memory of this process.
    unsafe { call(libc::SYS_tee, [number(&from), number(&to), len, flags.bits() as usize, 0, 0]) }
}
