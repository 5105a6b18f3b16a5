//! The state that all threads of an applier share.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, Result};

use crate::tree::delta::Signature;
use crate::tree::dirs::{Dir, Dirs};
use crate::tree::metadata;
use crate::tree::owners::Names;
use crate::tree::rules::Rules;
use crate::wire::record::{Entry, Kind};
use crate::wire::record_name::Name;
use weft_sys::lock;

use super::backup::{Around, Backup};
use super::options::ApplyOptions;
use super::quota::QuotaSession;
use super::report::{
    Change, Counters, EntryKind, Event, Failure, Full, Lost, NotKept, Problem, Report, Step,
    Subject, Why,
};
use super::session::Session;

/// File systems that do not distinguish case: FAT, exFAT, NTFS, CIFS, SMB.
const FOLDING: [i64; 6] = [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0xff53_4d42, 0xfe53_4d42];

/// The state that all threads share.
pub(super) struct Context {
    pub(super) options: ApplyOptions,
    pub(super) dirs: Dirs,
    pub(super) session: Session,
    pub(super) who: Who,
    pub(super) folds_case: bool,
    pub(super) counters: Counters,
    /// The entries that these rules exclude are not deleted.
    pub(super) rules: Rules,
    pub(super) quota: Option<QuotaSession>,
    /// How what is replaced is kept.
    pub(super) backup: Option<Backup>,
    /// Other directories, to whose files this one may link.
    pub(super) thirds: Vec<OwnedFd>,
    owners: RwLock<Owners>,
    report: Arc<dyn Report>,
    is_direct_refused: AtomicBool,
    /// Some of the source could not be read, so nothing is deleted.
    has_source_failed: AtomicBool,
    /// The number of remembered names.
    names: AtomicUsize,
    /// The entries that the options still let be deleted, and those that they keep.
    deletes_left: AtomicU64,
    kept: AtomicU64,
    /// The entries that have lost their special bits, and those that have lost their owners.
    lost: Mutex<[LostEntries; 2]>,
}

/// The credentials with which this process creates files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) umask: u16,
    /// New files get another group than this process's, and it is unknown which directories cause
    /// that.
    pub(super) gets_odd_groups: bool,
}

/// Entries that have lost the same.
#[derive(Debug, Default)]
struct LostEntries {
    /// The path of the first one.
    first: Option<Vec<u8>>,
    count: u64,
}

#[derive(Default)]
struct Owners {
    here: Names,
    /// The local numbers of the source's users and groups.
    known: HashMap<(bool, u32), u32>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(
        dirs: Dirs,
        session: Session,
        options: ApplyOptions,
        report: Arc<dyn Report>,
    ) -> Result<Self> {
        let root = dirs.open(dirs.root())?;
        let root_stat = fstat(&*root)?;
        let gid = rustix::process::getegid().as_raw();
        let expected = if is_setgid(&root_stat) { root_stat.st_gid } else { gid };
        let who = Who {
            uid: rustix::process::geteuid().as_raw(),
            gid,
            umask: metadata::umask(),
            gets_odd_groups: session.gid.is_some_and(|gid| gid != expected),
        };
        let folds = || -> Result<bool> {
            let kind = rustix::fs::fstatfs(&*root)?.f_type;
            Ok(FOLDING.contains(&(kind & 0xffff_ffff)))
        };
        let folds_case = options.folds_case.map_or_else(folds, Ok)?;
        let numeric = options.numeric_owners;
        let here = if numeric { Names::default() } else { Names::of_host() };
        let owners = RwLock::new(Owners { here, known: HashMap::new() });
        Ok(Self {
            options,
            dirs,
            session,
            who,
            folds_case,
            counters: Counters::default(),
            rules: Rules::default(),
            quota: None,
            backup: None,
            thirds: Vec::new(),
            owners,
            report,
            is_direct_refused: AtomicBool::new(false),
            has_source_failed: AtomicBool::new(false),
            names: AtomicUsize::new(0),
            deletes_left: AtomicU64::new(options.deletes_max.unwrap_or(u64::MAX)),
            kept: AtomicU64::new(0),
            lost: Mutex::default(),
        })
    }

    pub(super) fn event(&self, dir: &Dir, name: Option<&Name>, event: Event) {
        if let Event::Problem(problem) = &event
            && problem.step.is_of_source()
        {
            self.has_source_failed.store(true, Release);
        }
        let is_of_deletion = matches!(event, Event::Deleted | Event::Done { .. });
        if self.options.only_deletes && !is_of_deletion {
            return;
        }
        self.counters.count(&event);
        self.report.event(Subject { dir, name }, event);
    }

    /// Reports a problem that may pass, if the caller tries again. Otherwise returns false.
    pub(super) fn again(
        &self,
        dir: &Dir,
        name: Option<&Name>,
        problem: Problem,
        is_alone: bool,
    ) -> bool {
        let passes = self.options.retries && problem.may_pass(self.options.deletes);
        if passes {
            self.event(dir, name, Event::Again { is_alone });
        }
        passes
    }

    pub(super) fn problem(&self, dir: &Dir, name: Option<&Name>, step: Step, errno: Errno) {
        self.event(dir, name, Event::Problem(Problem { step, errno: Some(errno) }));
    }

    /// Whether all of the source has been read so far.
    pub(super) fn is_source_whole(&self) -> bool {
        !self.has_source_failed.load(Acquire)
    }

    /// Reports the first file that the file system refuses to write directly.
    pub(super) fn direct_refused(&self, dir: &Dir, name: &Name, errno: Errno) {
        if !self.is_direct_refused.swap(true, AcqRel) {
            self.problem(dir, Some(name), Step::Direct, errno);
        }
    }

