//! What all threads of an applier share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, Result};

use crate::limits::DURABLE_EACH;
use crate::tree::dirs::{Dir, Dirs};
use crate::tree::owners::Names;
use crate::tree::rules::Rules;
use crate::wire::record_name::Name;

use super::options::ApplyOptions;
use super::report::{Change, Counters, EntryKind, Event, Problem, Report, Step, Subject};
use super::session::{Session, now};

/// The file systems of which names that differ in case are one: FAT, exFAT, NTFS, CIFS, SMB.
const FOLDING: [i64; 6] = [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0xff53_4d42, 0xfe53_4d42];

/// What all threads share.
pub(super) struct Context {
    pub(super) options: ApplyOptions,
    pub(super) dirs: Dirs,
    pub(super) session: Session,
    pub(super) who: Who,
    pub(super) folds_case: bool,
    pub(super) counters: Counters,
    /// What they leave out is not deleted.
    pub(super) rules: Rules,
    owners: RwLock<Owners>,
    report: Arc<dyn Report>,
    /// Bytes since the file system was last synced.
    unsynced: AtomicU64,
    /// Names that are remembered.
    names: AtomicUsize,
}

/// This process, as the kernel looks at it when it creates files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) umask: u16,
    /// Files get another group than this process's: where, is not known.
    pub(super) gets_odd_groups: bool,
}

#[derive(Default)]
struct Owners {
    here: Names,
    /// The number here of a number at the source.
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
            umask: umask(),
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
            owners,
            report,
            unsynced: AtomicU64::new(0),
            names: AtomicUsize::new(0),
        })
    }

    pub(super) fn event(&self, dir: &Dir, name: Option<&Name>, event: Event) {
        self.counters.count(&event);
        self.report.event(Subject { dir, name }, event);
    }

    pub(super) fn problem(&self, dir: &Dir, name: Option<&Name>, step: Step, errno: Errno) {
        self.event(dir, name, Event::Problem(Problem { step, errno: Some(errno) }));
    }

    /// Says what would happen.
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

    pub(super) fn is_dry_run(&self) -> bool {
        self.options.dry_run.is_some()
    }

    /// Notes the name of an owner. False if there are too many.
    pub(super) fn name_owner(&self, is_group: bool, id: u32, name: &[u8], max: usize) -> bool {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = owners.here.id_of(is_group, name) {
            owners.known.insert((is_group, id), here);
        }
        owners.known.len() <= max
    }

    /// The number here of an owner at the source.
    pub(super) fn owner(&self, is_group: bool, id: u32) -> u32 {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.known.get(&(is_group, id)).copied().unwrap_or(id)
    }

    /// Counts a name that is remembered. False if there are too many: it is not remembered.
    pub(super) fn remember(&self) -> bool {
        let max = self.options.names_max;
        let add = |names: usize| (names < max).then(|| names + 1);
        self.names.fetch_update(AcqRel, Acquire, add).is_ok()
    }

    /// So many names are not remembered any more.
    pub(super) fn forget(&self, names: usize) {
        self.names.fetch_sub(names, AcqRel);
    }

    /// Counts bytes that have been written. Now and then they are made durable.
    pub(super) fn has_written(&self, len: u64) {
        let Some(journal) = &self.session.journal else { return };
        let before = self.unsynced.fetch_add(len, AcqRel);
        // One thread of all crosses the line.
        if before < DURABLE_EACH && before.saturating_add(len) >= DURABLE_EACH {
            self.unsynced.fetch_sub(before.saturating_add(len), AcqRel);
            // Without it the journal says less, and the files' own ends find what is wrong.
            let _ = journal.sync(now());
        }
    }
}

/// Whether what is created in a directory gets the directory's group.
pub(super) fn is_setgid(stat: &Stat) -> bool {
    stat.st_mode & 0o2000 != 0
}

/// The process's umask. Where it is not known, all bits are: modes are set then.
fn umask() -> u16 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = text.lines();
    let digits = lines.find_map(|line| line.strip_prefix("Umask:"));
    digits.and_then(|digits| u16::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o777)
}
