//! Compares offered files with the destination, to decide which files the sink wants.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, statat};
use rustix::io::{Errno, pread};

use crate::limits::{HAVE_RANGES_ALL_MAX, HAVE_RANGES_MAX};
use crate::tree::journal::Unfinished;
use crate::tree::ranges::Ranges;
use crate::tree::{beneath, metadata};
use crate::wire::record::Entry;
use crate::wire::record_name::Name;
use crate::wire::record_wants::{Have, Wants};
use weft_sys::lock;

use super::attributes;
use super::context::Context;
use super::directory::Directory;
use super::dry;
use super::install::Failure;
use super::links::Links;
use super::report::{EntryKind, Event, Step};
use super::xattrs;

/// Length of a read while a file is hashed.
const READ_LEN: usize = 256 << 10;

/// A file that the source offers. The directory counts it as pending.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) directory: Arc<Directory>,
    pub(super) name: Name,
    pub(super) entry: Box<Entry>,
    /// Why the name is refused, if it is.
    pub(super) refusal: Option<Failure>,
}

/// The resumable parts that the sink has reported to the source, by the numbers of the files.
#[derive(Debug, Default)]
pub(super) struct Resumable {
    files: Mutex<HashMap<u64, Ranges>>,
}

impl Resumable {
    /// Returns the existing parts of a file that the source sends, if the file has not changed.
    pub(super) fn take<'context>(
        &self,
        context: &'context Context,
        directory: &Directory,
        entry: &Entry,
    ) -> Option<(&'context Unfinished, Ranges)> {
        let ranges = lock(&self.files).remove(&entry.number)?;
        let found = unfinished(context, directory, entry)?;
        Some((found, ranges))
    }
}

/// Compares the offered files with the destination. The offers are in the order of their numbers.
pub(super) fn look(
    context: &Context,
    links: &Links,
    resumable: &Resumable,
    offers: Vec<Offer>,
) -> Option<Wants> {
    let (first, last) = (offers.first()?.entry.number, offers.last()?.entry.number);
    let wanted = vec![false; usize::try_from(last.checked_sub(first)? + 1).ok()?];
    let mut wants = Wants { first, wanted, have: Vec::new() };
    let mut ranges_left = HAVE_RANGES_ALL_MAX;
    for Offer { directory, name, entry, refusal } in offers {
        let number = entry.number;
        let lost = directory.is_lost.then_some((Step::Create, Errno::NOENT));
        if let Some((step, error)) = refusal.or(lost) {
            directory.failed(context, Some(&name), step, error);
            links.settle(context, number, None);
        } else if is_there(context, &directory, &name, &entry) {
            context.session.others.replaced(&directory.dir, &name);
            context.event(&directory.dir, Some(&name), Event::Unchanged);
            if entry.is_linked {
                links.settle(context, number, Some((&directory.dir, &name)));
            }
        } else if context.is_dry_run() {
            plan(context, links, &directory, &name, &entry);
        } else {
            if let Some(wanted) = wants.wanted.get_mut((number - first) as usize) {
                *wanted = true;
            }
            if let Some(have) = have(context, &directory, &entry, ranges_left) {
                ranges_left -= have.count();
                wants.have.push(Have { file: number, ranges: have.iter().collect() });
                lock(&resumable.files).insert(number, have);
            }
        }
        directory.end_pending(context);
    }
    Some(wants)
}

/// Reports the predicted change of a file in a dry run.
fn plan(context: &Context, links: &Links, directory: &Directory, name: &Name, entry: &Entry) {
    match directory.place(name).change(context) {
        Ok(change) => {
            context.planned(&directory.dir, Some(name), change, EntryKind::File, entry.size);
            links.settle_planned(context, entry.number);
        }
        Err((step, error)) => {
            directory.failed(context, Some(name), step, error);
            links.settle(context, entry.number, None);
        }
    }
}

/// Whether an equal file exists. Its attributes are corrected if they differ.
fn is_there(context: &Context, directory: &Directory, name: &Name, entry: &Entry) -> bool {
    let is_taken_anew = context.options.dry_run.is_some_and(|dry_run| !dry_run.skips);
    if directory.is_new() || is_taken_anew {
        return false;
    }
    let Ok(dir) = context.dirs.open(&directory.dir) else { return false };
    let Ok(stat) = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) else { return false };
    if metadata::kind(&stat) != FileType::RegularFile || metadata::size(&stat) != entry.size {
        return false;
    }
    let is_new_enough = metadata::mtime(&stat) == entry.mtime;
    let is_suspect = context.session.suspect_since.is_some_and(|since| stat.st_ctime >= since);
    if entry.hash.is_none() && (!is_new_enough || is_suspect) {
        return false;
    }
    let is_same = attributes::is_same(context, entry, &stat) && is_new_enough;
    if entry.hash.is_none() && entry.xattrs.is_none() && is_same {
        return true;
    }
    let Ok(fd) = beneath::open(&*dir, name.as_path(), OFlags::RDONLY | OFlags::NONBLOCK, 0) else {
        return false;
    };
    if entry.hash.is_some() && hash_of(&fd) != entry.hash {
        return false;
    }
    let is_same = is_same && xattrs::differences(context, fd.as_fd(), entry).is_empty();
    if !is_same && context.is_dry_run() {
        dry::attributes(context, &directory.dir, name, &stat);
    } else if !is_same {
        set(context, directory, name, entry, &fd, &stat);
    }
    true
}

fn set(
    context: &Context,
    directory: &Directory,
    name: &Name,
    entry: &Entry,
    fd: &OwnedFd,
    stat: &Stat,
) {
    let plan = attributes::plan(context, entry, None);
    match plan.set(context, fd.as_fd(), entry) {
        // Another user owns the file, so its attributes stay.
        Err(Errno::PERM) if context.who.uid != 0 && stat.st_uid != context.who.uid => {}
        Err(error) => context.problem(&directory.dir, Some(name), Step::Attributes, error),
        Ok(()) => {}
    }
}

fn hash_of(fd: &OwnedFd) -> Option<[u8; 32]> {
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; READ_LEN], 0);
    loop {
        match pread(fd, &mut buffer[..], at) {
            Ok(0) => return Some(hasher.finalize().into()),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn unfinished<'context>(
    context: &'context Context,
    directory: &Directory,
    entry: &Entry,
) -> Option<&'context Unfinished> {
    if context.session.unfinished.is_empty() {
        return None;
    }
    let path = directory.dir.path_of(entry.name.as_ref());
    let found = context.session.unfinished.get(&*path)?;
    (found.size == entry.size && found.mtime == entry.mtime).then_some(found)
}

/// Returns the parts of a file that an earlier session has left.
fn have(
    context: &Context,
    directory: &Directory,
    entry: &Entry,
    ranges_left: usize,
) -> Option<Ranges> {
    let found = unfinished(context, directory, entry)?;
    let mut ranges = Ranges::default();
    for (offset, len) in found.ranges.iter().take(HAVE_RANGES_MAX.min(ranges_left)) {
        ranges.add(offset, len);
    }
    (!ranges.is_empty()).then_some(ranges)
}
