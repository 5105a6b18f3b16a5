//! The error conventions of verbs calls: return an `errno`, or set it and return NULL or -1.
//!
//! # Safety
//! The C library's `errno` is thread-local; its address is valid while the thread runs.
#![allow(unsafe_code)]

use std::ffi::c_int;

use weft_engine::{Errno, Result};

/// Sets the calling thread's `errno`.
pub(crate) fn set(error: Errno) {
    // SAFETY: `__errno_location` has no preconditions; it returns the address of this thread's
    // `errno`.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid and belongs to this thread alone.
    unsafe { *location = error.raw_os_error() };
}

/// The convention of most calls: returns 0, or the `errno`. It sets `errno` as well, as the
/// providers of rdma-core do.
pub(crate) fn returned(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            error.raw_os_error()
        }
    }
}

/// The convention of calls that return an object: returns the pointer, or NULL with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| {
        set(error);
        std::ptr::null_mut()
    })
}

/// The convention of the oldest calls: returns 0, or -1 with `errno` set.
pub(crate) fn minus_one(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}