    /// Counts what an entry has lost without an error.
    pub(super) fn has_lost(&self, dir: &Dir, name: Option<&Name>, lost: Lost) {
        if lost == Lost::default() {
            return;
        }
        let mut all = lock(&self.lost);
        let [special, owners] = &mut *all;
        for (entries, is_lost) in [(special, lost.special), (owners, lost.owner)] {
            if is_lost {
                entries.first.get_or_insert_with(|| dir.path_of(name));
                entries.count += 1;
            }
        }
    }

    /// Reports what entries have lost, all at once.
    pub(super) fn report_lost(&self) {
        let ApplyOptions { keeps_special_bits, keeps_owners, is_same_host, .. } = self.options;
        let why_special = match keeps_special_bits {
            false => Why::Server,
            true if keeps_owners || is_same_host => Why::Owner,
            true => Why::OtherHost,
        };
        let all = std::mem::take(&mut *lock(&self.lost));
        for (entries, why) in all.into_iter().zip([why_special, Why::Privilege]) {
            let LostEntries { first: Some(path), count } = entries else { continue };
            let not_kept = NotKept { why, others: count - 1 };
            self.counters.count(&Event::NotKept(not_kept));
            self.report.not_kept(&path, not_kept);
        }
    }

    /// Reports a predicted change.
    pub(super) fn planned(
        &self,
        dir: &Dir,
        name: Option<&Name>,
        change: Change,
        kind: EntryKind,
        size: u64,
    ) {
        self.event(dir, name, Event::Planned { change, kind, size });
    }

    /// Reports an entry that the source has.
    pub(super) fn found(&self, dir: &Dir, entry: &Entry) {
        self.report.found(Subject { dir, name: entry.name.as_ref() }, entry);
    }

    /// Reports a change that was made, if changes are listed.
    pub(super) fn done(
        &self,
        dir: &Dir,
        name: Option<&Name>,
        change: Change,
        kind: EntryKind,
        size: u64,
    ) {
        if self.options.lists {
            self.event(dir, name, Event::Done { change, kind, size });
        }
    }

    /// Reports an entry that is as at the source, if that is wanted.
    pub(super) fn confirm(&self, number: u64) {
        if self.options.confirms && !self.is_dry_run() {
            self.report.confirmed(number);
        }
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.options.dry_run.is_some()
    }

    /// Whether entries are deleted, and not only predicted to be.
    pub(super) fn deletes_really(&self) -> bool {
        !self.is_dry_run() || self.options.only_deletes
    }

    /// Whether an entry gets the time that it has at the source.
    pub(super) fn keeps_time_of(&self, entry: &Entry) -> bool {
        let is_changed_later = self.backup.as_ref().is_some_and(Backup::is_beside);
        self.options.keeps_times && !(is_changed_later && entry.kind == Kind::Directory)
    }

    /// Whether one more entry may be deleted. One that may not counts as kept.
    pub(super) fn may_delete(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        let may = self.deletes_left.fetch_update(AcqRel, Acquire, take).is_ok();
        self.kept.fetch_add(u64::from(!may), AcqRel);
        may
    }

    /// Takes back a deletion that has not taken place.
    pub(super) fn has_not_deleted(&self) {
        self.deletes_left.fetch_add(1, AcqRel);
    }

    /// Reports the entries that may not be deleted because others have been.
    pub(super) fn report_kept(&self) {
        let count = self.kept.load(Acquire);
        if count > 0 {
            let problem = Problem { step: Step::Kept(count), errno: None };
            self.event(self.dirs.root(), None, Event::Problem(problem));
        }
    }

    /// Records the name of an owner. Returns false if there are too many.
    pub(super) fn name_owner(&self, is_group: bool, id: u32, name: &[u8], max: usize) -> bool {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = owners.here.id_of(is_group, name) {
            owners.known.insert((is_group, id), here);
        }
        owners.known.len() <= max
    }

    /// Returns the local number of an owner at the source.
    pub(super) fn owner(&self, is_group: bool, id: u32) -> u32 {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.known.get(&(is_group, id)).copied().unwrap_or(id)
    }

    /// Counts a remembered name. Returns false if there are too many, and the name is not
    /// remembered.
    pub(super) fn remember(&self) -> bool {
        let max = self.options.names_max;
        let add = |names: usize| (names < max).then(|| names + 1);
        self.names.fetch_update(AcqRel, Acquire, add).is_ok()
    }

    /// Releases the count of `names` names.
    pub(super) fn forget(&self, names: usize) {
        self.names.fetch_sub(names, AcqRel);
    }

    /// Charges the quota, if there is one, for what is about to be created.
    pub(super) fn charge(&self, bytes: u64, names: u64) -> std::result::Result<(), Failure> {
        let charged = self.quota.as_ref().map_or(Ok(()), |quota| quota.charge(bytes, names));
        charged.map_err(Full::failure)
    }

    /// Reports the blocks of a version of an offered file.
    pub(super) fn described(&self, number: u64, signature: &Signature) {
        self.report.described(number, signature.block_len, &signature.blocks);
    }

    /// Returns what a backup needs.
    pub(super) fn around(&self) -> Around<'_> {
        Around { dirs: &self.dirs, quota: self.quota.as_ref() }
    }

    /// Waits until no other session with the quota, if there is one, gives names to files.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.quota.as_ref().map(QuotaSession::turn)
    }

    /// Takes back a charge.
    pub(super) fn refund(&self, bytes: u64, names: u64) {
        if let Some(quota) = &self.quota {
            quota.refund(bytes, names);
        }
    }
}

/// Whether new entries of a directory inherit its group.
pub(super) fn is_setgid(stat: &Stat) -> bool {
    stat.st_mode & 0o2000 != 0
}
