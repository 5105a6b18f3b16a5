//! Predicts changes in a dry run.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;

use crate::tree::dirs::Dir;
use crate::tree::metadata;
use crate::wire::record::{Entry, Kind};
use crate::wire::record_name::Name;

use super::attributes::{self, Created};
use super::clean::{self, Deletion};
use super::context::Context;
use super::report::{Change, EntryKind, Step};
use super::special;
use super::xattrs;

/// A name in a directory of the destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) dir: &'a Arc<Dir>,
    /// The directory does not exist.
    pub(super) is_new: bool,
    pub(super) name: &'a Name,
}

impl Place<'_> {
    /// Returns the status of the entry with this name, if there is one.
    fn stat(self, context: &Context) -> Option<Stat> {
        if self.is_new {
            return None;
        }
        let dir = context.dirs.open(self.dir).ok()?;
        statat(&*dir, self.name.as_path(), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Whether there is an entry with this name.
    pub(super) fn exists(self, context: &Context) -> bool {
        self.stat(context).is_some()
    }

    /// Whether an entry that is not a directory would be new or replace another.
    pub(super) fn change(self, context: &Context) -> Result<Change, (Step, Errno)> {
        self.change_of(context, self.stat(context).as_ref())
    }

    /// Whether a directory would be new or replace another entry; `None` if it is there.
    pub(super) fn change_to_directory(
        self,
        context: &Context,
    ) -> Result<Option<Change>, (Step, Errno)> {
        let kind = self.stat(context).as_ref().map(metadata::kind);
        let Some(kind) = kind else { return Ok(Some(Change::Copy)) };
        match kind {
            FileType::Directory => Ok(None),
            _ if !context.options.replaces => Err((Step::Clash, Errno::NOTDIR)),
            _ if clean::has_protected(context, self.dir, self.name, kind) => {
                Err((Step::Clash, Errno::NOTEMPTY))
            }
            _ => Ok(Some(Change::Update)),
        }
    }

    fn change_of(self, context: &Context, there: Option<&Stat>) -> Result<Change, (Step, Errno)> {
        match there.map(metadata::kind) {
            None => return Ok(Change::Copy),
            Some(FileType::Directory) => {}
            Some(_) => return Ok(Change::Update),
        }
        if !context.options.replaces {
            return Err((Step::Clash, Errno::ISDIR));
        }
        let Self { dir, name, .. } = self;
        if clean::has_protected(context, dir, name, FileType::Directory) {
            return Err((Step::Clash, Errno::NOTEMPTY));
        }
        if !context.options.only_deletes {
            clean::delete(context, dir, name.clone(), FileType::Directory, Deletion::Replaced);
        }
        Ok(Change::Update)
    }
}

/// Whether this process may change attributes: it is root or owns the entry.
fn may_set(context: &Context, stat: &Stat) -> bool {
    context.who.uid == 0 || stat.st_uid == context.who.uid
}

/// Predicts the changes to a file whose contents are equal but whose attributes may differ.
pub(super) fn attributes(context: &Context, dir: &Dir, name: &Name, stat: &Stat) {
    if may_set(context, stat) {
        context.planned(dir, Some(name), Change::Attributes, EntryKind::File, metadata::size(stat));
    }
}

/// Whether the attributes of a symbolic link, a pipe, a socket or a device would be set, which is
/// there.
pub(super) fn change_of_other(
    context: &Context,
    place: Place<'_>,
    entry: &Entry,
    created: Created,
) -> Option<Change> {
    let stat = place.stat(context)?;
    let has_mode = matches!(entry.kind, Kind::Symlink { .. })
        || !context.options.keeps_modes
        || metadata::mode(&stat) & 0o777 == entry.mode & 0o777;
    let is_same = attributes::is_same_by_name(context, entry, &stat, created);
    (!(has_mode && is_same) && may_set(context, &stat)).then_some(Change::Attributes)
}

/// Predicts the changes for a symbolic link, a pipe, a socket or a device.
pub(super) fn other(
    context: &Context,
    place: Place<'_>,
    entry: &Entry,
    created: Created,
) -> Result<(), (Step, Errno)> {
    let kind = match &entry.kind {
        Kind::Symlink { .. } => EntryKind::Symlink,
        _ => EntryKind::Special,
    };
    let is_device = matches!(entry.kind, Kind::CharacterDevice { .. } | Kind::BlockDevice { .. });
    let there = place.stat(context);
    let change = match &there {
        Some(stat) if is_same_link(context, place, entry) || special::is_same(entry, stat) => {
            match change_of_other(context, place, entry, created) {
                Some(change) => change,
                None => return Ok(()),
            }
        }
        _ if is_device && !context.options.makes_devices => {
            return Err((Step::Create, Errno::PERM));
        }
        there => place.change_of(context, there.as_ref())?,
    };
    context.planned(place.dir, Some(place.name), change, kind, 0);
    Ok(())
}

fn is_same_link(context: &Context, place: Place<'_>, entry: &Entry) -> bool {
    let Kind::Symlink { target } = &entry.kind else { return false };
    let Ok(dir) = context.dirs.open(place.dir) else { return false };
    let there = readlinkat(&*dir, place.name.as_path(), Vec::new());
    there.is_ok_and(|there| there.as_bytes() == &**target)
}

/// Predicts the changes to the attributes of an existing directory.
pub(super) fn directory_attributes(context: &Context, dir: &Arc<Dir>, entry: &Entry) {
    if is_changed(context, dir, entry, None) {
        context.planned(dir, None, Change::Attributes, EntryKind::Directory, 0);
    }
}

/// Whether attributes of an existing directory would be set. `before` is its status before entries
/// in it were changed, if some were.
pub(super) fn is_changed(
    context: &Context,
    dir: &Arc<Dir>,
    entry: &Entry,
    before: Option<Stat>,
) -> bool {
    let Ok(fd) = context.dirs.open(dir) else { return false };
    let Ok(stat) = before.map_or_else(|| fstat(fd.as_fd()), Ok) else { return false };
    let is_same_time = !context.keeps_time_of(entry) || metadata::mtime(&stat) == entry.mtime;
    let is_same = is_same_time
        && attributes::is_same(context, entry, &stat)
        && xattrs::differences(context, fd.as_fd(), entry).is_empty();
    !is_same && may_set(context, &stat)
}

/// Predicts the changes for a hard link. `target` is the linked file, if it stays.
pub(super) fn link(
    context: &Context,
    target: Option<(&Arc<Dir>, &Name)>,
    place: Place<'_>,
) -> Result<(), (Step, Errno)> {
    let there = place.stat(context);
    let target = target.and_then(|(dir, name)| Place { dir, is_new: false, name }.stat(context));
    if let (Some(one), Some(other)) = (&target, &there)
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    {
        return Ok(());
    }
    let change = place.change_of(context, there.as_ref())?;
    context.planned(place.dir, Some(place.name), change, EntryKind::HardLink, 0);
    Ok(())
}
