//! Files of which the sink has another version: it describes that to the source, and the parts of
//! the new version are made of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fstat};

use crate::limits::DELTA_LEN_MIN;
use crate::tree::delta::Signature;
use crate::tree::{beneath, metadata};
use crate::wire::record::Entry;
use crate::wire::record_name::Name;

use super::context::Context;
use super::directory::Directory;

/// Describes the version of a wanted file that exists to the source. In any doubt it does not, and
/// the whole file comes.
pub(super) fn describe(context: &Context, directory: &Arc<Directory>, name: &Name, entry: &Entry) {
    if !context.options.uses_versions || entry.size < DELTA_LEN_MIN || directory.is_new() {
        return;
    }
    let Some((version, size)) = open(context, directory, name) else { return };
    if size < DELTA_LEN_MIN {
        return;
    }
    if let Ok(signature) = Signature::of_file(&version, size) {
        context.described(entry.number, &signature);
    }
}

/// Opens the version of a file that exists, and returns its size.
pub(super) fn open(
    context: &Context,
    directory: &Directory,
    name: &Name,
) -> Option<(OwnedFd, u64)> {
    let dir = context.dirs.open(&directory.dir).ok()?;
    // A pipe in its place must not block the thread.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let version = beneath::open(&*dir, name.as_path(), flags, 0).ok()?;
    let stat = fstat(&version).ok()?;
    let is_file = metadata::kind(&stat) == FileType::RegularFile;
    is_file.then(|| (version, metadata::size(&stat)))
}
