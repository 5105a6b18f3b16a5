//! The functions that the hooks stand in front of.
//!
//! # Safety
//! A function found by name has the signature of the C library's of that name.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the libraries behind this one, looked up at its first use.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; NULL if no library has it. Any thread may look it up, also two at once: they
    /// find the same.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string. Finding a function neither allocates nor changes `errno`;
        // one that is missing is a call that the program could not have made without us.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}
