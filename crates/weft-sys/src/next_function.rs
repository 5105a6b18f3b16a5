//! Functions behind the hooks of a preloaded library.
//!
//! # Safety
//! [`NextFunction::address`] only looks up a name. The caller knows the function's type. Signal
//! sets consist of integers.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::cancellation::Uncancelled;
use crate::section::Section;
use crate::signal_lock::FAULTS;

/// A function of the libraries behind the calling one, which is looked up at its first use.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextFunction {
    /// The function with this name.
    #[must_use]
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function's address; NULL if no library has it. Several threads may look it up at the
    /// same time, with the same result.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.known();
        if known.is_null() { self.find() } else { known }
    }

    /// The function's address, for a library in whose sections handlers run: only those of the
    /// library that wraps the handlers defer them ([`Section`]). Signals are blocked instead, which
    /// costs two system calls at the first use. They are the C library's, because calls by hand may
    /// be reported.
    #[inline]
    pub fn unsectioned(&self) -> *mut c_void {
        let known = self.known();
        if known.is_null() { self.find_without_signals() } else { known }
    }

    /// The function's address if it has been looked up, else NULL.
    #[inline]
    pub fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Acquire)
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // A handler that jumped out of the lookup would leave the dynamic loader's lock taken.
        let _section = Section::begin();
        // SAFETY: the name is a C string that lives for ever. Finding a function neither allocates
        // nor changes `errno`. If it is missing, the program could not have called it without this
        // library either.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }

    #[cold]
    fn find_without_signals(&self) -> *mut c_void {
        let uncancelled = Uncancelled::begin();
        // SAFETY: a signal set consists of integers, for which zero is a valid value.
        let [mut blocked, mut before]: [libc::sigset_t; 2] = unsafe { std::mem::zeroed() };
        // SAFETY: the set is a local variable.
        unsafe { libc::sigfillset(&raw mut blocked) };
        for fault in FAULTS {
            // SAFETY: the set is a local variable, and has been filled.
            unsafe { libc::sigdelset(&raw mut blocked, fault) };
        }
        // SAFETY: both sets are local variables.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut before) };
        let found = self.find();
        drop(uncancelled); // A handler may jump out of the next call.
        // SAFETY: the set is a local variable, which the call before has filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
        found
    }
}

/// Makes a C string of a name that ends with a NUL, at compile time.
///
/// # Panics
/// If the only NUL is not at the end. The panic happens at compile time.
#[must_use]
pub const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one NUL, at the end"),
    }
}
