//! Deletes entries that the source does not have, and leftovers of dead sessions.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, OFlags, flock, statat, unlinkat};
use rustix::io::{Errno, Result};

use crate::tree::dirs::Dir;
use crate::tree::{beneath, listing, temporary};
use crate::wire::record_name::Name;

use super::context::Context;
use super::report::{Change, Event, Step};
use super::session::now;

/// Seconds without a change after which temporary files of unknown sessions are removed.
const STALE_SECONDS: i64 = 3_600;

/// Removes temporary files of dead sessions. If `keep` is given, returns all other names with their
/// types, as far as they can be remembered.
pub(super) fn clean(
    context: &Context,
    dir: &Arc<Dir>,
    keep: Option<&HashSet<Name>>,
) -> Result<Vec<(Name, FileType)>> {
    let mut extras = Vec::new();
    let fd = context.dirs.open(dir)?;
    let mut names = Vec::new();
    listing::list(&*fd, &mut names)?;
    for (name, kind) in names {
        if keep.is_some_and(|keep| keep.contains(&name)) {
            continue;
        }
        if dir.is_root() && temporary::session_itself(&name).is_some() {
            continue;
        }
        match temporary::session_of(&name) {
            // This session has copied everything in here, so it needs no leftovers of earlier ones.
            Some(session) if session == context.session.id => {}
            Some(session) if context.session.live.contains(&session) => {}
            Some(session) if is_stale(context, &*fd, &name, session) => {
                if context.is_dry_run() {
                    continue;
                }
                // If this fails, the file is gone, or a later session removes it.
                let _ = unlinkat(&*fd, name.as_path(), AtFlags::empty());
            }
            _ if keep.is_none() => {}
            _ if context.remember() => {
                let kind = kind_of(&*fd, &name, kind);
                extras.push((name, kind));
            }
            _ => {
                context.problem(dir, None, Step::Delete, Errno::NOMEM);
                break;
            }
        }
    }
    Ok(extras)
}

/// Whether a temporary file belongs to no live session.
fn is_stale(context: &Context, dir: impl AsFd, name: &Name, session: u32) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let Ok(stat) = statat(&dir, name.as_path(), flags) else { return false };
    let is_old = stat.st_ctime.saturating_add(STALE_SECONDS) < now();
    // A file is locked below only if it is left: a session that has just made it locks it, too.
    if !is_old && !context.session.dead.contains_key(&session) {
        return false;
    }
    match FileType::from_raw_mode(stat.st_mode) {
        // A session with another root locks the files that it takes long to write.
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let lock = |fd| flock(&fd, FlockOperation::NonBlockingLockExclusive);
            beneath::open(dir, name.as_path(), flags, 0).and_then(lock).is_ok()
        }
        FileType::Directory => false, // No session creates a directory with such a name.
        _ => true,                    // Links and devices are renamed at once.
    }
}

/// Whether the rules protect a name of the destination.
fn is_protected(context: &Context, dir: &Dir, name: &Name, kind: FileType) -> bool {
    let is_included =
        || context.rules.include(&dir.path_of(Some(name)), kind == FileType::Directory);
    !context.rules.is_empty() && !is_included()
}

/// Deletes a name with all of its contents, bottom up, except for protected entries. Failures are
/// reported.
pub(super) fn delete(context: &Context, dir: &Arc<Dir>, name: Name, kind: FileType) {
    // Each element has its own directory once that has been entered.
    let mut stack = vec![(Arc::clone(dir), name, kind, None::<Arc<Dir>>)];
    // Directories that stay because an entry in them stays.
    let mut kept: HashSet<*const Dir> = HashSet::new();
    while let Some((dir, name, kind, entered)) = stack.pop() {
        if entered.as_ref().is_some_and(|it| kept.contains(&Arc::as_ptr(it))) {
            kept.insert(Arc::as_ptr(&dir));
            continue;
        }
        if is_protected(context, &dir, &name, kind) {
            kept.insert(Arc::as_ptr(&dir));
            continue;
        }
        let is_empty = entered.is_some();
        let result = context.dirs.open(&dir).and_then(|fd| {
            let flags = if is_empty { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            if kind == FileType::Directory && !is_empty {
                return Err(Errno::ISDIR);
            }
            if context.is_dry_run() {
                return statat(&*fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).map(drop);
            }
            unlinkat(&*fd, name.as_path(), flags)
        });
        let error = match result {
            Ok(()) if context.is_dry_run() => {
                context.planned(&dir, Some(&name), Change::Delete, kind.into(), 0);
                continue;
            }
            Ok(()) => {
                context.event(&dir, Some(&name), Event::Deleted);
                continue;
            }
            Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) if !is_empty => None,
            Err(error) => Some(error),
        };
        let mut names = Vec::new();
        let below = match error {
            Some(error) => Err(error),
            None => enter(context, &dir, &name, &mut names),
        };
        match below {
            Ok(below) => {
                let in_it = names.into_iter().map(|(n, k)| (Arc::clone(&below), n, k, None));
                let in_it: Vec<_> = in_it.collect();
                stack.push((dir, name, FileType::Directory, Some(below)));
                stack.extend(in_it);
            }
            Err(error) => context.problem(&dir, Some(&name), Step::Delete, error),
        }
    }
}

/// Returns the type of a name. Some file systems do not list types.
fn kind_of(dir: impl AsFd, name: &Name, listed: FileType) -> FileType {
    if listed != FileType::Unknown {
        return listed;
    }
    let stat = statat(dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(listed, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn enter(
    context: &Context,
    dir: &Arc<Dir>,
    name: &Name,
    names: &mut Vec<(Name, FileType)>,
) -> Result<Arc<Dir>> {
    let below = context.dirs.child(dir, name.clone())?;
    let fd = context.dirs.open(&below)?;
    listing::list(&*fd, names)?;
    for (name, kind) in names {
        *kind = kind_of(&*fd, name, *kind);
    }
    Ok(below)
}
