//! Names in a directory.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use rustix::io::{Errno, Result};

use crate::wire::record_name::Name;

/// Bytes that the kernel lists at a time.
const BUFFER_LEN: usize = 32 << 10;

/// Appends all names of an open directory but `.` and `..`, with what they are, in any order.
///
/// # Errors
/// What the kernel says. The names before it are there.
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
