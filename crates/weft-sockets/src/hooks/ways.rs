//! Functions of the C library that the other hooks do not look at: namespaces and programs by a
//! directory's descriptor.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_char, c_int};

use crate::next::next;
use crate::ways::process;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    process::unsharing(flags);
    next!(unshare(flags: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    process::entering();
    next!(setns(fd: c_int, kind: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execveat(
    from: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    list: *const *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { process::execveat(from, path, arguments, list, flags) }
}
