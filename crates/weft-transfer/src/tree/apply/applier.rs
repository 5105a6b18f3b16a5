//! The sink's applier: it parses blocks in order, and returns tasks that write their contents.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;

use crate::limits::{
    BYTES_IN_TASK_MAX, DIRECTORIES_BEGUN_MAX, FILES_BEGUN_MAX, FILES_IN_TASK_MAX,
    OFFERS_IN_TASK_MAX, OWNERS_MAX, RANGES_MAX, WANTS_SPAN_MAX,
};
use crate::tree::dirs::Dirs;
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::ranges::Ranges;
use crate::tree::rules::Rules;
use crate::tree::temporary;
use crate::wire::record::{Entry, Kind, ROOT, Record, Status, Tail};
use crate::wire::record_name::Name;
use crate::wire::record_table::{self, Placed, TableError};
use crate::wire::record_wants::Wants;

use super::asked::Asked;
use super::backup::Backup;
use super::begun::{Begun, VersionPart};
use super::context::Context;
use super::directory::{Directory, Extras};
use super::dry;
use super::install;
use super::links::Links;
use super::look::{self, Offer, Resumable};
use super::options::ApplyOptions;
use super::quota::QuotaSession;
use super::report::{Event, Failure, Problem, Report, Step, Summary};
use super::session::Session;

/// The directory cannot be applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot create files there: {0}")]
pub struct BeginError(pub Errno);

/// A block is invalid. The session cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The block's table is invalid.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A record names a directory that was not begun or has ended.
    #[error("directory {0} has not begun or has ended")]
    NoDirectory(u64),
    /// A record names a file that was not begun or has ended.
    #[error("file {0} has not begun or has ended")]
    NoFile(u64),
    /// Two entries have the same number.
    #[error("entry number {0} is used twice")]
    Twice(u64),
    /// Parts overlap, exceed the file's size, or are too many.
    #[error("file {file}: invalid part of {len} bytes at offset {offset}")]
    Part {
        /// The file.
        file: u64,
        /// The offset of the part.
        offset: u64,
        /// The length of the part.
        len: u64,
    },
    /// Directories are nested too deeply.
    #[error("entry {0} is nested too deeply")]
    Deep(u64),
    /// A limit is exceeded.
    #[error("too many {0}")]
    TooMany(&'static str),
    /// The source sends a file that the sink did not ask for.
    #[error("the source sent entry {0}, which was not requested")]
    NotAsked(u64),
    /// The source asks for a copy within one process, but it is in another one.
    #[error("file {0} is not open in this process, so its data has to be sent")]
    NotHere(u64),
    /// Records follow the end of the tree.
    #[error("a record follows the end of the tree")]
    AfterFinish,
    /// The records end before the end of the tree.
    #[error("the records end before the end of the tree")]
    NoFinish,
    /// The session's files could not be removed.
    #[error("cannot remove the files of the session: {0}")]
    Clean(Errno),
}

/// Applies records to a directory. One thread passes it the blocks in the order of their numbers;
/// any threads run the tasks that it returns.
///
/// If it is dropped without [`Applier::finish`], the session's file stays in the root. A later
/// session then resumes from it, or removes the rest.
#[derive(Debug)]
pub struct Applier {
    shared: Arc<ApplierState>,
    root: Arc<Directory>,
    /// The root's status before anything was created in it, if changes are listed.
    root_before: Option<Stat>,
    extras: Arc<Extras>,
    directories: HashMap<u64, Arc<Directory>>,
    files: HashMap<u64, InWork>,
    owners: usize,
    /// The only names that the source may create in the root; `None` allows all.
    asked: Option<Asked>,
    /// The root corresponds to one directory of the source, so the source lists all names in it.
    is_root_listed: bool,
    is_finished: bool,
    is_ended: bool,
}

#[derive(Debug)]
struct ApplierState {
    context: Context,
    links: Links,
    resumable: Resumable,
    /// The open files of a source in this process.
    copies: Option<Arc<KernelCopies>>,
}

#[derive(Debug)]
struct InWork {
    begun: Arc<Begun>,
    /// The ranges that have come.
    ranges: Ranges,
    tail: Option<Tail>,
}

