//! Waits that are cancellation points.
//!
//! # Safety
//! Programs call `pthread_cancel` on threads that wait in these libraries (libiscsi, rping). Only
//! the C library's own wrappers are cancellation points, and a cancelled thread is unwound from
//! inside the call. The libraries are built with `panic = "abort"`: a foreign unwind passes frames
//! without running their drops (and a `C-unwind` declaration would abort it). So no caller may hold
//! a lock here.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::calls::io::Errno;

/// Waits until one of the descriptors is readable, and returns which are. Without a `timeout` it
/// may wait for ever.
///
/// # Errors
/// `EINTR` after a signal.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let mut entries =
        fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let timeout = timeout.map(|limit| libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = N as libc::nfds_t;
    // SAFETY: `entries` is an array of `N` elements. `timeout` is null or points to a value that
    // lives until the end of this function. A null mask changes no signal mask. The descriptors
    // stay borrowed during the call.
    let count = unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, std::ptr::null()) };
    if count < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(entries.map(|entry| entry.revents != 0))
}
