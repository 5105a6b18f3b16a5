//! Directories that were begun and have not ended.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{
    AtFlags, FileType, Mode, Stat, fgetxattr, fstat, fsync, mkdirat, renameat, statat,
};
use rustix::io::{Errno, Result};

use crate::tree::dirs::{Becomes, Dir};
use crate::tree::metadata;
use crate::wire::record::Entry;
use crate::wire::record_name::Name;
use weft_sys::lock;

use super::attributes::{self, Created};
use super::clean::{self, Deletion};
use super::context::{Context, is_setgid};
use super::dry::{self, Place};
use super::report::{Change, EntryKind, Event, Problem, Step};

/// The entries that the source does not have, with their directories. They are deleted when the
/// whole source is known: what could not be read there may be what was moved from here.
#[derive(Debug, Default)]
pub(super) struct Extras {
    found: Mutex<Vec<Extra>>,
    /// Entries whose names other entries have got.
    replaced: Mutex<Vec<(Arc<Directory>, Name, FileType)>>,
}

#[derive(Debug)]
struct Extra {
    directory: Arc<Directory>,
    names: Vec<(Name, FileType)>,
}

impl Extras {
    /// Deletes them, unless some of the source could not be read.
    pub(super) fn delete(&self, context: &Context) {
        let is_safe = context.is_source_whole();
        if !is_safe && context.options.deletes {
            let problem = Problem { step: Step::NotDeleted, errno: None };
            context.event(context.dirs.root(), None, Event::Problem(problem));
        }
        for (directory, name, kind) in std::mem::take(&mut *lock(&self.replaced)) {
            if is_safe {
                clean::delete(context, &directory.dir, name, kind, Deletion::Replaced);
            } else {
                let problem = Problem { step: Step::Aside, errno: None };
                context.event(&directory.dir, Some(&name), Event::Problem(problem));
            }
            directory.close(context);
        }
        for Extra { directory, names } in std::mem::take(&mut *lock(&self.found)) {
            context.forget(names.len());
            for (name, kind) in names.into_iter().filter(|_| is_safe) {
                clean::delete(context, &directory.dir, name, kind, Deletion::Extra);
            }
            directory.close(context);
        }
        context.report_kept();
    }
}

/// A directory at the sink. Each entry in work counts as pending, so that the directory ends last.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) dir: Arc<Dir>,
    parent: Option<Arc<Self>>,
    /// The attributes that it gets at its end; `None` if the root keeps its own.
    entry: Mutex<Option<Box<Entry>>>,
    /// The directory existed before.
    existed: bool,
    /// The directory could not be created, so its entries fail, too.
    pub(super) is_lost: bool,
    pub(super) created: Created,
    /// The number of entries in work, plus one until the source has ended the directory.
    pending: AtomicUsize,
    /// The number of subdirectories that may still change, plus one while an entry is in work, and
    /// one while entries wait for their deletion. Then the directory gets its attributes.
    open: AtomicUsize,
    /// The journal names the directory.
    is_named: AtomicBool,
    /// Its attributes differ from those at the source, and changes are listed.
    is_changed: AtomicBool,
    /// An entry failed, so nothing is deleted.
    has_error: AtomicBool,
    names: Mutex<Names>,
    /// Those of all directories; the applier has them.
    extras: Weak<Extras>,
}

#[derive(Debug, Default)]
struct Names {
    /// The names that must not be deleted.
    kept: HashSet<Name>,
    /// On a file system that folds case: the folded names with their original names.
    folded: std::collections::HashMap<String, Name>,
    /// There were too many names to remember.
    is_full: bool,
    is_complete: bool,
}

impl Directory {
    pub(super) fn root(context: &Context, extras: &Arc<Extras>) -> Result<Self> {
        let dir = Arc::clone(context.dirs.root());
        let created = look(context, &dir)?;
        let existed = context.options.dry_run.is_none_or(|dry_run| dry_run.has_root);
        if !existed {
            context.planned(&dir, None, Change::Copy, EntryKind::Directory, 0);
        }
        let root = Self::new(dir, None, None, existed, false, created);
        Ok(Self { extras: Arc::downgrade(extras), ..root })
    }

