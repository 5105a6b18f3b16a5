//! `errno`, and results of calls as C has them.
//!
//! # Safety
//! `errno` is the calling thread's own.
#![allow(unsafe_code)]

use rustix::io::Errno;

/// Sets `errno`.
pub(crate) fn set(errno: Errno) {
    set_raw(errno.raw_os_error());
}

pub(crate) fn set_raw(code: libc::c_int) {
    // SAFETY: the address of this thread's `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's own.
    unsafe { *place = code };
}

/// What `errno` is now.
pub(crate) fn get() -> libc::c_int {
    // SAFETY: the address of this thread's `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's own.
    unsafe { *place }
}

/// The error of the last call that failed.
pub(crate) fn last() -> Errno {
    Errno::from_raw_os_error(get())
}

/// -1 and `errno`.
pub(crate) fn fail(errno: Errno) -> libc::c_int {
    set(errno);
    -1
}

/// A count of bytes as C has it.
pub(crate) fn count(result: Result<usize, Errno>) -> libc::ssize_t {
    match result {
        Ok(count) => libc::ssize_t::try_from(count).unwrap_or(libc::ssize_t::MAX),
        Err(errno) => {
            set(errno);
            -1
        }
    }
}
