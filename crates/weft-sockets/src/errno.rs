//! `errno`, and C's conventions for results.
//!
//! # Safety
//! `errno` is a variable of the calling thread.
#![allow(unsafe_code)]

use weft_sys::calls::io::Errno;

/// Sets `errno`.
pub(crate) fn set(errno: Errno) {
    set_raw(errno.raw_os_error());
}

pub(crate) fn set_raw(code: libc::c_int) {
    // SAFETY: `__errno_location` has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is to the calling thread's `errno`.
    unsafe { *place = code };
}

/// Returns `errno`.
pub(crate) fn get() -> libc::c_int {
    // SAFETY: `__errno_location` has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is to the calling thread's `errno`.
    unsafe { *place }
}

/// Returns the error of the last failed call.
pub(crate) fn last() -> Errno {
    Errno::from_raw_os_error(get())
}

/// Sets `errno` and returns -1.
pub(crate) fn fail(errno: Errno) -> libc::c_int {
    set(errno);
    -1
}

/// Converts a result to a byte count, or to -1 and `errno`.
pub(crate) fn count(result: Result<usize, Errno>) -> libc::ssize_t {
    match result {
        Ok(count) => libc::ssize_t::try_from(count).unwrap_or(libc::ssize_t::MAX),
        Err(errno) => {
            set(errno);
            -1
        }
    }
}
