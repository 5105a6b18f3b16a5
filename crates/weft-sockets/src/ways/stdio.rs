//! Which descriptors the C library has streams (`FILE`) of its own for. Such a stream reads and
//! writes by ways that no hook sees, so a connection that gets its number goes to TCP first.
//!
//! Numbers 0, 1 and 2 are those of `stdin`, `stdout` and `stderr` from the start.
//!
//! # Safety
//! `stdin` is the C library's, or a stream of ours; its first fields are read where the C library's
//! headers have them (`struct _IO_FILE`).
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::limits::FDS_MAX;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::{errno, identity, mode};

use super::leave;

/// A bit for each number from 3 on.
static FILES: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
/// A bit for each of the standard streams that is the C library's own.
static STANDARD: AtomicU32 = AtomicU32::new(0b111);

const STANDARD_END: RawFd = 3;

/// Notes that a stream of the C library's own has this number, or that none has it any more.
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

/// Whether a stream of the C library's own has this number.
pub(crate) fn has_file(fd: RawFd) -> bool {
    let Ok(number) = usize::try_from(fd) else { return false };
    if fd < STANDARD_END {
        return STANDARD.load(Ordering::Relaxed) & 1 << number != 0;
    }
    let word = FILES.get(number / 64).map(|word| word.load(Ordering::Relaxed));
    word.is_some_and(|word| word & 1 << (number % 64) != 0)
}

/// `fd` is about to be copied to the number `copy`.
pub(crate) fn copying(fd: RawFd, copy: RawFd) {
    if fd != copy && sockets::knows(fd) && has_file(copy) && !identity::is_borrowed() {
        leave(fd);
    }
}

/// `fd` has just become a socket of ours. Whether standard input is to read it by the hooks from
/// here on: some of it is in memory.
pub(crate) fn check(fd: RawFd) -> bool {
    if !has_file(fd) || !sockets::knows(fd) || identity::is_borrowed() || !mode::enabled() {
        return false;
    }
    leave(fd);
    fd == libc::STDIN_FILENO && has_rest(fd) && is_unused()
}

fn leave(fd: RawFd) {
    let before = errno::get();
    if let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        leave::stream(stream, fd, Reason::Stdio);
    } else {
        leave::one(fd, Reason::Stdio);
    }
    errno::set_raw(before);
}

fn has_rest(fd: RawFd) -> bool {
    match sockets::find(fd).as_deref() {
        Some(Kind::Stream(stream)) => stream.has_rest(),
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

/// Whether `stdin` has neither bytes that the program has not taken, nor an end or an error that it
/// has met.
fn is_unused() -> bool {
    const EOF_OR_ERROR: u32 = 0x30;
    // SAFETY: a word, read as the program itself reads it.
    let file = unsafe { stdin }.cast::<File>();
    if file.is_null() {
        return false;
    }
    // SAFETY: a stream begins with these fields.
    let file = unsafe { file.read_volatile() };
    file.read_place == file.read_end && file.flags & EOF_OR_ERROR == 0
}
