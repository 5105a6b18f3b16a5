//! Deletes entries that the source does not have, and leftovers of dead sessions.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, statat, unlinkat};
use rustix::io::{Errno, Result};

use crate::tree::dirs::Dir;
use crate::tree::listing;
use crate::wire::record_name::Name;

use super::attributes;
use super::backup::Backup;
use super::context::Context;
use super::dead::{self, Whose};
use super::report::{Change, Event, Step};

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
        match context.session.others.whose(&context.session.maker, dir, &name) {
            Whose::Sessions => {}
            Whose::Garbage if !context.is_dry_run() => drop(dead::remove_unlocked(&*fd, &name)),
            Whose::Garbage => {}
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

/// Whether the rules protect a name of the destination.
fn is_protected(context: &Context, dir: &Dir, name: &Name, kind: FileType) -> bool {
    let backup = context.backup.as_ref();
    if context.rules.is_empty() && backup.is_none() {
        return false;
    }
    let path = dir.path_of(Some(name));
    let is_backup = backup.is_some_and(|backup| backup.has_given(name));
    let decided = context.rules.decide(&path, kind == FileType::Directory);
    backup.is_some_and(|backup| backup.is_folder(&path)) || !decided.unwrap_or(!is_backup)
}

/// Whether the rules protect an entry, or one in it.
pub(super) fn has_protected(
    context: &Context,
    dir: &Arc<Dir>,
    name: &Name,
    kind: FileType,
) -> bool {
    if context.rules.is_empty() {
        return false;
    }
    let mut stack = vec![(Arc::clone(dir), name.clone(), kind)];
    while let Some((dir, name, kind)) = stack.pop() {
        if is_protected(context, &dir, &name, kind) {
            return true;
        }
        let mut names = Vec::new();
        if kind == FileType::Directory
            && let Ok(below) = enter(context, &dir, &name, &mut names)
        {
            stack.extend(names.into_iter().map(|(name, kind)| (Arc::clone(&below), name, kind)));
        }
    }
    false
}

/// Why an entry is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The source does not have it.
    Extra,
    /// An entry of another type has got its name.
    Replaced,
}

/// Deletes a name with all of its contents, bottom up, except for protected entries. Failures are
/// reported.
pub(super) fn delete(
    context: &Context,
    dir: &Arc<Dir>,
    name: Name,
    kind: FileType,
    deletion: Deletion,
) {
    // What has been replaced has another name than the rules know.
    let is_protected = |dir: &Dir, name: &Name, kind| {
        deletion == Deletion::Extra && is_protected(context, dir, name, kind)
    };
    // Each element has its own directory once that has been entered.
    let mut stack = vec![(Arc::clone(dir), name, kind, None::<Arc<Dir>>)];
    // Directories that stay because an entry in them stays.
    let mut kept: HashSet<*const Dir> = HashSet::new();
    while let Some((dir, name, kind, entered)) = stack.pop() {
        if entered.as_ref().is_some_and(|it| kept.contains(&Arc::as_ptr(it))) {
            kept.insert(Arc::as_ptr(&dir));
            continue;
        }
        if is_protected(&dir, &name, kind) {
            kept.insert(Arc::as_ptr(&dir));
            continue;
        }
        let is_empty = entered.is_some();
        let counts = deletion == Deletion::Extra && (is_empty || kind != FileType::Directory);
        if counts && !context.may_delete() {
            kept.insert(Arc::as_ptr(&dir));
            continue;
        }
        let keeps = context.backup.as_ref().filter(|it| !is_empty && !it.has_given(&name));
        if kind != FileType::Directory && keeps.is_some_and(Backup::is_beside) {
            kept.insert(Arc::as_ptr(&dir));
        }
        let result = context.dirs.open(&dir).and_then(|fd| {
            let flags = if is_empty { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            if kind == FileType::Directory && !is_empty {
                return Err(Errno::ISDIR);
            }
            if !context.deletes_really() {
                return statat(&*fd, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).map(drop);
            }
            match keeps {
                Some(backup) => {
                    backup.take(context.around(), &dir, &*fd, &name).map_err(|(_, it)| it)
                }
                None => unlinkat(&*fd, name.as_path(), flags),
            }
        });
        if counts && result.is_err() {
            context.has_not_deleted();
        }
        let error = match result {
            // That it is replaced has been reported.
            Ok(()) if deletion == Deletion::Replaced && stack.is_empty() => return,
            Ok(()) if !context.deletes_really() => {
                context.planned(&dir, Some(&name), Change::Delete, kind.into(), 0);
                continue;
            }
            Ok(()) => {
                context.event(&dir, Some(&name), Event::Deleted);
                // What was replaced has another name now.
                if deletion == Deletion::Extra {
                    context.done(&dir, Some(&name), Change::Delete, kind.into(), 0);
                }
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
            // It was replaced, and so it has been deleted.
            Err(Errno::NOENT) => {}
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
    let fd = attributes::open_dir(context, &below)?;
    listing::list(&*fd, names)?;
    for (name, kind) in names {
        *kind = kind_of(&*fd, name, *kind);
    }
    Ok(below)
}
