//! Compares offered files with the destination, to decide which files the sink wants.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, fsync, statat};
use rustix::io::Errno;

use crate::limits::{HAVE_PIECES_ALL_MAX, HAVE_PIECES_MAX};
use crate::tree::digest::{digest_of, digest_of_file, leave_cache};
use crate::tree::journal::Unfinished;
use crate::tree::ranges;
use crate::tree::{beneath, metadata};
use crate::wire::record::{Entry, GRAIN};
use crate::wire::record_name::Name;
use crate::wire::record_wants::{Have, HavePiece, Wants};
use weft_sys::lock;

use super::append::{self, Shorter};
use super::attributes;
use super::confirm;
use super::context::Context;
use super::directory::Directory;
use super::dry;
use super::links::Links;
use super::report::{Change, EntryKind, Event, Failure, Step};
use super::third;
use super::version;
use super::xattrs;

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
    files: Mutex<HashMap<u64, Reported>>,
}

/// The parts of a file that the sink has reported.
#[derive(Debug)]
struct Reported {
    pieces: Vec<HavePiece>,
    /// The file itself, if they are in it.
    shorter: Option<Shorter>,
}

/// A file of which the source sends only a part.
#[derive(Debug)]
pub(super) struct Resumed<'context> {
    /// Where the rest of it is.
    pub(super) rest: Rest<'context>,
    /// The pieces that need not come.
    pub(super) pieces: Vec<HavePiece>,
}

/// Where a part of a file is.
#[derive(Debug)]
pub(super) enum Rest<'context> {
    /// An earlier session has left it.
    Left(&'context Unfinished),
    /// It is in the file itself.
    There(Shorter),
}

