//! Converts file metadata of the kernel to fields of entries.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat, fgetxattr, flistxattr};
use rustix::io::{Errno, Result};

use crate::limits::{XATTR_VALUE_LEN_MAX, XATTRS_LEN_MAX, XATTRS_MAX};
use crate::wire::record::{Time, Xattr};

/// Length of the length fields of one extended attribute in a record.
const HEAD_LEN: usize = 5;

/// The time of the last change of the contents.
#[must_use]
pub fn mtime(stat: &Stat) -> Time {
    Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
}

/// The time of the last read.
#[must_use]
pub fn atime(stat: &Stat) -> Time {
    Time { seconds: stat.st_atime, nanoseconds: stat.st_atime_nsec as u32 }
}

/// Permissions with the set-user-ID, set-group-ID and sticky bits.
#[must_use]
pub fn mode(stat: &Stat) -> u16 {
    (stat.st_mode & 0o7777) as u16
}

/// The size in bytes.
#[must_use]
pub fn size(stat: &Stat) -> u64 {
    stat.st_size as u64
}

/// The bytes that are free if a name is removed.
#[must_use]
pub fn size_of_last(stat: &Stat) -> u64 {
    let is_last = kind(stat) == FileType::RegularFile && stat.st_nlink == 1;
    if is_last { size(stat) } else { 0 }
}

/// The file type.
#[must_use]
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether the file occupies less space than its size, so that it may have holes.
#[must_use]
pub fn may_have_holes(stat: &Stat) -> bool {
    (stat.st_blocks as u64).saturating_mul(512) < size(stat)
}

/// Returns the process's umask. If it is unknown, returns all bits, so that modes are set
/// explicitly.
pub(crate) fn umask() -> u16 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = text.lines();
    let digits = lines.find_map(|line| line.strip_prefix("Umask:"));
    digits.and_then(|digits| u16::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o777)
}

/// Returns all extended attributes of an open file, sorted by name.
///
/// # Errors
/// An error of the kernel; `E2BIG` if their encoding would exceed `len_max`. A file system without
/// support for them returns an empty list.
pub fn xattrs(fd: BorrowedFd<'_>, len_max: usize) -> Result<Vec<Xattr>> {
    let mut list = vec![0_u8; XATTRS_LEN_MAX];
    let len = match flistxattr(fd, &mut list[..]) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(Errno::RANGE) => return Err(Errno::TOOBIG),
        other => other?,
    };
    let mut names: Vec<&[u8]> = list[..len].split(|&byte| byte == 0).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    let (mut xattrs, mut total) = (Vec::new(), 0);
    for name in names {
        let value = match xattr(fd, name) {
            // The attribute was removed, or this process may not read it.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => continue,
            other => other?,
        };
        total += HEAD_LEN + name.len() + value.len();
        if xattrs.len() == XATTRS_MAX || total > XATTRS_LEN_MAX.min(len_max) {
            return Err(Errno::TOOBIG);
        }
        xattrs.push(Xattr { name: name.into(), value });
    }
    Ok(xattrs)
}

fn xattr(fd: impl AsFd, name: &[u8]) -> Result<Box<[u8]>> {
    let mut value = Vec::with_capacity(256);
    loop {
        value.clear();
        match fgetxattr(&fd, name, rustix::buffer::spare_capacity(&mut value)) {
            Err(Errno::RANGE) if value.capacity() < XATTR_VALUE_LEN_MAX => {
                value.reserve(XATTR_VALUE_LEN_MAX);
            }
            other => return other.map(|_| value.into()),
        }
    }
}

/// What the sizes of the files of a file system say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// How long the files are.
    True,
    /// Nothing: the file system makes the contents when they are read.
    Unknown,
    /// Nothing if they are zero.
    UnknownIfZero,
}

/// `/proc`, `/sys`, debugfs, tracefs, the control groups, securityfs, configfs, SELinux, resctrl.
const GENERATED: [i64; 10] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_e0eb,
    0x6367_7270,
    0x7363_6673,
    0x6265_6570,
    0xf97c_ff8c,
    0x0765_5821,
];
/// File systems in user space, some of which make contents, too.
const FUSE: i64 = 0x6573_5546;

/// Returns what the sizes of files say in the file system of a file.
pub(crate) fn sizes(fd: impl AsFd) -> Result<Sizes> {
    let kind = rustix::fs::fstatfs(fd)?.f_type & 0xffff_ffff;
    Ok(match kind {
        FUSE => Sizes::UnknownIfZero,
        kind if GENERATED.contains(&kind) => Sizes::Unknown,
        _ => Sizes::True,
    })
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
