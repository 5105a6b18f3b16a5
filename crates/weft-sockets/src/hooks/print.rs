//! Hooks of `dprintf(3)`, which writes inside the C library.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes. A `va_list` of the
//! x86-64 ABI is passed by its address, as in C. The two variadic functions lay out theirs as the
//! ABI says (System V, AMD64, 3.5.7).
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

/// Writes the formatted text to a known socket.
///
/// # Safety
/// Format and list are the program's, and match.
unsafe fn print(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: the caller guarantees a matching format and list; the text's address goes to a local
    // variable.
    let len = unsafe { vasprintf(&raw mut text, format, list) };
    let Ok(all) = usize::try_from(len) else { return len };
    let mut done = 0;
    while done < all {
        // SAFETY: `done` is below the length of the text.
        let rest = unsafe { text.add(done) };
        let buffer = libc::iovec { iov_base: rest.cast(), iov_len: all - done };
        // SAFETY: the buffer is the rest of the text, which this function owns.
        let ours = unsafe { deliver(fd, &raw const buffer, 1, 0) };
        // SAFETY: the buffer is the rest of the text, which this function owns.
        let sent = ours.unwrap_or_else(|| unsafe { libc::write(fd, rest.cast(), all - done) });
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) => break,
        }
    }
    // SAFETY: `vasprintf` has allocated the text.
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