    fn new(
        dir: Arc<Dir>,
        parent: Option<Arc<Self>>,
        entry: Option<Box<Entry>>,
        existed: bool,
        is_lost: bool,
        created: Created,
    ) -> Self {
        let extras = parent.as_ref().map(|parent| Weak::clone(&parent.extras)).unwrap_or_default();
        Self {
            dir,
            parent,
            entry: Mutex::new(entry),
            existed,
            is_lost,
            created,
            pending: AtomicUsize::new(1),
            open: AtomicUsize::new(1),
            is_named: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
            has_error: AtomicBool::new(is_lost),
            names: Mutex::default(),
            extras,
        }
    }

    /// Creates a directory, or opens the existing one. Errors are reported.
    pub(super) fn begin(
        context: &Context,
        parent: &Arc<Self>,
        name: &Name,
        entry: Box<Entry>,
        refusal: Option<(Step, Errno)>,
    ) -> Option<Self> {
        parent.begin_pending();
        let dir = match context.dirs.child(&parent.dir, name.clone()) {
            Ok(dir) => dir,
            Err(error) => {
                parent.failed(context, Some(name), Step::Create, error);
                parent.end_pending(context);
                return None;
            }
        };
        let lost = parent.is_lost.then_some((Step::Create, Errno::NOENT));
        let result = match refusal.or(lost) {
            Some(failure) => Err(failure),
            None => create(context, parent, &dir, name),
        };
        let (existed, is_lost, created) = match result {
            Ok((existed, created)) => (existed, false, created),
            Err((step, errno)) => {
                let problem = Problem { step, errno: Some(errno) };
                // What is in it fails, too.
                if !context.again(&parent.dir, Some(name), problem, false) {
                    parent.failed(context, Some(name), step, errno);
                }
                (true, true, parent.created)
            }
        };
        parent.open.fetch_add(1, AcqRel);
        let parent = Some(Arc::clone(parent));
        let directory = Self::new(dir, parent, None, existed, is_lost, created);
        directory.set_entry(context, entry, None);
        Some(directory)
    }

    pub(super) fn is_new(&self) -> bool {
        !self.existed
    }

    /// Returns the temporary name of an entry. A later session finds it by the journal.
    pub(super) fn temporary(&self, context: &Context, name: &Name) -> Name {
        if let Some(journal) = &context.session.journal
            && !self.is_named.load(Acquire)
            && !self.is_named.swap(true, AcqRel)
        {
            journal.folder(&self.dir.path_of(None));
        }
        context.session.maker.name_of(name)
    }

    /// Whether the options leave this name as it is, because it exists.
    pub(super) fn leaves(&self, context: &Context, name: &Name) -> bool {
        context.options.skips.existing && self.place(name).exists(context)
    }

    /// Returns the place of a name in it, for a dry run.
    pub(super) fn place<'a>(&'a self, name: &'a Name) -> Place<'a> {
        Place { dir: &self.dir, is_new: self.is_new(), name }
    }

    /// Sets the attributes that the directory gets at its end. They are compared before entries of
    /// the directory change its time; `before` is its status if some have done so.
    pub(super) fn set_entry(&self, context: &Context, entry: Box<Entry>, before: Option<Stat>) {
        let is_listed = context.options.lists && self.existed && !self.is_lost;
        if is_listed && dry::is_changed(context, &self.dir, &entry, before) {
            self.is_changed.store(true, Release);
        }
        if context.backup.is_some() && context.options.keeps_modes {
            let owner = (context.owner(false, entry.uid), context.owner(true, entry.gid));
            let owner = context.options.keeps_owners.then_some(owner);
            self.dir.will_become(Becomes { mode: entry.mode, owner });
        }
        *lock(&self.entry) = Some(entry);
    }

    /// Counts an entry whose work begins.
    pub(super) fn begin_pending(&self) {
        self.pending.fetch_add(1, AcqRel);
    }

    /// Counts an entry as done. After the last one, ends the directory.
    pub(super) fn end_pending(self: &Arc<Self>, context: &Context) {
        let mut at = self;
        while at.pending.fetch_sub(1, AcqRel) == 1 {
            at.end(context);
            at.close(context);
            match &at.parent {
                Some(parent) => at = parent,
                None => return,
            }
        }
    }

