//! Files of secrets, which only their owner can read.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

/// Why a file cannot be read, or may not hold a secret.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// It is not a regular file.
    #[error("it is no regular file")]
    Kind,
    /// It belongs to another user, who could change it.
    #[error("it belongs to another user")]
    Owner,
    /// Other users can read it.
    #[error("other users may read it (mode {0:03o}): chmod 600")]
    Open(u32),
    /// It is too long.
    #[error("it is too long")]
    Len,
}

/// Reads a file of at most this length that only its owner can read: this user, or root.
pub(super) fn read_private(path: &Path, len_max: u64) -> Result<Vec<u8>, FileError> {
    let file = File::open(path)?;
    check(&file.metadata()?)?;
    let mut content = Vec::new();
    file.take(len_max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > len_max { Err(FileError::Len) } else { Ok(content) }
}

fn check(about: &Metadata) -> Result<(), FileError> {
    if !about.is_file() {
        return Err(FileError::Kind);
    }
    if ![geteuid().as_raw(), 0].contains(&about.uid()) {
        return Err(FileError::Owner);
    }
    match about.mode() & 0o777 {
        mode if mode & 0o077 != 0 => Err(FileError::Open(mode)),
        _ => Ok(()),
    }
}