/// A piece of work for any thread, which needs the payload of its block.
#[derive(Debug)]
pub struct Task {
    shared: Arc<ApplierState>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Entries(Vec<Small>),
    Part {
        begun: Arc<Begun>,
        number: u64,
        offset: u64,
        data: Range<usize>,
        digest: Option<[u8; 32]>,
    },
    /// A part that the kernel copies.
    /// A part that is made of the version that exists.
    Version {
        begun: Arc<Begun>,
        number: u64,
        part: VersionPart,
        data: Range<usize>,
    },
    Copy {
        begun: Arc<Begun>,
        number: u64,
        offset: u64,
        len: u64,
    },
    /// All parts of a file have been written.
    Complete(Arc<Begun>),
    Look(Vec<Offer>),
}

/// An entry that one task creates completely. Its directory counts it as pending.
#[derive(Debug)]
struct Small {
    directory: Arc<Directory>,
    name: Name,
    entry: Box<Entry>,
    /// The data and the end of a file.
    data: Option<(Range<usize>, Tail)>,
}

impl Task {
    /// Runs the task. `payload` is the payload of its block. A returned answer must be sent to the
    /// source.
    ///
    /// # Panics
    /// If the payload is shorter than that of the block.
    #[must_use = "the source waits for the answer"]
    pub fn run(self, payload: &[u8]) -> Option<Wants> {
        let ApplierState { context, links, resumable, copies } = &*self.shared;
        match self.work {
            Work::Entries(entries) => {
                for small in entries {
                    small.run(context, links, payload);
                }
            }
            Work::Part { begun, number, offset, data, digest } => {
                begun.write(context, number, (offset, &payload[data]), digest);
                end_part(context, links, &begun);
            }
            Work::Version { begun, number, part, data } => {
                begun.write_version(context, number, part, &payload[data]);
                end_part(context, links, &begun);
            }
            Work::Copy { begun, number, offset, len } => {
                if let Some(copies) = copies {
                    begun.copy(context, copies, number, (offset, len));
                }
                end_part(context, links, &begun);
            }
            Work::Complete(begun) => end_part(context, links, &begun),
            Work::Look(offers) => return look::look(context, links, resumable, offers),
        }
        None
    }
}

impl Small {
    fn run(self, context: &Context, links: &Links, payload: &[u8]) {
        let Self { directory, name, entry, data } = self;
        match (&entry.kind, data) {
            (Kind::HardLink { target }, _) => {
                return links.link(context, (entry.number, *target), &directory, &name);
            }
            (Kind::File, Some((data, tail))) => {
                let data = &payload[data];
                let is_there = install::whole(context, &directory, &entry, &name, data, tail);
                if entry.is_linked {
                    let place = is_there.then_some((&directory.dir, &name));
                    links.settle(context, entry.number, place);
                }
            }
            _ if directory.leaves(context, &name) => {}
            _ if context.is_dry_run() => {
                let place = directory.place(&name);
                if let Err((step, error)) = dry::other(context, place, &entry, directory.created) {
                    directory.failed(context, Some(&name), step, error);
                }
            }
            _ => install::other(context, &directory, &entry, &name),
        }
        directory.end_pending(context);
    }
}

fn end_part(context: &Context, links: &Links, begun: &Begun) {
    let Some(is_there) = begun.end_part(context) else { return };
    let (directory, entry) = (&begun.directory, &begun.entry);
    if entry.is_linked {
        let place = entry.name.as_ref().filter(|_| is_there).map(|name| (&directory.dir, name));
        links.settle(context, entry.number, place);
    }
    directory.end_pending(context);
}

/// The tasks of a block that is being parsed.
#[derive(Debug, Default)]
struct Batch {
    work: Vec<Work>,
    small: Vec<Small>,
    small_len: usize,
    offers: Vec<Offer>,
}

