//! Lists directories.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use rustix::io::{Errno, Result};

use crate::wire::record_name::Name;

/// Size of the buffer for directory entries.
const BUFFER_LEN: usize = 32 << 10;

/// Appends all names of an open directory except `.` and `..` with their types, in any order.
///
/// # Errors
/// An error of the kernel. The names before it have been appended.
pub(crate) fn list(dir: impl AsFd, names: &mut Vec<(Name, FileType)>) -> Result<()> {
    seek(&dir, SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_LEN];
    let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
            names.push((name, entry.file_type()));
        }
    }
    Ok(())
}
