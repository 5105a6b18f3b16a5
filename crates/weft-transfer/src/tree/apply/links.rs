//! Files with several names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, linkat, statat, unlinkat};
use rustix::io::Errno;

use crate::limits::LINKED_FILES_MAX;
use crate::mutex::lock;
use crate::tree::dirs::Dir;
use crate::tree::temporary;
use crate::wire::record_name::Name;

use super::context::Context;
use super::directory::Directory;
use super::dry;
use super::install::{Failure, rename};
use super::report::Step;

/// The files that later entries may be other names of.
#[derive(Debug, Default)]
pub(super) struct Links {
    files: Mutex<HashMap<u64, Linked>>,
}

#[derive(Debug)]
enum Linked {
    /// It is not there yet. These wait for it.
    Awaited(Vec<(Arc<Directory>, Name)>),
    Settled(Outcome),
}

#[derive(Clone, Debug)]
enum Outcome {
    There(Arc<Dir>, Name),
    Failed,
    /// In a dry run: it would be there.
    Planned,
}

impl Links {
    /// Notes a file that has other names. False if there are too many.
    pub(super) fn expect(&self, file: u64) -> bool {
        let mut files = lock(&self.files);
        files.entry(file).or_insert_with(|| Linked::Awaited(Vec::new()));
        files.len() <= LINKED_FILES_MAX
    }

    /// A file has its name, or will not get it. What waits for it is done.
    pub(super) fn settle(&self, context: &Context, file: u64, place: Option<(&Arc<Dir>, &Name)>) {
        let outcome = match place {
            Some((dir, name)) => Outcome::There(Arc::clone(dir), name.clone()),
            None => Outcome::Failed,
        };
        self.end(context, file, &outcome);
    }

    /// In a dry run, a file would get its name.
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
        for (directory, name) in waiting {
            make_and_report(context, outcome, &directory, &name);
            directory.end_pending(context);
        }
    }

    /// Makes another name of a file, now or when it is there. The directory has it as pending.
    pub(super) fn link(
        &self,
        context: &Context,
        file: u64,
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
                waiting.push((Arc::clone(directory), name.clone()));
                return;
            }
            Some(Linked::Settled(outcome)) => outcome.clone(),
            None => Outcome::Failed,
        };
        make_and_report(context, &outcome, directory, name);
        directory.end_pending(context);
    }

    /// Gives up what waits for files that will not come.
    pub(super) fn give_up(&self, context: &Context) {
        let files = std::mem::take(&mut *lock(&self.files));
        for linked in files.into_values() {
            let Linked::Awaited(waiting) = linked else { continue };
            context.forget(waiting.len());
            for (directory, name) in waiting {
                make_and_report(context, &Outcome::Failed, &directory, &name);
                directory.end_pending(context);
            }
        }
    }
}

fn make_and_report(context: &Context, outcome: &Outcome, directory: &Directory, name: &Name) {
    let result = match outcome {
        Outcome::Failed => Err((Step::Link, Errno::NOENT)),
        Outcome::There(dir, target) if context.is_dry_run() => {
            dry::link(context, Some((dir, target)), directory.place(name))
        }
        Outcome::There(dir, target) => make(context, dir, target, directory, name),
        Outcome::Planned => dry::link(context, None, directory.place(name)),
    };
    if let Err((step, error)) = result {
        directory.failed(context, Some(name), step, error);
    }
}

fn make(
    context: &Context,
    target_dir: &Arc<Dir>,
    target: &Name,
    directory: &Directory,
    name: &Name,
) -> Result<(), Failure> {
    let link_error = |error| (Step::Link, error);
    let from = context.dirs.open(target_dir).map_err(link_error)?;
    let to = context.dirs.open(&directory.dir).map_err(link_error)?;
    let link =
        |name: &Name| linkat(&*from, target.as_path(), &*to, name.as_path(), AtFlags::empty());
    match link(name) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(link_error(error)),
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let one = statat(&*from, target.as_path(), flags).map_err(link_error)?;
    let other = statat(&*to, name.as_path(), flags).map_err(link_error)?;
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Ok(());
    }
    let temporary = temporary::name_of(name, context.session.id);
    link(&temporary).map_err(link_error)?;
    rename(&*to, &temporary, name).inspect_err(|_| {
        // It is of no use; the error that is reported is the first.
        let _ = unlinkat(&*to, temporary.as_path(), AtFlags::empty());
    })
}
