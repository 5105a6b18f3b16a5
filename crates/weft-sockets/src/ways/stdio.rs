//! The descriptors of the C library's own streams (`FILE`). Such a stream reads and writes unseen,
//! so a connection that gets its number falls back to TCP first.
//!
//! Initially 0, 1 and 2 are the descriptors of `stdin`, `stdout` and `stderr`.
//!
//! # Safety
//! `stdin` is a stream of the C library's, or one with Weft's functions. Its first fields are at
//! the offsets of the C library's headers (`struct _IO_FILE`).
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::limits::FDS_MAX;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::{errno, identity, mode};

use super::fallback;

/// One bit for each descriptor from 3 on.
static FILES: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
/// One bit for each standard stream that is the C library's own.
static STANDARD: AtomicU32 = AtomicU32::new(0b111);

const STANDARD_END: RawFd = 3;

/// Records whether a stream of the C library's own uses this descriptor.
pub(crate) fn note(fd: RawFd, is_file: bool) {
    let Ok(number) = usize::try_from(fd) else { return };
    if fd < STANDARD_END {
        let bit = 1 << number;
        if is_file {
            STANDARD.fetch_or(bit, Ordering::Relaxed);
        } else {
            STANDARD.fetch_and(!bit, Ordering::Relaxed);
        }
    } else if let Some(word) = FILES.get(number / 64) {
        let bit = 1 << (number % 64);
        if is_file {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Returns whether a stream of the C library's own uses this descriptor.
pub(crate) fn has_file(fd: RawFd) -> bool {
    let Ok(number) = usize::try_from(fd) else { return false };
    if fd < STANDARD_END {
        return STANDARD.load(Ordering::Relaxed) & 1 << number != 0;
    }
    let word = FILES.get(number / 64).map(|word| word.load(Ordering::Relaxed));
    word.is_some_and(|word| word & 1 << (number % 64) != 0)
}

/// Has `fd` fall back before it is duplicated to the number `copy` of a stream.
pub(crate) fn copying(fd: RawFd, copy: RawFd) {
    if fd != copy && sockets::knows(fd) && has_file(copy) && !identity::is_borrowed() {
        fall_back_to_tcp(fd);
    }
}

/// Checks whether `fd`, which has just become a known socket, is used by a stream, and falls back
/// if so. Returns whether standard input has to read through the hooks, because memory has unread
/// data.
pub(crate) fn check(fd: RawFd) -> bool {
    if !has_file(fd) || !sockets::knows(fd) || identity::is_borrowed() || !mode::enabled() {
        return false;
    }
    fall_back_to_tcp(fd);
    fd == libc::STDIN_FILENO && has_unread(fd) && is_unused()
}

fn fall_back_to_tcp(fd: RawFd) {
    let before = errno::get();
    if let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        fallback::stream(stream, fd, Reason::Stdio);
    } else {
        fallback::one(fd, Reason::Stdio);
    }
    errno::set_raw(before);
}

fn has_unread(fd: RawFd) -> bool {
    match sockets::find(fd).as_deref() {
        Some(Kind::Stream(stream)) => stream.has_unread(),
        _ => false,
    }
}

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
}

/// The first fields of a stream.
#[repr(C)]
struct File {
    flags: u32,
    read_place: usize,
    read_end: usize,
}

/// Returns whether `stdin` has no buffered bytes, and has met neither an end nor an error.
fn is_unused() -> bool {
    const EOF_OR_ERROR: u32 = 0x30;
    // SAFETY: reads one pointer, as the program itself does.
    let file = unsafe { stdin }.cast::<File>();
    if file.is_null() {
        return false;
    }
    // SAFETY: not NULL, so it is a stream, which begins with these fields.
    let file = unsafe { file.read_volatile() };
    file.read_place == file.read_end && file.flags & EOF_OR_ERROR == 0
}
