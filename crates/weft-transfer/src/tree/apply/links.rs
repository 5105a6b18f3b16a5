//! Hard links between files of the tree.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, linkat, statat, unlinkat};
use rustix::io::Errno;

use crate::limits::{LINK_TRIES_MAX, LINKED_FILES_MAX};
use crate::tree::dirs::Dir;
use crate::wire::record_name::Name;
use weft_sys::lock;

use super::context::Context;
use super::directory::Directory;
use super::dry;
use super::install::rename;
use super::report::{Change, EntryKind, Failure, Step};

/// The files to which later entries may be hard links.
#[derive(Debug, Default)]
pub(super) struct Links {
    files: Mutex<HashMap<u64, Linked>>,
}

#[derive(Debug)]
enum Linked {
    /// The file does not exist yet. These links wait for it.
    Awaited(Vec<(u64, Arc<Directory>, Name)>),
    Settled(Outcome),
}

#[derive(Clone, Debug)]
enum Outcome {
    There(Arc<Dir>, Name),
    Failed,
    /// In a dry run, the file would exist.
    Planned,
}

impl Links {
    /// Records a file that has hard links. Returns false if there are too many.
    pub(super) fn expect(&self, file: u64) -> bool {
        let mut files = lock(&self.files);
        files.entry(file).or_insert_with(|| Linked::Awaited(Vec::new()));
        files.len() <= LINKED_FILES_MAX
    }

    /// Records that a file has its name, or has failed, and creates or fails the links that wait
    /// for it.
    pub(super) fn settle(&self, context: &Context, file: u64, place: Option<(&Arc<Dir>, &Name)>) {
        let outcome = match place {
            Some((dir, name)) => Outcome::There(Arc::clone(dir), name.clone()),
            None => Outcome::Failed,
        };
        self.end(context, file, &outcome);
    }

    /// Records that a file would get its name in a dry run.
    pub(super) fn settle_planned(&self, context: &Context, file: u64) {
        self.end(context, file, &Outcome::Planned);
    }

    fn end(&self, context: &Context, file: u64, outcome: &Outcome) {
        let before = {
            let mut files = lock(&self.files);
            let state = Linked::Settled(outcome.clone());
            files.get_mut(&file).map(|linked| std::mem::replace(linked, state))
        };
        let Some(Linked::Awaited(waiting)) = before else { return };
        context.forget(waiting.len());
        for (number, directory, name) in waiting {
            make_and_report(context, outcome, number, &directory, &name);
            directory.end_pending(context);
        }
    }

    /// Creates a hard link with this number, now or when its target exists. The directory counts it
    /// as pending.
    pub(super) fn link(
        &self,
        context: &Context,
        (number, file): (u64, u64),
        directory: &Arc<Directory>,
        name: &Name,
    ) {
        let outcome = match lock(&self.files).get_mut(&file) {
            Some(Linked::Awaited(_)) if !context.remember() => {
                directory.failed(context, Some(name), Step::Link, Errno::NOMEM);
                directory.end_pending(context);
                return;
            }
            Some(Linked::Awaited(waiting)) => {
                waiting.push((number, Arc::clone(directory), name.clone()));
                return;
            }
            Some(Linked::Settled(outcome)) => outcome.clone(),
            None => Outcome::Failed,
        };
        make_and_report(context, &outcome, number, directory, name);
        directory.end_pending(context);
    }

    /// Fails the links that wait for files which do not come.
    pub(super) fn give_up(&self, context: &Context) {
        let files = std::mem::take(&mut *lock(&self.files));
        for linked in files.into_values() {
            let Linked::Awaited(waiting) = linked else { continue };
            context.forget(waiting.len());
            for (number, directory, name) in waiting {
                make_and_report(context, &Outcome::Failed, number, &directory, &name);
                directory.end_pending(context);
            }
        }
    }
}

fn make_and_report(
    context: &Context,
    outcome: &Outcome,
    number: u64,
    directory: &Arc<Directory>,
    name: &Name,
) {
    if directory.leaves(context, name) {
        return;
    }
    let result = match outcome {
        Outcome::Failed => Err((Step::Link, Errno::NOENT)),
        Outcome::There(dir, target) if context.is_dry_run() => {
            dry::link(context, Some((dir, target)), directory.place(name))
        }
        Outcome::There(dir, target) => make(context, dir, target, directory, name),
        Outcome::Planned => dry::link(context, None, directory.place(name)),
    };
    match result {
        Ok(()) => context.confirm(number),
        Err((step, error)) => directory.failed(context, Some(name), step, error),
    }
}

fn make(
    context: &Context,
    target_dir: &Arc<Dir>,
    target: &Name,
    directory: &Arc<Directory>,
    name: &Name,
) -> Result<(), Failure> {
    let link_error = |error| (Step::Link, error);
    let from = context.dirs.open(target_dir).map_err(link_error)?;
    let to = context.dirs.open(&directory.dir).map_err(link_error)?;
    let link = |name: &Name| {
        let _turn = context.turn();
        link_anew(&*from, target, &*to, name)
    };
    context.charge(0, 1)?;
    let made = replace(context, &*from, target, (directory, &*to), name, link);
    match made {
        Ok(Some(change)) => {
            context.done(&directory.dir, Some(name), change, EntryKind::HardLink, 0);
        }
        _ => context.refund(0, 1),
    }
    made.map(drop)
}

/// Creates a hard link. The kernel reports that there is no such file if the target is replaced at
/// this moment, by another copy of the same tree (`vfs_link`); then the link is to the new file.
fn link_anew(from: impl AsFd, target: &Name, to: impl AsFd, name: &Name) -> Result<(), Errno> {
    let mut tries = 1;
    loop {
        let made = linkat(&from, target.as_path(), &to, name.as_path(), AtFlags::empty());
        let is_there = || statat(&from, target.as_path(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if made != Err(Errno::NOENT) || tries == LINK_TRIES_MAX || !is_there() {
            return made;
        }
        tries += 1;
    }
}

/// Creates a hard link, in the place of another entry if there is one. Returns nothing if the two
/// are the same file already.
fn replace(
    context: &Context,
    from: impl AsFd,
    target: &Name,
    (directory, to): (&Arc<Directory>, &OwnedFd),
    name: &Name,
    link: impl Fn(&Name) -> Result<(), Errno>,
) -> Result<Option<Change>, Failure> {
    let link_error = |error| (Step::Link, error);
    match link(name) {
        Ok(()) => return Ok(Some(Change::Copy)),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(link_error(error)),
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let one = statat(from, target.as_path(), flags).map_err(link_error)?;
    let other = statat(to, name.as_path(), flags).map_err(link_error)?;
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Ok(None);
    }
    let temporary = directory.temporary(context, name);
    link(&temporary).map_err(link_error)?;
    let renamed = rename(context, directory, to, &temporary, name).inspect_err(|_| {
        // Only the first error is reported.
        let _ = unlinkat(to, temporary.as_path(), AtFlags::empty());
    });
    renamed.map(Some)
}