    /// Counts one of `open` as done. After the last one, finishes the directory, unless it is the
    /// root.
    fn close(self: &Arc<Self>, context: &Context) {
        let mut at = self;
        while at.open.fetch_sub(1, AcqRel) == 1 {
            let Some(parent) = &at.parent else { return };
            if !at.is_lost {
                at.finish(context);
            }
            at = parent;
        }
    }

    /// Records that the source has sent all entries of the directory.
    pub(super) fn ended(self: &Arc<Self>, context: &Context, is_complete: bool) {
        lock(&self.names).is_complete = is_complete;
        self.end_pending(context);
    }

    /// Records a name that must not be deleted. Returns false if it clashes with another name.
    pub(super) fn keep(&self, context: &Context, name: &Name) -> bool {
        let mut names = lock(&self.names);
        if context.options.deletes && self.existed && !names.is_full && !names.kept.contains(name) {
            if context.remember() {
                names.kept.insert(name.clone());
            } else {
                // The set of names is incomplete, so nothing may be deleted.
                names.is_full = true;
                self.failed(context, None, Step::Delete, Errno::NOMEM);
            }
        }
        if !context.folds_case {
            return true;
        }
        let folded = String::from_utf8_lossy(name.as_bytes()).to_lowercase();
        match names.folded.get(&folded) {
            Some(first) => first == name,
            None if context.remember() => {
                names.folded.insert(folded, name.clone());
                true
            }
            None => false,
        }
    }

    /// Forgets the names in it.
    fn forget_names(&self, context: &Context) -> Names {
        let names = std::mem::take(&mut *lock(&self.names));
        context.forget(names.kept.len() + names.folded.len());
        names
    }

    /// Prevents deletions in the directory after an error.
    pub(super) fn note_error(&self) {
        self.has_error.store(true, Release);
    }

    /// Reports a problem with an entry of the directory.
    pub(super) fn failed(&self, context: &Context, name: Option<&Name>, step: Step, errno: Errno) {
        let problem = Problem { step, errno: Some(errno) };
        if !context.again(&self.dir, name, problem, true) {
            self.note_error();
            context.event(&self.dir, name, Event::Problem(problem));
        }
    }

    /// Gives an entry another name, because one of another type gets its name. It is deleted with
    /// the entries that the source does not have.
    pub(super) fn put_aside(
        self: &Arc<Self>,
        context: &Context,
        dir: impl AsFd,
        name: &Name,
    ) -> std::result::Result<(), (Step, Errno)> {
        let there = statat(&dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
        let kind = metadata::kind(&there.map_err(|error| (Step::Rename, error))?);
        if clean::has_protected(context, &self.dir, name, kind) {
            return Err((Step::Clash, Errno::NOTEMPTY));
        }
        if let Some(backup) = &context.backup {
            if kind != FileType::Directory {
                return backup.take(context.around(), &self.dir, &dir, name);
            }
            // What is in it is kept, so that this need not wait until all of the source is known.
            clean::delete(context, &self.dir, name.clone(), kind, Deletion::Extra);
            return match statat(&dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(()),
                _ => Err((Step::Clash, Errno::NOTEMPTY)),
            };
        }
        let aside = context.session.maker.aside(name);
        renameat(&dir, name.as_path(), &dir, aside.as_path())
            .map_err(|error| (Step::Rename, error))?;
        if let Some(extras) = self.extras.upgrade() {
            self.open.fetch_add(1, AcqRel);
            lock(&extras.replaced).push((Arc::clone(self), aside, kind));
        }
        Ok(())
    }

    /// Removes leftovers of earlier sessions, and finds the entries that the source does not have.
    fn end(self: &Arc<Self>, context: &Context) {
        let kept = self.forget_names(context);
        if self.is_lost || !self.existed {
            return;
        }
        let may_delete = kept.is_complete && !self.has_error.load(Acquire);
        let deletes = context.options.deletes && may_delete;
        match clean::clean(context, &self.dir, deletes.then_some(&kept.kept)) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                if let Some(extras) = self.extras.upgrade() {
                    self.open.fetch_add(1, AcqRel);
                    lock(&extras.found).push(Extra { directory: Arc::clone(self), names });
                }
            }
            Err(error) => context.problem(&self.dir, None, Step::Delete, error),
        }
    }

    /// Sets owner, mode and times, and syncs the directory if the options require it. It must not
    /// change after this.
    pub(super) fn finish(&self, context: &Context) {
        let entry = lock(&self.entry).take();
        if context.is_dry_run() {
            if let Some(entry) = entry.filter(|_| self.existed) {
                dry::directory_attributes(context, &self.dir, &entry);
            }
            return;
        }
        if entry.is_none() && !context.options.syncs {
            return;
        }
        let fd = match context.dirs.open(&self.dir) {
            Ok(fd) => fd,
            Err(error) => return context.problem(&self.dir, None, Step::Attributes, error),
        };
        if let Some(entry) = entry {
            let plan = attributes::plan(context, &entry, None);
            let set = plan.set(context, fd.as_fd(), &entry, (&self.dir, None));
            match set {
                Err(error) => context.problem(&self.dir, None, Step::Attributes, error),
                Ok(()) if self.is_changed.load(Acquire) => {
                    let (change, kind) = (Change::Attributes, EntryKind::Directory);
                    context.done(&self.dir, None, change, kind, 0);
                }
                Ok(()) => {}
            }
        }
        if context.options.syncs
            && let Err(error) = fsync(&*fd)
        {
            context.problem(&self.dir, None, Step::Sync, error);
        }
    }
}