impl Batch {
    fn push_small(&mut self, small: Small) {
        self.small_len += small.data.as_ref().map_or(0, |(data, _)| data.len());
        self.small.push(small);
        if self.small.len() == FILES_IN_TASK_MAX || self.small_len >= BYTES_IN_TASK_MAX {
            self.end_small();
        }
    }

    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.work.push(Work::Entries(std::mem::take(&mut self.small)));
            self.small_len = 0;
        }
    }

    fn push_offer(&mut self, offer: Offer) {
        // One answer covers ascending numbers within a limited span.
        let number = offer.entry.number;
        let is_next = |last: &Offer| last.entry.number < number;
        let is_near =
            |first: &Offer| number.saturating_sub(first.entry.number) < WANTS_SPAN_MAX as u64;
        if !(self.offers.last().is_none_or(is_next) && self.offers.first().is_none_or(is_near)) {
            self.end_offers();
        }
        self.offers.push(offer);
        if self.offers.len() == OFFERS_IN_TASK_MAX {
            self.end_offers();
        }
    }

    fn end_offers(&mut self) {
        if !self.offers.is_empty() {
            self.work.push(Work::Look(std::mem::take(&mut self.offers)));
        }
    }
}

impl Applier {
    /// Begins a session in an open directory.
    ///
    /// # Errors
    /// If the directory cannot be read, or the session's file cannot be created in it.
    pub fn begin(
        root: OwnedFd,
        options: ApplyOptions,
        report: Arc<dyn Report>,
    ) -> Result<Self, BeginError> {
        let root_before = options.lists.then(|| fstat(&root)).and_then(Result::ok);
        let session = Session::begin(root.as_fd(), &options).map_err(BeginError)?;
        let dirs = Dirs::new(root);
        let context = Context::new(dirs, session, options, report).map_err(BeginError)?;
        let extras = Arc::default();
        let root = Arc::new(Directory::root(&context, &extras).map_err(BeginError)?);
        let (links, resumable) = (Links::default(), Resumable::default());
        Ok(Self {
            shared: Arc::new(ApplierState { context, links, resumable, copies: None }),
            directories: HashMap::from([(ROOT, Arc::clone(&root))]),
            root,
            root_before,
            extras,
            files: HashMap::new(),
            owners: 0,
            asked: None,
            is_root_listed: false,
            is_finished: false,
            is_ended: false,
        })
    }

    /// Allows only these names in the root.
    #[must_use]
    pub fn only(mut self, names: HashSet<Name>) -> Self {
        self.asked = Some(Asked(names));
        self
    }

