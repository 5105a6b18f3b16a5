//! Entries that the source may remove.

use rustix::fs::{OFlags, fsync};

use crate::tree::beneath;
use crate::wire::record_name::Name;

use super::context::Context;
use super::directory::Directory;
use super::report::Step;

/// Reports a file that was there already as one that the source may remove. If files are synced, it
/// has to be, too.
pub(super) fn found(context: &Context, directory: &Directory, name: &Name, number: u64) {
    let sync = || {
        let dir = context.dirs.open(&directory.dir)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        fsync(beneath::open(&*dir, name.as_path(), flags, 0)?)
    };
    let is_synced = context.options.confirms && context.options.syncs && !context.is_dry_run();
    if is_synced && let Err(error) = sync() {
        return context.problem(&directory.dir, Some(name), Step::Sync, error);
    }
    context.confirm(number);
}