/// Creates a directory unless it exists. Only the owner can access it until it gets its mode.
fn create(
    context: &Context,
    parent: &Arc<Directory>,
    dir: &Arc<Dir>,
    name: &Name,
) -> std::result::Result<(bool, Created), (Step, Errno)> {
    let create_error = |error| (Step::Create, error);
    if context.is_dry_run() {
        let change = parent.place(name).change_to_directory(context)?;
        let Some(change) = change else {
            return Ok((true, look(context, dir).map_err(create_error)?));
        };
        context.planned(dir, None, change, EntryKind::Directory, 0);
        return Ok((false, parent.created));
    }
    let above = context.dirs.open(&parent.dir).map_err(create_error)?;
    let mode = if context.options.keeps_modes { 0o700 } else { 0o777 };
    let charged = context.charge(0, 1);
    let made = match charged {
        Ok(()) => mkdirat(&*above, name.as_path(), Mode::from_raw_mode(mode)),
        // A directory that is there is not created.
        Err(failure) => match look(context, dir) {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => return Err(failure),
        },
    };
    if charged.is_ok() && made.is_err() {
        context.refund(0, 1);
    }
    if made.is_ok() {
        context.done(dir, None, Change::Copy, EntryKind::Directory, 0);
    }
    match made {
        // New entries inherit ACLs and the group as in the parent.
        Ok(()) if parent.created.has_plain_modes => return Ok((false, parent.created)),
        Ok(()) => return Ok((false, look(context, dir).map_err(create_error)?)),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(create_error(error)),
    }
    match look(context, dir) {
        Ok(created) => return Ok((true, created)),
        Err(Errno::LOOP | Errno::NOTDIR) if context.options.replaces => {}
        Err(Errno::LOOP | Errno::NOTDIR) => return Err((Step::Clash, Errno::NOTDIR)),
        Err(error) => return Err(create_error(error)),
    }
    parent.put_aside(context, &*above, name)?;
    context.charge(0, 1)?;
    mkdirat(&*above, name.as_path(), Mode::from_raw_mode(mode)).map_err(|error| {
        context.refund(0, 1);
        create_error(error)
    })?;
    context.done(dir, None, Change::Update, EntryKind::Directory, 0);
    Ok((false, look(context, dir).map_err(create_error)?))
}

/// Inspects an existing directory.
fn look(context: &Context, dir: &Arc<Dir>) -> Result<Created> {
    // It gets its final mode at its end.
    let fd = attributes::open_dir(context, dir)?;
    let stat = fstat(&*fd)?;
    let mut list = [0_u8; 0];
    let has_plain_modes = matches!(
        fgetxattr(&*fd, "system.posix_acl_default", &mut list[..]),
        Err(Errno::NODATA | Errno::NOTSUP)
    );
    let gid = if is_setgid(&stat) { stat.st_gid } else { context.who.gid };
    Ok(Created { gid, has_plain_modes })
}
