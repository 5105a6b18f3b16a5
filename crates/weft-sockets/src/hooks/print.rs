//! `dprintf(3)`, which writes by a way of the C library's own.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of. A `va_list` of
//! this processor's ABI is handed on by its address, as C does. The two variadic ones lay theirs
//! out as the ABI says (System V, AMD64, 3.5.7).
#![allow(unsafe_code)]

use std::arch::naked_asm;

use libc::{c_char, c_int, c_void};

use super::data::deliver;
use super::variadic::variadic;
use crate::next::next;
use crate::sockets;

unsafe extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
}

/// Writes the text to a socket of ours.
///
/// # Safety
/// Format and list are the program's, and fit each other.
unsafe fn print(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: guaranteed by the caller; the place for the text is a local variable.
    let len = unsafe { vasprintf(&raw mut text, format, list) };
    let Ok(all) = usize::try_from(len) else { return len };
    let mut done = 0;
    while done < all {
        // SAFETY: within the text.
        let rest = unsafe { text.add(done) };
        let buffer = libc::iovec { iov_base: rest.cast(), iov_len: all - done };
        // SAFETY: the text is ours.
        let ours = unsafe { deliver(fd, &raw const buffer, 1, 0) };
        // SAFETY: the text is ours.
        let sent = ours.unwrap_or_else(|| unsafe { libc::write(fd, rest.cast(), all - done) });
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) => break,
        }
    }
    // SAFETY: allocated by `vasprintf`.
    unsafe { libc::free(text.cast()) };
    if done < all { -1 } else { len }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    if sockets::knows(fd) {
        // SAFETY: the program's own arguments.
        return unsafe { print(fd, format, list) };
    }
    next!(vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    if sockets::knows(fd) {
        // SAFETY: the program's own arguments.
        return unsafe { print(fd, format, list) };
    }
    next!(__vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void
    ) -> c_int)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dprintf() {
    variadic!("16", "rdx", vdprintf)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __dprintf_chk() {
    variadic!("24", "rcx", __vdprintf_chk)
}
