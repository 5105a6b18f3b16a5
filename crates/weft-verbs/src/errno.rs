//! How verbs calls report failure: by an `errno` returned, or set beside NULL or -1.
//!
//! # Safety
//! The C library's `errno` is a thread's own variable; its address is valid while the thread runs.
#![allow(unsafe_code)]

use std::ffi::c_int;

use weft_engine::{Errno, Result};

/// Sets the calling thread's `errno`.
pub(crate) fn set(error: Errno) {
    // SAFETY: takes no argument and returns the address of this thread's `errno`.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid and belongs to this thread alone.
    unsafe { *location = error.raw_os_error() };
}

/// The convention of most calls: 0, or the `errno` as the return value. `errno` is set as well,
/// because the provider calls that programs were written against do so.
pub(crate) fn returned(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            error.raw_os_error()
        }
    }
}

/// The convention of calls that return an object: the pointer, or NULL with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| {
        set(error);
        std::ptr::null_mut()
    })
}

/// The convention of the oldest calls: 0, or -1 with `errno` set.
pub(crate) fn minus_one(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}