    /// Limits what is created, by a quota.
    ///
    /// # Panics
    /// If a block has been applied already.
    #[must_use]
    pub fn within(mut self, quota: Option<QuotaSession>) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("no task has begun");
        shared.context.quota = quota;
        self
    }

    /// Protects entries that these rules exclude from deletion.
    ///
    /// # Panics
    /// If a block has been applied already.
    #[must_use]
    pub fn protecting(mut self, rules: Rules) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("no task has begun");
        shared.context.rules = rules;
        self
    }

    /// Keeps what is replaced or deleted.
    ///
    /// # Panics
    /// If a block has been applied already.
    #[must_use]
    pub fn keeping(mut self, backup: Option<Backup>) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("no task has begun");
        shared.context.backup = backup;
        self
    }

    /// Links to files of other directories instead of copying equal ones. A directory that does not
    /// exist is reported. The source must offer files then.
    ///
    /// # Panics
    /// If a block has been applied already.
    #[must_use]
    pub fn linking_to(mut self, thirds: Vec<Option<OwnedFd>>) -> Self {
        let context = &mut Arc::get_mut(&mut self.shared).expect("no task has begun").context;
        for third in thirds {
            match third {
                Some(third) => context.thirds.push(third),
                None => context.problem(context.dirs.root(), None, Step::Third, Errno::NOENT),
            }
        }
        self
    }

    /// Lets the kernel copy from the open files of a source in this process.
    ///
    /// # Panics
    /// If a block has been applied already.
    #[must_use]
    pub fn copying(mut self, copies: Option<Arc<KernelCopies>>) -> Self {
        Arc::get_mut(&mut self.shared).expect("no task has begun").copies = copies;
        self
    }

    /// The counters so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.shared.context.counters.summary()
    }

    /// Whether the end of the tree has come, so that [`Applier::finish`] may be called after the
    /// tasks.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Applies the next block. The block is free when all returned tasks have run.
    ///
    /// # Errors
    /// If the block is invalid. At most directories have been created from it then.
    pub fn apply(&mut self, payload: &[u8], table_len: usize) -> Result<Vec<Task>, ApplyError> {
        let mut batch = Batch::default();
        for Placed { record, data } in record_table::parse(payload, table_len)? {
            self.take(record, data, &mut batch)?;
        }
        batch.end_small();
        batch.end_offers();
        let task = |work| Task { shared: Arc::clone(&self.shared), work };
        Ok(batch.work.into_iter().map(task).collect())
    }

    fn take(
        &mut self,
        record: Record,
        data: Range<usize>,
        batch: &mut Batch,
    ) -> Result<(), ApplyError> {
        if self.is_finished {
            return Err(ApplyError::AfterFinish);
        }
        let context = &self.shared.context;
        if context.options.names_entries
            && let Record::Entry(entry) | Record::Offer(entry) = &record
        {
            context.found(&self.directory(entry.parent)?.dir, entry);
        }
        match record {
            Record::Nothing => {}
            Record::Entry(entry) => {
                self.check_asked(&entry)?;
                self.entry(entry, batch)?;
            }
            Record::Offer(entry) => {
                self.check_asked(&entry)?;
                let directory = self.directory(entry.parent)?;
                let Some(name) = entry.name.clone() else { return Ok(()) };
                self.expect_links(&entry)?;
                let refusal = self.refusal(&directory, &name);
                directory.begin_pending();
                batch.push_offer(Offer { directory, name, entry, refusal });
            }
            Record::Whole { entry, .. } if context.is_dry_run() => {
                return Err(ApplyError::NotAsked(entry.number));
            }
            Record::Whole { entry, tail, .. } => {
                self.check_asked(&entry)?;
                self.expect_links(&entry)?;
                self.small(entry, Some((data, tail)), batch)?;
            }
            Record::Data { file, offset, len, digest } => {
                let begun = self.part(file, offset, len.into())?;
                let number = begun.begin_part();
                batch.work.push(Work::Part { begun, number, offset, data, digest });
                self.end_file(file, batch);
            }
            Record::VersionPart { file, offset, len, digest, .. } => {
                let is_asked = context.options.uses_versions;
                let begun = self.part(file, offset, len.into())?;
                if !is_asked || begun.entry.is_unsized {
                    return Err(ApplyError::NotAsked(file));
                }
                let number = begun.begin_part();
                let part = VersionPart { offset, len, digest };
                batch.work.push(Work::Version { begun, number, part, data });
                self.end_file(file, batch);
            }
            Record::Hole { file, offset, len } => {
                let begun = self.part(file, offset, len)?;
                begun.hole(&self.shared.context, offset, len);
                self.end_file(file, batch);
            }
            Record::Copy { file, offset, len } => {
                let begun = self.part(file, offset, len)?;
                if !begun.has_source() {
                    return Err(ApplyError::NotHere(file));
                }
                let number = begun.begin_part();
                batch.work.push(Work::Copy { begun, number, offset, len });
                self.end_file(file, batch);
            }
            Record::Differs { file, offset, len } => {
                let in_work = self.files.get_mut(&file).ok_or(ApplyError::NoFile(file))?;
                if !in_work.ranges.remove(offset, len) {
                    return Err(ApplyError::Part { file, offset, len });
                }
                in_work.begun.differs(offset, len);
            }
            Record::End { file, tail } => {
                let in_work = self.files.get_mut(&file).ok_or(ApplyError::NoFile(file))?;
                let entry = &in_work.begun.entry;
                let is_possible = match entry.is_unsized {
                    // Its end follows all of its parts.
                    true => in_work.ranges.end_at(0).unwrap_or(0) == tail.size,
                    false => tail.size <= entry.size,
                };
                if in_work.tail.is_some() || !is_possible {
                    return Err(ApplyError::Twice(file));
                }
                in_work.tail = Some(tail);
                self.end_file(file, batch);
            }
            Record::DirectoryEnd { directory, is_complete } => {
                if directory == ROOT {
                    return Err(ApplyError::NoDirectory(directory));
                }
                let ended = self.directories.remove(&directory);
                let ended = ended.ok_or(ApplyError::NoDirectory(directory))?;
                ended.ended(context, is_complete);
            }
            Record::Keep { directory, name } => {
                self.directory(directory)?.keep(context, &name);
            }
            Record::Special { directory, name } => {
                let directory = self.directory(directory)?;
                directory.keep(context, &name);
                let problem = Problem { step: Step::Special, errno: None };
                context.event(&directory.dir, Some(&name), Event::Problem(problem));
            }
            Record::Problem { directory, name, errno } => {
                let errno = Errno::from_raw_os_error(errno as i32);
                let directory = self.directory(directory)?;
                directory.failed(context, name.as_ref(), Step::Source, errno);
            }
            Record::Owner { is_group, id, name } => {
                self.owners += 1;
                let fits = context.name_owner(is_group, id, &name, OWNERS_MAX);
                if !fits || self.owners > 2 * OWNERS_MAX {
                    return Err(ApplyError::TooMany("owners"));
                }
            }
            Record::Finish { .. } => self.is_finished = true,
        }
        Ok(())
    }

    fn entry(&mut self, entry: Box<Entry>, batch: &mut Batch) -> Result<(), ApplyError> {
        let Some(name) = entry.name.clone() else {
            self.is_root_listed = true;
            self.root.set_entry(&self.shared.context, entry, self.root_before);
            return Ok(());
        };
        let number = entry.number;
        match entry.kind {
            Kind::Directory => self.begin_directory(entry, &name),
            Kind::File if self.shared.context.is_dry_run() => Err(ApplyError::NotAsked(number)),
            Kind::File => {
                if self.files.contains_key(&number) {
                    return Err(ApplyError::Twice(number));
                }
                if self.files.len() == FILES_BEGUN_MAX {
                    return Err(ApplyError::TooMany("files at a time"));
                }
                self.expect_links(&entry)?;
                let directory = self.directory(entry.parent)?;
                let refusal = self.refusal(&directory, &name);
                directory.begin_pending();
                let ApplierState { context, resumable, copies, .. } = &*self.shared;
                let reading = copies.as_ref().and_then(|copies| copies.take(number));
                let resumed = match entry.is_unsized {
                    true => None,
                    false => resumable.take(context, &directory, &entry),
                };
                let mut ranges = Ranges::default();
                for piece in resumed.iter().flat_map(|resumed| &resumed.pieces) {
                    ranges.add(piece.offset, piece.len);
                }
                let begun = Begun::begin(context, &directory, entry, &name, resumed, refusal);
                let begun = Arc::new(begun.reading_from(reading));
                let in_work = InWork { begun, ranges, tail: None };
                self.files.insert(number, in_work);
                Ok(())
            }
            _ => self.small(entry, None, batch),
        }
    }

    fn begin_directory(&mut self, entry: Box<Entry>, name: &Name) -> Result<(), ApplyError> {
        let number = entry.number;
        if self.directories.len() == DIRECTORIES_BEGUN_MAX {
            return Err(ApplyError::TooMany("directories at a time"));
        }
        if self.directories.contains_key(&number) {
            return Err(ApplyError::Twice(number));
        }
        let parent = self.directory(entry.parent)?;
        let refusal = self.refusal(&parent, name);
        let context = &self.shared.context;
        let directory = Directory::begin(context, &parent, name, entry, refusal);
        let directory = directory.ok_or(ApplyError::Deep(number))?;
        self.directories.insert(number, Arc::new(directory));
        Ok(())
    }

    fn small(
        &self,
        entry: Box<Entry>,
        data: Option<(Range<usize>, Tail)>,
        batch: &mut Batch,
    ) -> Result<(), ApplyError> {
        let directory = self.directory(entry.parent)?;
        let Some(name) = entry.name.clone() else { return Ok(()) };
        let ApplierState { context, links, .. } = &*self.shared;
        let lost = || directory.is_lost.then_some((Step::Create, Errno::NOENT));
        if let Some((step, error)) = self.refusal(&directory, &name).or_else(lost) {
            directory.failed(context, Some(&name), step, error);
            if entry.is_linked {
                links.settle(context, entry.number, None);
            }
            return Ok(());
        }
        directory.begin_pending();
        batch.push_small(Small { directory, name, entry, data });
        Ok(())
    }

    fn directory(&self, number: u64) -> Result<Arc<Directory>, ApplyError> {
        self.directories.get(&number).cloned().ok_or(ApplyError::NoDirectory(number))
    }

    /// Records a name in its directory. Returns why the name is refused, if it is.
    fn refusal(&self, directory: &Directory, name: &Name) -> Option<Failure> {
        let is_distinct = directory.keep(&self.shared.context, name);
        let own = self.shared.context.session.maker.session;
        if directory.dir.is_root() && temporary::session_itself(name) == Some(own) {
            return Some((Step::Create, Errno::EXIST));
        }
        (!is_distinct).then_some((Step::Clash, Errno::EXIST))
    }

    fn check_asked(&self, entry: &Entry) -> Result<(), ApplyError> {
        match &self.asked {
            Some(asked) if !asked.allows(entry) => Err(ApplyError::NotAsked(entry.number)),
            _ => Ok(()),
        }
    }

    fn expect_links(&self, entry: &Entry) -> Result<(), ApplyError> {
        if entry.is_linked && !self.shared.links.expect(entry.number) {
            return Err(ApplyError::TooMany("files with several names"));
        }
        Ok(())
    }

    /// Records that a part of a file has come.
    fn part(&mut self, file: u64, offset: u64, len: u64) -> Result<Arc<Begun>, ApplyError> {
        let in_work = self.files.get_mut(&file).ok_or(ApplyError::NoFile(file))?;
        let entry = &in_work.begun.entry;
        let is_within = match entry.is_unsized {
            true => in_work.ranges.end_at(0).unwrap_or(0) == offset,
            false => offset.checked_add(len).is_some_and(|end| end <= entry.size),
        };
        let is_room = in_work.ranges.count() < RANGES_MAX;
        if !is_within || !is_room || !in_work.ranges.add(offset, len) {
            return Err(ApplyError::Part { file, offset, len });
        }
        Ok(Arc::clone(&in_work.begun))
    }

    /// Ends a file if all of it has come.
    fn end_file(&mut self, file: u64, batch: &mut Batch) {
        let Slot::Occupied(slot) = self.files.entry(file) else { return };
        let Some(tail) = slot.get().tail else { return };
        let is_failed = matches!(tail.status, Status::Failed { .. });
        let entry = &slot.get().begun.entry;
        let size = if entry.is_unsized { tail.size } else { entry.size };
        if is_failed || slot.get().ranges.is_complete(size) {
            let begun = slot.remove().begun;
            begun.set_tail(tail);
            batch.work.push(Work::Complete(begun));
        }
    }

    /// Ends the session after all tasks have run: deletes extra entries of the root, removes
    /// leftovers of earlier sessions, and syncs if the options require it.
    ///
    /// # Errors
    /// If the tree is not complete, or cannot be synced.
    pub fn finish(mut self) -> Result<Summary, ApplyError> {
        if !self.is_finished {
            return Err(ApplyError::NoFinish);
        }
        self.is_ended = true;
        let ApplierState { context, links, .. } = &*self.shared;
        for InWork { begun, .. } in std::mem::take(&mut self.files).into_values() {
            begun.give_up(context);
            if begun.entry.is_linked {
                links.settle(context, begun.entry.number, None);
            }
            begun.directory.end_pending(context);
        }
        links.give_up(context);
        for (number, directory) in std::mem::take(&mut self.directories) {
            if number != ROOT {
                directory.failed(context, None, Step::Incomplete, Errno::NODATA);
                directory.ended(context, false);
            }
        }
        if context.is_dry_run() {
            self.root.ended(context, self.is_root_listed);
            self.extras.delete(context);
            self.root.finish(context);
            return Ok(context.counters.summary());
        }
        let root = context.dirs.open(context.dirs.root()).map_err(ApplyError::Clean)?;
        self.root.ended(context, self.is_root_listed);
        self.extras.delete(context);
        context.session.end(root.as_fd()).map_err(ApplyError::Clean)?;
        self.root.finish(context);
        context.report_lost();
        Ok(context.counters.summary())
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        let context = &self.shared.context;
        for InWork { begun, .. } in self.files.values() {
            begun.leave(context);
        }
    }
}
