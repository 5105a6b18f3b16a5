//! Hooks of `liburing`, which makes its system calls by hand: it gets the same answer as a caller
//! of `io_uring_setup(2)`.
//!
//! These names are liburing's, not the C library's. A program with its own functions of these names
//! uses those.
//!
//! # Safety
//! Each function has the signature of the liburing function that it interposes, and passes its
//! arguments on unchanged.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, c_void, size_t};
use weft_sys::NextFunction;
use weft_sys::calls::io::Errno;

use crate::ways::rings;

/// Defines a hook that makes a ring by the next library's function, unless rings are refused.
macro_rules! ring {
    ($name:ident, $c_name:literal, ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            if rings::refuses_rings() {
                return -Errno::PERM.raw_os_error();
            }
            type Hooked = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            static NEXT: NextFunction = NextFunction::new($c_name);
            let next = NEXT.address();
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { std::mem::transmute::<*mut c_void, Option<Hooked>>(next) };
            // SAFETY: passes on the program's own arguments.
            next.map_or(-Errno::NOSYS.raw_os_error(), |next| unsafe { next($($argument),*) })
        }
    };
}
ring!(io_uring_setup, c"io_uring_setup", (entries: c_uint, parameters: *mut c_void));
ring!(
    io_uring_queue_init,
    c"io_uring_queue_init",
    (entries: c_uint, ring: *mut c_void, flags: c_uint)
);
ring!(
    io_uring_queue_init_params,
    c"io_uring_queue_init_params",
    (entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
);
ring!(
    io_uring_queue_init_mem,
    c"io_uring_queue_init_mem",
    (entries: c_uint, ring: *mut c_void, parameters: *mut c_void, place: *mut c_void, len: size_t)
);
