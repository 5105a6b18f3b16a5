//! Opening names so that no link leads away from the directory that they are opened in.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, Result};

/// How often an open that a rename has disturbed is tried again.
const ATTEMPTS: usize = 16;

/// Opens a name beneath a directory. No link is followed, and no `..` leads out.
///
/// # Errors
/// What `openat2` says: `ELOOP` if a component is a link.
pub fn open(dir: impl AsFd, path: &Path, flags: OFlags, mode: u16) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NOCTTY;
    }
    let mode = Mode::from_raw_mode(mode.into());
    for _ in 1..ATTEMPTS {
        match openat2(&dir, path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    openat2(&dir, path, flags, mode, resolve)
}

/// Opens a directory beneath another one.
///
/// # Errors
/// What `openat2` says.
pub fn open_dir(dir: impl AsFd, path: &Path) -> Result<OwnedFd> {
    open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}
