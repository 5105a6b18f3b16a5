//! Opens paths so that no link leads out of the directory in which they are opened.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::wire::record_name::Name;

/// How often an open is retried after a concurrent rename.
const ATTEMPTS: usize = 16;

/// Opens a path beneath a directory. It follows no links and refuses `..` that leads out.
///
/// # Errors
/// An error of `openat2`: `ELOOP` if a component is a link.
pub fn open(dir: impl AsFd, path: &Path, flags: OFlags, mode: u16) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NOCTTY;
    }
    resolved(dir, path, flags, Mode::from_raw_mode(mode.into()), resolve)
}

/// Opens a path beneath a directory, and follows links that stay beneath it.
///
/// # Errors
/// An error of `openat2`: `EXDEV` if a link leads out.
pub fn follow(dir: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolved(dir, path, flags, Mode::empty(), resolve)
}

/// Calls `openat2`, again if a rename has come in between.
fn resolved(
    dir: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
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
/// An error of `openat2`.
pub fn open_dir(dir: impl AsFd, path: &Path) -> Result<OwnedFd> {
    open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
}

/// Opens the parent directory of a path beneath another directory.
///
/// # Errors
/// An error of `openat2`; `EINVAL` if a component is no name.
pub fn open_parent(root: impl AsFd, path: &[u8]) -> Result<OwnedFd> {
    let mut fd = open_dir(root, Path::new("."))?;
    let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else { return Ok(fd) };
    for part in path[..slash].split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let name = Name::new(part).map_err(|_| Errno::INVAL)?;
        fd = open_dir(&fd, name.as_path())?;
    }
    Ok(fd)
}
