//! Pipes, sockets and devices.

use rustix::fs::{FileType, Stat, makedev};

use crate::tree::metadata;
use crate::wire::record::{Entry, Kind};

/// Whether an entry is a pipe, a socket or a device, and this is one like it.
pub(super) fn is_same(entry: &Entry, there: &Stat) -> bool {
    kind_of(&entry.kind).is_some_and(|(kind, device)| {
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        metadata::kind(there) == kind && (!is_device || there.st_rdev == device)
    })
}

/// Returns the type and the number of a pipe, a socket or a device.
pub(super) fn kind_of(kind: &Kind) -> Option<(FileType, u64)> {
    Some(match kind {
        Kind::Fifo => (FileType::Fifo, 0),
        Kind::Socket => (FileType::Socket, 0),
        Kind::CharacterDevice { major, minor } => {
            (FileType::CharacterDevice, makedev(*major, *minor))
        }
        Kind::BlockDevice { major, minor } => (FileType::BlockDevice, makedev(*major, *minor)),
        Kind::File | Kind::Directory | Kind::Symlink { .. } | Kind::HardLink { .. } => return None,
    })
}
