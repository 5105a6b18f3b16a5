//! The answers for emulated paths.
//!
//! # Safety
//! The program guarantees that places for results are valid. The C library calls used here do not
//! allocate.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::mem::MaybeUninit;

use crate::path::Ours;

/// Device numbers of verbs devices (`drivers/infiniband/core/uverbs_main.c`).
const MAJOR: c_uint = 231;
const MINOR: c_uint = 192;
const NODE_MODE: libc::mode_t = libc::S_IFCHR | 0o666;
const DIRECTORY_MODE: libc::mode_t = libc::S_IFDIR | 0o755;
const BLOCK: c_int = 4096;

fn fail(code: c_int) -> c_int {
    // SAFETY: `__errno_location` has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is to the calling thread's `errno`.
    unsafe { *errno = code };
    -1
}

/// Returns the mode and device number of a path that can be queried; `None` for attributes, which
/// are only read.
fn described(ours: Ours) -> Option<(libc::mode_t, (c_uint, c_uint))> {
    match ours {
        Ours::Node => Some((NODE_MODE, (MAJOR, MINOR))),
        Ours::NetDirectory(..) => Some((DIRECTORY_MODE, (0, 0))),
        Ours::GidType | Ours::GidInterface(..) => None,
    }
}

/// Answers `stat(2)`.
///
/// # Safety
/// `to` is the program's place for the result.
pub(crate) unsafe fn stat(ours: Ours, to: *mut libc::stat) -> Option<c_int> {
    let (mode, (major, minor)) = described(ours)?;
    // SAFETY: a structure of integers, for which zero is valid.
    let mut answer: libc::stat = unsafe { MaybeUninit::zeroed().assume_init() };
    answer.st_mode = mode;
    answer.st_nlink = 1;
    answer.st_rdev = libc::makedev(major, minor);
    answer.st_blksize = BLOCK.into();
    // SAFETY: the caller guarantees a valid place.
    unsafe { to.write(answer) };
    Some(0)
}

/// Answers `statx(2)`.
///
/// # Safety
/// `to` is the program's place for the result.
pub(crate) unsafe fn statx(ours: Ours, to: *mut libc::statx) -> Option<c_int> {
    let (mode, (major, minor)) = described(ours)?;
    // SAFETY: a structure of integers, for which zero is valid.
    let mut answer: libc::statx = unsafe { MaybeUninit::zeroed().assume_init() };
    answer.stx_mask = libc::STATX_BASIC_STATS;
    answer.stx_mode = mode as u16;
    answer.stx_nlink = 1;
    answer.stx_rdev_major = major;
    answer.stx_rdev_minor = minor;
    answer.stx_blksize = BLOCK.cast_unsigned();
    // SAFETY: the caller guarantees a valid place.
    unsafe { to.write(answer) };
    Some(0)
}

/// Answers `access(2)`: a node may be read and written, a directory read and searched.
pub(crate) fn access(ours: Ours, mode: c_int) -> Option<c_int> {
    let denied = match ours {
        Ours::Node => libc::X_OK,
        Ours::NetDirectory(..) => libc::W_OK,
        Ours::GidType | Ours::GidInterface(..) => return None,
    };
    Some(if mode & denied == 0 { 0 } else { fail(libc::EACCES) })
}

/// Opens an attribute: returns a file with its text.
///
/// # Safety
/// The name that `ours` points to is still there.
pub(crate) unsafe fn open(ours: Ours, flags: c_int) -> Option<c_int> {
    let (text, length) = match ours {
        Ours::GidInterface(name, length) => (name, length),
        Ours::GidType => gid_type(),
        Ours::Node | Ours::NetDirectory(..) => return None,
    };
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Some(fail(libc::EACCES));
    }
    let (fd, writing) = match text_file() {
        Ok(ends) => ends,
        Err(failed) => return Some(failed),
    };
    // A write of a few bytes to a new file can only fail for lack of memory; then the text is
    // empty.
    // SAFETY: the text has `length` readable bytes.
    unsafe { libc::write(writing, text.cast(), length) };
    // SAFETY: the literal has one readable byte.
    unsafe { libc::write(writing, c"\n".as_ptr().cast(), 1) };
    if writing == fd {
        // SAFETY: `lseek` takes no pointer.
        unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
    } else {
        // SAFETY: this is the writing end of the pipe, which only this function has.
        unsafe { libc::close(writing) };
    }
    Some(fd)
}

/// Creates an empty file: a memfd, or, where a filter refuses that, a pipe. Returns the descriptors
/// to read from and to write to; `Err` has the result of a failed open.
fn text_file() -> Result<(c_int, c_int), c_int> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"weft".as_ptr(), libc::MFD_CLOEXEC) };
    if fd >= 0 {
        return Ok((fd, fd));
    }
    let mut ends = [-1; 2];
    // SAFETY: the list has room for two descriptors.
    match unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
        0 => Ok((ends[0], ends[1])),
        failed => Err(failed),
    }
}

fn gid_type() -> (*const c_char, usize) {
    // SAFETY: the name is a C string. A program that changes its environment concurrently breaks
    // every `getenv`.
    let choice = unsafe { libc::getenv(c"WEFT_PRESENT".as_ptr()) };
    // SAFETY: `choice` is not NULL, and both are C strings.
    let is_iwarp = |choice| unsafe { libc::strcasecmp(choice, c"iwarp".as_ptr()) } == 0;
    let iwarp = !choice.is_null() && is_iwarp(choice);
    let text = if iwarp { c"IB/RoCE v1" } else { c"RoCE v2" };
    (text.as_ptr(), text.count_bytes())
}
