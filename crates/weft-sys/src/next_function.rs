//! The functions that hooks of a preloaded library stand in front of.
//!
//! # Safety
//! [`NextFunction::address`] only looks a name up; what to call it with is the caller's to know.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the libraries behind the calling one, looked up at its first use.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    /// The function of this name.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; NULL if no library has it. Any thread may look it up, also two at once: they
    /// find the same.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.known();
        if known.is_null() { self.find() } else { known }
    }

    /// Its address, if it has been looked up; else NULL.
    #[inline]
    pub fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Acquire)
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string. Finding a function neither allocates nor changes `errno`;
        // one that is missing is a call that the program could not have made without us.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Makes a C string of a name at compile time. The name ends with a NUL.
///
/// # Panics
/// If there is no NUL at the end, or one before it: when the program is compiled.
#[must_use]
pub const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one NUL, at the end"),
    }
}
