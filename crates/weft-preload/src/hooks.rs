//! The hooked functions of the C library.
//!
//! # Safety
//! Each has the signature of the function that it stands in front of, and hands its arguments on as
//! they are. `open` is variadic in C: the mode is declared here and always handed on, present or
//! not, in the register where it would be. Opening is a cancellation point, hence `C-unwind`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use libc::{mode_t, sockaddr, socklen_t};
use weft_sys::{NextFunction, c_name};

use crate::claim;
use crate::path::ours;
use crate::reply;

/// Defines hooks: an answer where there is one, and the next library's function otherwise.
macro_rules! hooks {
    ($($name:ident($($arg:ident: $type:ty),*) => $answer:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            static NEXT: NextFunction = NextFunction::new(c_name(concat!(stringify!($name), "\0")));
            // SAFETY: the program's path and place for the result.
            let answer = unsafe { $answer };
            if let Some(answer) = answer {
                return answer;
            }
            type Hooked = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            // SAFETY: NULL is `None`, and what is found by this name has this signature.
            let next = unsafe { transmute::<*mut c_void, Option<Hooked>>(NEXT.address()) };
            match next {
                // SAFETY: the program's own arguments.
                Some(next) => unsafe { next($($arg),*) },
                None => -1,
            }
        }
    )* };
}

/// # Safety
/// `path` is NULL or a C string, and `to` the program's place for the result.
unsafe fn stat_of(path: *const c_char, to: *mut libc::stat) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let found = unsafe { ours(path) }?;
    // SAFETY: the caller's promise.
    unsafe { reply::stat(found, to) }
}

/// # Safety
/// As for [`stat_of`].
unsafe fn statx_of(path: *const c_char, to: *mut libc::statx) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let found = unsafe { ours(path) }?;
    // SAFETY: the caller's promise.
    unsafe { reply::statx(found, to) }
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn access_of(path: *const c_char, mode: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    reply::access(unsafe { ours(path) }?, mode)
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn open_of(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let found = unsafe { ours(path) }?;
    // SAFETY: found in the path just now.
    unsafe { reply::open(found, flags) }
}

// On 64-bit systems the types of `stat64` are those of `stat`.
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

// What programs built against an older or a fortified C library call instead.
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

/// The function that a hook of this name and type stands in front of.
macro_rules! next {
    ($name:literal, $type:ty) => {{
        static NEXT: NextFunction = NextFunction::new(c_name(concat!($name, "\0")));
        // SAFETY: NULL is `None`, and what is found by this name has this signature.
        unsafe { transmute::<*mut c_void, Option<$type>>(NEXT.address()) }
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    type Hooked = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    let Some(next) = next!("bind", Hooked) else { return -1 };
    // SAFETY: the program's own arguments.
    let code = unsafe { next(fd, address, len) };
    // SAFETY: the kernel has just read the address. Any other failure than that of the port, such
    // as that of an address that cannot be read, is recognised before it is looked at.
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
