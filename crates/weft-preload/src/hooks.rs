//! The hooked functions of the C library.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. `open` is variadic in C: the mode is always declared and passed on here,
//! in the register where it would be. Opening is a cancellation point, hence `C-unwind`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use libc::{mode_t, sockaddr, socklen_t};
use weft_sys::{NextFunction, c_name};

use crate::claim;
use crate::path::ours;
use crate::reply;

/// Defines hooks: each returns an answer of Weft's if there is one, and otherwise calls the next
/// library's function.
macro_rules! hooks {
    ($($name:ident($($arg:ident: $type:ty),*) => $answer:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            static NEXT: NextFunction = NextFunction::new(c_name(concat!(stringify!($name), "\0")));
            // SAFETY: the program passes a C string or NULL, and a valid place for the result.
            let answer = unsafe { $answer };
            if let Some(answer) = answer {
                return answer;
            }
            type Hooked = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            // SAFETY: NULL becomes `None`, and the C library's function of this name has this
            // signature.
            let next = unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.unsectioned()) };
            match next {
                // SAFETY: passes on the program's own arguments.
                Some(next) => unsafe { next($($arg),*) },
                None => -1,
            }
        }
    )* };
}

/// # Safety
/// `path` is NULL or a C string, and `to` is the program's place for the result.
unsafe fn stat_of(path: *const c_char, to: *mut libc::stat) -> Option<c_int> {
    // SAFETY: the caller guarantees NULL or a C string.
    let found = unsafe { ours(path) }?;
    // SAFETY: the caller guarantees a valid place.
    unsafe { reply::stat(found, to) }
}

/// # Safety
/// `path` is NULL or a C string, and `to` is the program's place for the result.
unsafe fn statx_of(path: *const c_char, to: *mut libc::statx) -> Option<c_int> {
    // SAFETY: the caller guarantees NULL or a C string.
    let found = unsafe { ours(path) }?;
    // SAFETY: the caller guarantees a valid place.
    unsafe { reply::statx(found, to) }
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn access_of(path: *const c_char, mode: c_int) -> Option<c_int> {
    // SAFETY: the caller guarantees NULL or a C string.
    reply::access(unsafe { ours(path) }?, mode)
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn open_of(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller guarantees NULL or a C string.
    let found = unsafe { ours(path) }?;
    // SAFETY: a name in `found` is a part of the path, which is still there.
    unsafe { reply::open(found, flags) }
}

// On 64-bit systems `stat64` takes the same types as `stat`.
hooks! {
    stat(path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    stat64(path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    lstat(path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    lstat64(path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) =>
        stat_of(path, to);
    fstatat64(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) =>
        stat_of(path, to);
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx) =>
        statx_of(path, to);
    access(path: *const c_char, mode: c_int) => access_of(path, mode);
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) =>
        access_of(path, mode);
    open(path: *const c_char, flags: c_int, mode: mode_t) => open_of(path, flags);
    open64(path: *const c_char, flags: c_int, mode: mode_t) => open_of(path, flags);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) => open_of(path, flags);
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) => open_of(path, flags);
}

// Functions that programs built against an older or a fortified C library call instead.
hooks! {
    __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    __lxstat(version: c_int, path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    __lxstat64(version: c_int, path: *const c_char, to: *mut libc::stat) => stat_of(path, to);
    __fxstatat(
        version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int
    ) => stat_of(path, to);
    __fxstatat64(
        version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int
    ) => stat_of(path, to);
    __open_2(path: *const c_char, flags: c_int) => open_of(path, flags);
    __open64_2(path: *const c_char, flags: c_int) => open_of(path, flags);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) => open_of(path, flags);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) => open_of(path, flags);
}

/// Looks up the next library's function of this name and type.
macro_rules! next {
    ($name:literal, $type:ty) => {{
        static NEXT: NextFunction = NextFunction::new(c_name(concat!($name, "\0")));
        // SAFETY: NULL becomes `None`, and the C library's function of this name has this
        // signature.
        unsafe { transmute::<*mut c_void, Option<$type>>(NEXT.unsectioned()) }
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    type Hooked = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    let Some(next) = next!("bind", Hooked) else { return -1 };
    // SAFETY: the program's own arguments.
    let code = unsafe { next(fd, address, len) };
    // SAFETY: `is_free_now` reads the address only after EADDRINUSE, when the kernel has just read
    // it successfully.
    if code != 0 && unsafe { claim::is_free_now(address, len) } {
        // SAFETY: the program's own arguments.
        return unsafe { next(fd, address, len) };
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    type Hooked = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let Some(next) = next!("listen", Hooked) else { return -1 };
    // SAFETY: the program's own arguments.
    let code = unsafe { next(fd, backlog) };
    if code != 0 && claim::is_socket_free_now(fd) {
        // SAFETY: the program's own arguments.
        return unsafe { next(fd, backlog) };
    }
    code
}
