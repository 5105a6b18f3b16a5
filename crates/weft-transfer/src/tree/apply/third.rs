//! Files of other directories to which a copy may link instead of copying them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, fstat, linkat, unlinkat};
use rustix::io::Errno;

use crate::tree::digest::digest_of_file;
use crate::tree::{beneath, metadata};
use crate::wire::record::Entry;
use crate::wire::record_name::Name;

use super::attributes;
use super::confirm;
use super::context::Context;
use super::directory::Directory;
use super::install::rename;
use super::report::{Change, EntryKind};
use super::xattrs;

/// Links to a file of another directory that has the path, the contents and the attributes of one
/// that is not at the destination. Returns whether there is one.
pub(super) fn link(
    context: &Context,
    directory: &Arc<Directory>,
    name: &Name,
    entry: &Entry,
) -> bool {
    if context.thirds.is_empty() {
        return false;
    }
    let path = directory.dir.path_of(Some(name));
    let found = context.thirds.iter().find_map(|third| equal(context, third, &path, entry));
    let Some(found) = found else { return false };
    let (change, kind) = (Change::Copy, EntryKind::HardLink);
    if context.is_dry_run() {
        context.planned(&directory.dir, Some(name), change, kind, 0);
        return true;
    }
    // Where the file system does not link, it is copied.
    let is_made = make(context, directory, name, &found).is_ok();
    if is_made {
        context.done(&directory.dir, Some(name), change, kind, 0);
        confirm::found(context, directory, name, entry.number);
    }
    is_made
}

/// Opens the file at a path of another directory, if it is equal.
fn equal(context: &Context, third: &OwnedFd, path: &[u8], entry: &Entry) -> Option<OwnedFd> {
    let path = Path::new(OsStr::from_bytes(path));
    let fd = beneath::open(third, path, OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?;
    let stat = fstat(&fd).ok()?;
    let is_file = metadata::kind(&stat) == FileType::RegularFile;
    let is_same = is_file
        && metadata::size(&stat) == entry.size
        && metadata::mtime(&stat) == entry.mtime
        && attributes::is_same(context, entry, &stat)
        && xattrs::differences(context, fd.as_fd(), entry).is_empty()
        && (entry.hash.is_none() || digest_of_file(&fd).ok() == entry.hash);
    is_same.then_some(fd)
}

/// Links to this very file, whatever has its name meanwhile.
fn make(
    context: &Context,
    directory: &Arc<Directory>,
    name: &Name,
    file: &OwnedFd,
) -> Result<(), Errno> {
    let dir = context.dirs.open(&directory.dir)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |name: &Name| {
        let _turn = context.turn();
        linkat(CWD, &path, &*dir, name.as_path(), AtFlags::SYMLINK_FOLLOW)
    };
    context.charge(0, 1).map_err(|(_, error)| error)?;
    let made = match link(name) {
        Err(Errno::EXIST) => {
            let temporary = directory.temporary(context, name);
            link(&temporary).and_then(|()| {
                let renamed = rename(context, directory, &*dir, &temporary, name);
                renamed.map(drop).map_err(|(_, error)| {
                    // Only the first error matters.
                    let _ = unlinkat(&*dir, temporary.as_path(), AtFlags::empty());
                    error
                })
            })
        }
        made => made,
    };
    made.inspect_err(|_| context.refund(0, 1))
}
