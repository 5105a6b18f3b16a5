//! The C library's own functions, behind the hooks.
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
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.known();
        if known.is_null() { self.find() } else { known }
    }

    /// Its address, if it has been looked up.
    #[inline]
    pub(crate) fn known(&self) -> *mut c_void {
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

/// Makes a C string of a name at compile time.
pub(crate) const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one NUL, at the end"),
    }
}

/// Calls the next library's function of a name: `next!(read(fd: c_int, ...) -> ssize_t)`. Its
/// arguments are the caller's own variables of those names. Fails with `ENOSYS` if there is none.
macro_rules! next {
    ($name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {{
        static NEXT: $crate::next::Next =
            $crate::next::Next::new($crate::next::c_name(concat!(stringify!($name), "\0")));
        // Not "C-unwind": a thread that is cancelled leaves our frames as it leaves those of C.
        type Hooked = unsafe extern "C" fn($($type),*) -> $result;
        // SAFETY: NULL is `None`, and what is found by this name has this signature.
        let next = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, Option<Hooked>>(NEXT.address())
        };
        match next {
            // SAFETY: the program's own arguments.
            Some(next) => unsafe { next($($arg),*) },
            None => {
                $crate::errno::set(rustix::io::Errno::NOSYS);
                -1
            }
        }
    }};
}
pub(crate) use next;
