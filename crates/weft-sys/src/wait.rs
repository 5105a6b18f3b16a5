//! Waiting that a program may cancel.
//!
//! # Safety
//! Programs call `pthread_cancel` on threads that wait in us (libiscsi, rping). Only the C library's
//! own wrappers are cancellation points, and a cancelled thread is unwound from inside the call:
//! hence the `C-unwind` declaration, and no caller may hold a lock across it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: libc::c_int) -> libc::c_int;
}

/// Waits until one of the descriptors is readable and says which are; `timeout` `None` is for ever.
///
/// # Errors
/// `EINTR` after a signal.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let mut entries =
        fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let timeout_ms =
        timeout.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: `entries` is a valid array of `N` elements, and the descriptors are borrowed for the
    // whole call.
    let count = unsafe { poll(entries.as_mut_ptr(), N as libc::nfds_t, timeout_ms) };
    if count < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(entries.map(|entry| entry.revents != 0))
}