impl Resumable {
    /// Returns the existing parts of a file that the source sends, if the file has not changed.
    pub(super) fn take<'context>(
        &self,
        context: &'context Context,
        directory: &Directory,
        entry: &Entry,
    ) -> Option<Resumed<'context>> {
        let Reported { pieces, shorter } = lock(&self.files).remove(&entry.number)?;
        let rest = match shorter {
            Some(shorter) if shorter.is_of(entry) => Rest::There(shorter),
            Some(_) => return None,
            None => Rest::Left(unfinished(context, directory, entry)?),
        };
        Some(Resumed { rest, pieces })
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
    let mut pieces_left = HAVE_PIECES_ALL_MAX;
    for Offer { directory, name, entry, refusal } in offers {
        let number = entry.number;
        let lost = directory.is_lost.then_some((Step::Create, Errno::NOENT));
        if let Some((step, error)) = refusal.or(lost) {
            directory.failed(context, Some(&name), step, error);
            links.settle(context, number, None);
        } else if !context.options.is_blind && is_left(context, &directory, &name, &entry)
            || third::link(context, &directory, &name, &entry)
        {
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
            let (pieces, shorter) = match context.options.appends {
                Some(append) => {
                    let pieces_max = HAVE_PIECES_MAX.min(pieces_left);
                    append::have(context, &directory, &entry, append, pieces_max).unzip()
                }
                None => (have(context, &directory, &entry, pieces_left), None),
            };
            let pieces = pieces.unwrap_or_default();
            if pieces.is_empty() {
                version::describe(context, &directory, &name, &entry);
            } else {
                pieces_left -= pieces.len();
                let reported = Reported { pieces: pieces.clone(), shorter };
                lock(&resumable.files).insert(number, reported);
                wants.have.push(Have { file: number, pieces });
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

/// Whether a file stays as it is, apart from its attributes.
fn is_left(context: &Context, directory: &Directory, name: &Name, entry: &Entry) -> bool {
    if is_skipped(context, directory, name, entry) {
        return true;
    }
    let is_there = is_there(context, directory, name, entry);
    if is_there {
        context.session.others.replaced(&directory.dir, name);
        confirm::found(context, directory, name, entry.number);
    }
    is_there || has_nothing_to_append(context, directory, name, entry)
}

/// Whether files are appended to, and this one has no less than the source's.
fn has_nothing_to_append(
    context: &Context,
    directory: &Directory,
    name: &Name,
    entry: &Entry,
) -> bool {
    if context.options.appends.is_none() || directory.is_new() {
        return false;
    }
    let Ok(dir) = context.dirs.open(&directory.dir) else { return false };
    let stat = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| {
        metadata::kind(&stat) == FileType::RegularFile && metadata::size(&stat) >= entry.size
    })
}

/// Whether the options leave what exists, although it may differ.
fn is_skipped(context: &Context, directory: &Directory, name: &Name, entry: &Entry) -> bool {
    if directory.is_new() {
        return false;
    }
    if directory.leaves(context, name) {
        return true;
    }
    let Ok(dir) = context.dirs.open(&directory.dir) else { return false };
    let stat = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    context.options.skips.newer
        && stat.is_ok_and(|stat| {
            metadata::kind(&stat) == FileType::RegularFile && metadata::mtime(&stat) > entry.mtime
        })
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
    let has_time = metadata::mtime(&stat) == entry.mtime;
    let is_new_enough = has_time || context.options.skips.same_size;
    let is_suspect = context.session.suspect_since.is_some_and(|since| stat.st_ctime >= since);
    if entry.hash.is_none() && (!is_new_enough || is_suspect) {
        return false;
    }
    let is_same = attributes::is_same(context, entry, &stat) && has_time;
    if entry.hash.is_none() && entry.xattrs.is_none() && is_same {
        return true;
    }
    let Ok(fd) = beneath::open(&*dir, name.as_path(), OFlags::RDONLY | OFlags::NONBLOCK, 0) else {
        return false;
    };
    if entry.hash.is_some() && hash_of(context, &fd) != entry.hash {
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
    match plan.set(context, fd.as_fd(), entry, (&directory.dir, Some(name))) {
        // Another user owns the file, so its attributes stay.
        Err(Errno::PERM) if context.who.uid != 0 && stat.st_uid != context.who.uid => {}
        Err(error) => context.problem(&directory.dir, Some(name), Step::Attributes, error),
        Ok(()) => {
            let (change, kind) = (Change::Attributes, EntryKind::File);
            context.done(&directory.dir, Some(name), change, kind, entry.size);
        }
    }
    if context.options.syncs
        && let Err(error) = fsync(fd)
    {
        context.problem(&directory.dir, Some(name), Step::Attributes, error);
    }
}

fn hash_of(context: &Context, fd: &OwnedFd) -> Option<[u8; 32]> {
    if context.options.verifies {
        leave_cache(fd).ok()?;
    }
    digest_of_file(fd).ok()
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

/// Returns pieces of what an earlier session has left of a file, with their digests. The source
/// compares them with its own, because the journal proves nothing.
fn have(
    context: &Context,
    directory: &Directory,
    entry: &Entry,
    pieces_left: usize,
) -> Option<Vec<HavePiece>> {
    let found = unfinished(context, directory, entry)?;
    let dir = context.dirs.open(&directory.dir).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = beneath::open(&*dir, found.temporary.as_path(), flags, 0).ok()?;
    if context.options.verifies {
        leave_cache(&fd).ok()?;
    }
    let mut pieces = Vec::new();
    // The source cannot use others, which a damaged journal may have.
    let is_usable = |&(offset, len): &(u64, u64)| {
        let end = offset + len;
        offset.is_multiple_of(GRAIN) && (end.is_multiple_of(GRAIN) || end == entry.size)
    };
    let pieces_all = ranges::split(&found.ranges).filter(is_usable);
    for (offset, len) in pieces_all.take(HAVE_PIECES_MAX.min(pieces_left)) {
        // What cannot be read is written again.
        if let Ok(digest) = digest_of(&fd, offset, len) {
            pieces.push(HavePiece { offset, len, digest });
        }
    }
    Some(pieces)
}
