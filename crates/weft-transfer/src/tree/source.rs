//! The source: it walks trees and plans blocks with their contents.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;

use crate::limits::{
    EXTENT_FILE_LEN_MIN, EXTENT_FILES_MAX, OFFERS_IN_BLOCK_MAX, OFFERS_MAX, PLANNED_FILES_OPEN_MAX,
    TABLE_LEN_MAX, WHOLE_FILE_LEN_MAX,
};
use crate::tree::checking::{Checked, Checking, are_usable};
use crate::tree::delta::{Index, Versions};
use crate::tree::direct::Reader;
use crate::tree::dirs::{Dir, Dirs};
use crate::tree::input::{Input, Turn};
use crate::tree::job::{CountedFd, Job, Plan, PlannedFile, open_file};
use crate::tree::large::Large;
use crate::tree::large_in_work::{LargeInWork, PART_LEN};
use crate::tree::listing;
use crate::tree::merged::Merged;
use crate::tree::metadata::{self, Sizes};
use crate::tree::owners::Names;
use crate::tree::ranges::Ranges;
use crate::tree::reach;
use crate::tree::reading::Reading;
use crate::tree::removal::Removable;
use crate::tree::selection::Selection;
use crate::wire::record::{Entry, Kind, ROOT, Record, Status, Tail};
use crate::wire::record_name::Name;
use crate::wire::record_wants::{HavePiece, Wants};

pub use crate::tree::answer_error::AnswerError;
pub use crate::tree::content::{Content, Missing, Planned, Start};
pub use crate::tree::source_options::{PAYLOAD_LEN_MIN, SourceOptions};

/// The next step of a source.
#[derive(Debug)]
pub enum Next {
    /// The caller fills and sends this block.
    Job(Box<Job>),
    /// There is nothing to do before the next [`Source::answer`], or before the parts of files that
    /// the transport reads have arrived.
    Wait,
    /// Everything has been planned.
    Done,
}

/// Walks trees and plans blocks. One thread calls it; any threads run its jobs.
#[derive(Debug)]
pub struct Source {
    options: SourceOptions,
    starts: VecDeque<Start>,
    merged: Merged,
    input: Option<InputInWork>,
    /// The directories that are being walked, from the top down.
    stack: Vec<Walked>,
    /// What is selected in the tree that is being walked.
    selection: Option<Arc<Selection>>,
    numbers: Numbers,
    /// Records and files to plan before the walk continues.
    units: VecDeque<Unit>,
    large: Option<LargeInWork>,
    offers: BTreeMap<u64, Offered>,
    /// The files of which the sink has pieces that are being compared.
    checking: Vec<(Arc<Checking>, Offered)>,
    /// The versions that the sink has of files.
    versions: Versions,
    /// The files that wait for their parts to arrive, with their directories' numbers.
    unfinished: Vec<(Arc<Reading>, u64)>,
    /// Walked directories with unanswered offers or unfinished files, and their counts, by
    /// directory number.
    waiting: HashMap<u64, Waiting>,
    linked: HashMap<(u64, u64), u64>,
    /// What sizes of files say, by the device.
    sizes: HashMap<u64, Sizes>,
    names: Option<OwnerNames>,
    open_files: Arc<AtomicUsize>,
    planned: Planned,
    is_finish_planned: bool,
}

#[derive(Debug)]
struct Numbers {
    entry: u64,
    job: u64,
}

#[derive(Debug)]
struct Walked {
    dirs: Arc<Dirs>,
    dir: Arc<Dir>,
    number: u64,
    /// The device of the tree's top.
    device: u64,
    /// The current path from the top of the tree, for the rules.
    path: Vec<u8>,
    names: VecDeque<(Name, FileType)>,
    is_complete: bool,
    /// Its device and inode.
    id: (u64, u64),
}

/// A file that was offered to the sink.
#[derive(Debug)]
struct Offered {
    dirs: Arc<Dirs>,
    dir: Arc<Dir>,
    /// The name at the source.
    name: Name,
    /// The name is a link that is followed.
    is_followed: bool,
    entry: Box<Entry>,
    may_have_holes: bool,
    /// Its size says nothing.
    is_unsized: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    files: usize,
    /// Set once the directory has been walked: whether its listing was complete.
    walked: Option<bool>,
}

#[derive(Debug)]
struct OwnerNames {
    users: HashMap<u32, Box<[u8]>>,
    groups: HashMap<u32, Box<[u8]>>,
    sent: HashSet<(bool, u32)>,
}

#[derive(Debug)]
enum Unit {
    Record(Record),
    /// An offer whose file is hashed when the block is filled.
    Hashed(Record, PlannedFile),
    Whole(Record, PlannedFile),
    Large(LargeInWork),
    /// A file without a size, which begins a block.
    Unsized(InputInWork),
    /// A file that the sink wants, with the pieces that it has. It is opened when its turn comes.
    Wanted(Offered, Vec<HavePiece>),
    /// A piece that the sink has.
    Check(Arc<Checking>, usize),
    /// A file of this directory for which the directory has waited has been planned.
    Planned(u64),
}

#[derive(Debug)]
struct InputInWork {
    input: Arc<Input>,
    /// The number of the file.
    number: u64,
    /// The file's entry, until it has been sent before the first bytes.
    entry: Option<Record>,
}

impl Source {
    /// Creates a source of this content.
    ///
    /// # Panics
    /// If the payload's length is too small or more than 1 GiB.
    #[must_use]
    pub fn new(content: impl Into<Content>, options: SourceOptions) -> Self {
        assert!((PAYLOAD_LEN_MIN..=1 << 30).contains(&options.payload_len));
        let names = options.names_owners.then(|| {
            let names = Names::of_host();
            let (users, groups) = (names.by_id(false), names.by_id(true));
            OwnerNames { users, groups, sent: HashSet::new() }
        });
        // What is excluded would not be copied if it were there.
        let is_included = |missing: &&Missing| {
            let name = missing.name.as_ref();
            name.is_none_or(|name| options.rules.include(name.as_bytes(), false))
        };
        let problems = options.missing.iter().filter(is_included).map(|Missing { name, errno }| {
            let errno = errno.raw_os_error() as u32;
            Unit::Record(Record::Problem { directory: ROOT, name: name.clone(), errno })
        });
        let units: VecDeque<Unit> = problems.collect();
        let (mut numbers, mut planned) = (Numbers { entry: ROOT + 1, job: 0 }, Planned::default());
        planned.problems = units.len() as u64;
        let (starts, input) = match content.into() {
            Content::Entries(starts) => (starts.into(), None),
            Content::Input(input, name) => {
                let number = numbers.entry;
                numbers.entry += 1;
                planned.entries = 1;
                let mut entry = input.entry(number, name);
                entry.mode = options.modes.apply(entry.mode, false);
                let entry = Some(Record::Entry(Box::new(entry)));
                (VecDeque::new(), Some(InputInWork { input, number, entry }))
            }
        };
        Self {
            options,
            merged: Merged::of(starts.iter()),
            starts,
            input,
            stack: Vec::new(),
            selection: None,
            numbers,
            units,
            large: None,
            checking: Vec::new(),
            versions: Versions::default(),
            unfinished: Vec::new(),
            offers: BTreeMap::new(),
            waiting: HashMap::new(),
            linked: HashMap::new(),
            sizes: HashMap::new(),
            names,
            open_files: Arc::default(),
            planned,
            is_finish_planned: false,
        }
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn planned(&self) -> Planned {
        self.planned
    }

    /// Returns the next block, or what to wait for.
    pub fn next_job(&mut self) -> Next {
        let table_max = self.options.payload_len.min(TABLE_LEN_MAX);
        let mut plan = Plan::new(self.options.payload_len, table_max);
        let mut offers = 0;
        self.finish_checks();
        self.finish_files();
        loop {
            if let Some(work) = &mut self.input {
                match work.input.turn() {
                    Turn::Next => {
                        if let Some(entry) = work.entry.take() {
                            let fits = plan.add(&entry);
                            assert!(fits, "an empty block takes any entry");
                        }
                        plan.add_input(&work.input, work.number);
                        break;
                    }
                    Turn::Reading => break,
                    Turn::Ended => self.input = None,
                }
            } else if let Some(large) = self.large.take() {
                let reading = Arc::clone(large.large.reading());
                self.large = large.add_to(&mut plan, self.options.copies.as_deref());
                if self.large.is_some() {
                    break;
                }
                if reading.is_sent_by_extents {
                    reading.is_read();
                }
            } else if let Some(unit) = self.units.pop_front() {
                let is_offer = matches!(&unit, Unit::Record(Record::Offer(_)) | Unit::Hashed(..));
                let is_check = matches!(&unit, Unit::Check(..));
                offers += usize::from(is_offer);
                if let Some(unit) = self.add(&mut plan, unit) {
                    self.units.push_front(unit);
                    break;
                }
                // Other threads compare the next piece.
                if offers == OFFERS_IN_BLOCK_MAX || is_check {
                    break;
                }
            } else if self.offers.len() >= OFFERS_MAX || !self.walk() {
                break;
            }
        }
        if plan.is_empty() {
            return if self.is_finish_planned { Next::Done } else { Next::Wait };
        }
        let number = self.numbers.job;
        self.numbers.job += 1;
        Next::Job(Box::new(Job { number, plan }))
    }

    /// Handles the sink's answer to the offers of one block.
    ///
    /// # Errors
    /// If the answer covers entries that were not offered.
    pub fn answer(&mut self, wants: &Wants) -> Result<(), AnswerError> {
        let first = wants.first;
        let end = first.saturating_add(wants.wanted.len() as u64);
        let answered: Vec<u64> = self.offers.range(first..end).map(|(&number, _)| number).collect();
        if answered.is_empty() {
            return Err(AnswerError::NoOffer { first });
        }
        let mut have = wants.have.iter().peekable();
        for number in answered {
            let Some(offered) = self.offers.remove(&number) else { continue };
            while have.next_if(|parts| parts.file < number).is_some() {}
            let parts = have.next_if(|parts| parts.file == number);
            let pieces = parts.map(|parts| parts.pieces.clone()).unwrap_or_default();
            if !are_usable(&pieces, offered.entry.size) {
                return Err(AnswerError::Pieces(number));
            }
            let parent = offered.entry.parent;
            if wants.get(number) == Some(true) {
                self.units.push_back(Unit::Wanted(offered, pieces));
            } else {
                self.versions.take(number);
            }
            self.units.push_back(Unit::Planned(parent));
        }
        Ok(())
    }

    /// Takes blocks of the version that the sink has of an offered file.
    ///
    /// # Errors
    /// If it was not offered, or cannot have such blocks.
    pub fn described(
        &mut self,
        file: u64,
        block_len: u32,
        blocks: &[(u64, u64)],
    ) -> Result<(), AnswerError> {
        let is_offered = self.options.uses_versions && self.offers.contains_key(&file);
        let is_taken = is_offered && self.versions.add(file, block_len, blocks);
        if is_taken { Ok(()) } else { Err(AnswerError::Version(file)) }
    }

    /// Adds a unit to a plan. Returns the unit, or the rest of it, if it does not fit.
    fn add(&mut self, plan: &mut Plan, unit: Unit) -> Option<Unit> {
        match unit {
            Unit::Record(record) => {
                if !plan.add(&record) {
                    return Some(Unit::Record(record));
                }
            }
            Unit::Hashed(record, file) => {
                // A file that does not fit is hashed with the next block.
                if plan.left() < PAYLOAD_LEN_MIN / 2 {
                    return Some(Unit::Hashed(record, file));
                }
                let fits = plan.add_hashed(&record, file);
                assert!(fits, "half of a block takes any offer");
            }
            Unit::Whole(record, file) => {
                if let Err(file) = plan.add_whole(&record, file) {
                    return Some(Unit::Whole(record, file));
                }
            }
            Unit::Large(large) => self.large = Some(large),
            Unit::Unsized(input) if plan.is_empty() => self.input = Some(input),
            Unit::Unsized(input) => return Some(Unit::Unsized(input)),
            Unit::Wanted(offered, have) => {
                let unit = self.unit_of_offered(offered, have)?;
                return self.add(plan, unit);
            }
            Unit::Check(checking, index) => {
                if !plan.add_check(&checking, index) {
                    return Some(Unit::Check(checking, index));
                }
            }
            Unit::Planned(directory) => self.file_is_planned(directory),
        }
        None
    }

    /// Visits one more name, or ends a directory. Returns false at the end of the walk.
    fn walk(&mut self) -> bool {
        let Some(walked) = self.stack.last_mut() else { return self.begin() };
        match walked.names.pop_front() {
            Some((name, kind)) => {
                let place = Place {
                    dirs: Arc::clone(&walked.dirs),
                    dir: Arc::clone(&walked.dir),
                    number: walked.number,
                    device: Some(walked.device),
                    is_followed: false,
                    path: reach::joined(&walked.path, name.as_bytes()),
                };
                self.visit(place, name.clone(), name, kind);
            }
            None => {
                if let Some(Walked { number, is_complete, .. }) = self.stack.pop()
                    && number != ROOT
                {
                    self.directory_is_walked(number, is_complete);
                }
            }
        }
        true
    }

    /// Begins the next start.
    fn begin(&mut self) -> bool {
        let Some(Start { directory, name, new_name, selection, links }) = self.starts.pop_front()
        else {
            let is_waiting =
                !(self.offers.is_empty() && self.unfinished.is_empty() && self.checking.is_empty());
            if is_waiting || self.is_finish_planned {
                return false;
            }
            self.is_finish_planned = true;
            self.planned.is_complete = true;
            self.units.push_back(Unit::Record(Record::Finish { entries: self.planned.entries }));
            return true;
        };
        self.selection = selection;
        let dirs = Arc::new(Dirs::with_links(directory, links));
        let dir = Arc::clone(dirs.root());
        let top = match (name, new_name) {
            (Some(name), new_name) => {
                let new_name = new_name.unwrap_or_else(|| name.clone());
                let path = name.as_bytes().to_vec();
                let (number, device, is_followed) = (ROOT, None, false);
                let place = Place { dirs, dir, number, device, path, is_followed };
                self.visit(place, name, new_name, FileType::Unknown);
                return true;
            }
            (None, Some(name)) => {
                if !self.options.rules.include(name.as_bytes(), true) {
                    self.units.push_back(Unit::Record(Record::Keep { directory: ROOT, name }));
                    return true;
                }
                Some(name)
            }
            (None, None) => None,
        };
        let number = if top.is_some() { self.number() } else { ROOT };
        let mut id = (0, 0);
        let result = dirs.open(&dir).and_then(|fd| {
            let stat = fstat(&*fd)?;
            id = (stat.st_dev, stat.st_ino);
            let entry = self.entry(number, ROOT, top.as_ref(), Kind::Directory, &stat);
            self.with_xattrs(entry, &*fd)
        });
        match result {
            Ok(_) if self.selection.as_ref().is_some_and(|it| !it.has(b"")) => {}
            Ok(entry) => self.push_entry(entry),
            Err(errno) if number == ROOT => self.problem(ROOT, None, errno),
            Err(errno) => {
                self.problem(ROOT, top, errno);
                return true;
            }
        }
        let path = top.map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        self.list(dirs, dir, (number, id.0), id, path);
        true
    }

    /// Plans one name, which its directory lists as `kind`.
    fn visit(&mut self, mut place: Place, name: Name, new_name: Name, kind: FileType) {
        if let Err(errno) = self.try_visit(&mut place, &name, &new_name, kind) {
            self.problem(place.number, Some(new_name), errno);
        }
    }

    fn try_visit(
        &mut self,
        place: &mut Place,
        name: &Name,
        new_name: &Name,
        listed: FileType,
    ) -> Result<(), Errno> {
        // A file that is sent at once is opened first; one that is offered is only examined.
        let opened = if listed == FileType::RegularFile && !self.options.asks {
            match open_file(&place.dirs, &place.dir, name, false) {
                Ok(fd) => Some((fstat(&fd)?, fd)),
                // It is not a regular file any more.
                Err(Errno::LOOP | Errno::NXIO) => None,
                Err(errno) => return Err(errno),
            }
        } else {
            None
        };
        let (mut stat, fd) = match opened {
            Some((stat, fd)) => (stat, Some(fd)),
            None => {
                let dir = place.dirs.open(&place.dir)?;
                (statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?, None)
            }
        };
        if metadata::kind(&stat) == FileType::Symlink && place.dirs.follows() {
            match place.dirs.follow(&place.dir, name, OFlags::PATH).and_then(fstat) {
                Ok(of_target) => (stat, place.is_followed) = (of_target, true),
                Err(errno) if self.options.rules.include(&place.path, false) => return Err(errno),
                // What is excluded need not lead anywhere.
                Err(_) => {}
            }
        }
        let kind = metadata::kind(&stat);
        if !self.options.rules.include(&place.path, kind == FileType::Directory) {
            let keep = Record::Keep { directory: place.number, name: new_name.clone() };
            self.units.push_back(Unit::Record(keep));
            return Ok(());
        }
        if !self.merged.is_sent(&place.path, kind == FileType::Directory)? {
            return Ok(());
        }
        let is_above = || self.selection.as_ref().is_some_and(|it| it.is_above(&place.path));
        if kind != FileType::Directory && is_above() {
            return Err(Errno::NOTDIR);
        }
        match kind {
            FileType::RegularFile => self.visit_file(place, name, new_name, &stat, fd),
            FileType::Directory => self.visit_directory(place, name, new_name, &stat),
            FileType::Symlink => {
                let dir = place.dirs.open(&place.dir)?;
                let target = readlinkat(&*dir, name.as_path(), Vec::new())?;
                let kind = Kind::Symlink { target: target.as_bytes().into() };
                self.visit_other(place, name, new_name, kind, &stat);
                Ok(())
            }
            kind => {
                let (major, minor) =
                    (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                let kind = match kind {
                    FileType::Fifo => Kind::Fifo,
                    FileType::Socket => Kind::Socket,
                    FileType::CharacterDevice => Kind::CharacterDevice { major, minor },
                    FileType::BlockDevice => Kind::BlockDevice { major, minor },
                    _ => return Err(Errno::NOTSUP),
                };
                if self.options.takes_special_files {
                    self.visit_other(place, name, new_name, kind, &stat);
                } else {
                    let (directory, name) = (place.number, new_name.clone());
                    self.units.push_back(Unit::Record(Record::Special { directory, name }));
                }
                Ok(())
            }
        }
    }

    fn visit_directory(
        &mut self,
        place: &Place,
        name: &Name,
        new_name: &Name,
        stat: &Stat,
    ) -> Result<(), Errno> {
        let dir = match place.is_followed {
            true => self.follow_directory(place, name, stat)?,
            false => place.dirs.child(&place.dir, name.clone())?,
        };
        let number = self.number();
        let mut entry = self.entry(number, place.number, Some(new_name), Kind::Directory, stat);
        if self.options.takes_xattrs {
            let fd = place.dirs.open(&dir)?;
            entry = self.with_xattrs(entry, &*fd)?;
        }
        self.push_entry(entry);
        let is_top = |it: &Selection| it.is_above(&place.path) || it.has(&place.path);
        let is_top = self.selection.as_deref().is_some_and(is_top);
        let device = place.device.filter(|_| !is_top).unwrap_or(stat.st_dev);
        if self.options.stays_on_device && stat.st_dev != device {
            // What is in it is not known, so nothing is deleted there.
            self.directory_is_walked(number, false);
            return Ok(());
        }
        let id = (stat.st_dev, stat.st_ino);
        self.list(Arc::clone(&place.dirs), dir, (number, device), id, place.path.clone());
        Ok(())
    }

    /// Returns the directory of a link, unless the link is in it.
    fn follow_directory(&self, place: &Place, name: &Name, stat: &Stat) -> Result<Arc<Dir>, Errno> {
        let id = (stat.st_dev, stat.st_ino);
        if self.stack.iter().any(|walked| walked.id == id) {
            return Err(Errno::LOOP);
        }
        place.dirs.followed(&place.dir, name.clone())
    }

    /// Lists a directory, with its number, the device of the tree's top and its own device and
    /// inode, and begins to walk it.
    fn list(
        &mut self,
        dirs: Arc<Dirs>,
        dir: Arc<Dir>,
        (number, device): (u64, u64),
        id: (u64, u64),
        path: Vec<u8>,
    ) {
        let selected = self.selection.as_ref().and_then(|it| it.names_in(&path));
        let is_whole = selected.is_none();
        let named = selected.unwrap_or_default().into_iter();
        let mut names: Vec<_> = named.map(|name| (name, FileType::Unknown)).collect();
        let result = match is_whole {
            true => dirs.open(&dir).and_then(|fd| listing::list(&*fd, &mut names)),
            false => Ok(()),
        };
        if let Err(errno) = result {
            self.problem(number, None, errno);
        }
        // Subdirectories come last, so that few directories are incomplete at a time.
        names.sort_unstable_by(|(name, kind), (other, other_kind)| {
            let is_dir = |kind: &FileType| *kind == FileType::Directory;
            is_dir(kind).cmp(&is_dir(other_kind)).then_with(|| name.cmp(other))
        });
        // The sink deletes nothing where others are not known.
        let is_complete = result.is_ok() && is_whole;
        let names = names.into();
        self.stack.push(Walked { dirs, dir, number, device, path, names, is_complete, id });
    }

    fn visit_file(
        &mut self,
        place: &Place,
        name: &Name,
        new_name: &Name,
        stat: &Stat,
        fd: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        let id = (stat.st_dev, stat.st_ino);
        let is_unsized = self.is_unsized(place, name, stat, fd.as_ref());
        let is_linked = self.options.keeps_hard_links && stat.st_nlink > 1 && !is_unsized;
        if is_linked && let Some(&target) = self.linked.get(&id) {
            self.visit_other(place, name, new_name, Kind::HardLink { target }, stat);
            return Ok(());
        }
        let number = self.number();
        if is_linked {
            self.linked.insert(id, number);
        }
        self.note_removal(number, place, name, stat);
        let mut entry = self.entry(number, place.number, Some(new_name), Kind::File, stat);
        entry.is_linked = is_linked;
        self.planned.entries += 1;
        self.planned.bytes += entry.size;
        self.name_owners(&entry);
        let mut offered = Offered {
            dirs: Arc::clone(&place.dirs),
            dir: Arc::clone(&place.dir),
            name: name.clone(),
            is_followed: place.is_followed,
            entry: Box::new(entry),
            may_have_holes: metadata::may_have_holes(stat),
            is_unsized,
        };
        if !self.options.asks {
            let fd = fd.map_or_else(|| place.open(name), Ok)?;
            *offered.entry = self.with_xattrs(*offered.entry, &fd)?;
            let unit = self.unit_of_file(offered, fd, None);
            self.units.push_back(unit);
            return Ok(());
        }
        // Attributes are read again when the file is sent, so none are kept until then.
        let mut entry = offered.entry.clone();
        if self.options.takes_xattrs {
            match place.open(name) {
                Ok(fd) => *entry = self.with_xattrs(*entry, &fd)?,
                // The sink compares the rest. If it wants the file, opening it fails again.
                Err(Errno::ACCESS | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.waiting.entry(place.number).or_default().files += 1;
        if self.options.compares_content {
            entry.hash = Some([0; 32]);
            let file = self.planned_file(&offered, None);
            self.units.push_back(Unit::Hashed(Record::Offer(entry), file));
        } else {
            self.units.push_back(Unit::Record(Record::Offer(entry)));
        }
        self.offers.insert(number, offered);
        Ok(())
    }

    /// Plans an entry without data.
    fn visit_other(
        &mut self,
        place: &Place,
        name: &Name,
        new_name: &Name,
        kind: Kind,
        stat: &Stat,
    ) {
        let number = self.number();
        self.note_removal(number, place, name, stat);
        let entry = self.entry(number, place.number, Some(new_name), kind, stat);
        self.push_entry(entry);
    }

    /// Notes an entry that is removed when the sink has it.
    fn note_removal(&self, number: u64, place: &Place, name: &Name, stat: &Stat) {
        let Some(removals) = &self.options.removals else { return };
        let (dirs, dir, name) = (Arc::clone(&place.dirs), Arc::clone(&place.dir), name.clone());
        let (is_followed, sent) = (place.is_followed, stat.into());
        removals.note(number, Removable { dirs, dir, name, is_followed, sent });
    }

    /// Opens a file that the sink wants. Returns nothing if pieces that the sink has are compared
    /// first.
    fn unit_of_offered(&mut self, mut offered: Offered, have: Vec<HavePiece>) -> Option<Unit> {
        let Offered { dirs, dir, name, is_followed, .. } = &offered;
        let result = open_file(dirs, dir, name, *is_followed).and_then(|fd| {
            let stat = fstat(&fd)?;
            if metadata::kind(&stat) != FileType::RegularFile {
                return Err(Errno::NOENT);
            }
            let entry = &mut *offered.entry;
            if let Some(removals) = &self.options.removals {
                removals.opened(entry.number, &stat);
            }
            let is_same =
                entry.size == metadata::size(&stat) && entry.mtime == metadata::mtime(&stat);
            (entry.size, entry.mtime) = (metadata::size(&stat), metadata::mtime(&stat));
            offered.may_have_holes = metadata::may_have_holes(&stat);
            *offered.entry = self.with_xattrs((*offered.entry).clone(), &fd)?;
            Ok((fd, if is_same { have } else { Vec::new() }))
        });
        match result {
            Ok((fd, have)) if have.is_empty() => Some(self.unit_of_file(offered, fd, None)),
            Ok((fd, have)) if self.options.trusts_sink => {
                let mut same = Ranges::default();
                for piece in have {
                    same.add(piece.offset, piece.len);
                }
                let checked = Checked { same, differs: Vec::new() };
                Some(self.unit_of_file(offered, fd, Some(checked)))
            }
            Ok((fd, have)) => {
                let checking = Arc::new(Checking::new(offered.entry.number, fd, have));
                // They come before the files that follow, in order.
                for index in (0..checking.pieces()).rev() {
                    self.units.push_front(Unit::Check(Arc::clone(&checking), index));
                }
                self.waiting.entry(offered.entry.parent).or_default().files += 1;
                self.checking.push((checking, offered));
                None
            }
            Err(errno) => {
                let Offered { entry, .. } = offered;
                self.versions.take(entry.number);
                Some(Unit::Record(self.problem_record(entry.parent, entry.name, errno)))
            }
        }
    }

    /// Whether the size of a file says nothing about its contents.
    fn is_unsized(
        &mut self,
        place: &Place,
        name: &Name,
        stat: &Stat,
        fd: Option<&OwnedFd>,
    ) -> bool {
        let sizes = self.sizes.get(&stat.st_dev).copied().or_else(|| {
            let sizes = match fd {
                Some(fd) => metadata::sizes(fd),
                None => place.open(name).and_then(metadata::sizes),
            };
            // Another file of the device may be readable.
            let sizes = sizes.ok()?;
            self.sizes.insert(stat.st_dev, sizes);
            Some(sizes)
        });
        match sizes {
            Some(Sizes::Unknown) => true,
            Some(Sizes::UnknownIfZero) => stat.st_size == 0,
            Some(Sizes::True) | None => false,
        }
    }

    /// Plans the files of which all pieces have been compared.
    fn finish_checks(&mut self) {
        let done: Vec<_> = self.checking.extract_if(.., |(it, _)| it.is_done()).collect();
        for (checking, offered) in done {
            let parent = offered.entry.parent;
            let unit = match checking.result() {
                Ok((fd, checked)) => self.unit_of_file(offered, fd, Some(checked)),
                Err(errno) => Unit::Record(self.problem_record(parent, offered.entry.name, errno)),
            };
            self.units.extend([unit, Unit::Planned(parent)]);
        }
    }

    fn unit_of_file(&mut self, offered: Offered, fd: OwnedFd, checked: Option<Checked>) -> Unit {
        if offered.is_unsized {
            self.versions.take(offered.entry.number);
            // It is read like a stream, through the page cache.
            if self.options.direct.is_for(offered.entry.size, &fd) {
                self.options.refusals.add();
            }
            let entry = Box::new(Entry { size: 0, is_unsized: true, ..*offered.entry });
            let (number, entry) = (entry.number, Some(Record::Entry(entry)));
            let input = Arc::new(Input::of_file(fd, self.options.verifies));
            return Unit::Unsized(InputInWork { input, number, entry });
        }
        let (have, differs) = match checked {
            Some(Checked { same, differs }) => (same, differs),
            None => (Ranges::default(), Vec::new()),
        };
        let version = self.versions.take(offered.entry.number);
        let version = version.filter(|_| have.is_empty() && differs.is_empty());
        let size = offered.entry.size;
        // A whole file that does not fit leaves the rest of a block empty. This limit makes that at
        // most a quarter.
        let whole_max = WHOLE_FILE_LEN_MAX.min(self.options.payload_len / 4) as u64;
        let may_have_holes = offered.may_have_holes && size > PART_LEN as u64;
        let is_anew = have.is_empty() && differs.is_empty();
        if size <= whole_max && !may_have_holes && is_anew {
            let file = self.planned_file(&offered, Some(fd));
            let tail = Tail { status: Status::Good, size, hash: None };
            let record = Record::Whole { entry: offered.entry, len: size as u32, tail };
            return Unit::Whole(record, file);
        }
        let entry = offered.entry;
        let is_direct = self.options.direct.is_for(size, &fd);
        let version = version.map(|version| Arc::new(Index::new(&version)));
        let is_sent_by_extents = self.options.sends_extents
            && version.is_none()
            && !is_direct
            && !self.options.verifies
            && size >= EXTENT_FILE_LEN_MIN
            && self.unfinished.len() < EXTENT_FILES_MAX;
        let reading = Arc::new(Reading {
            direct: is_direct.then(|| Reader::new(&fd, &self.options.refusals)),
            fd: Arc::new(fd),
            number: entry.number,
            size,
            mtime: entry.mtime,
            is_hashed: self.options.verifies,
            is_all_data: !may_have_holes && have.is_empty(),
            is_sent_by_extents,
            version,
            unread: AtomicUsize::new(1),
            end: AtomicU64::new(size),
            subtrees: std::sync::Mutex::default(),
            error: std::sync::Mutex::default(),
        });
        if let Some(copies) = &self.options.copies {
            debug_assert!(!self.options.verifies, "the source must see the bytes to hash them");
            copies.put(&reading);
        }
        if is_sent_by_extents {
            self.waiting.entry(entry.parent).or_default().files += 1;
            self.unfinished.push((Arc::clone(&reading), entry.parent));
        }
        let large = Large::new(reading, have, may_have_holes);
        Unit::Large(LargeInWork { large, entry: Some(Record::Entry(entry)), differs })
    }

    fn planned_file(&self, offered: &Offered, fd: Option<OwnedFd>) -> PlannedFile {
        let count = &self.open_files;
        let is_room = count.load(Acquire) < PLANNED_FILES_OPEN_MAX;
        let fd = fd.filter(|_| is_room).map(|fd| {
            count.fetch_add(1, AcqRel);
            CountedFd { fd, count: Arc::clone(count) }
        });
        PlannedFile {
            dirs: Arc::clone(&offered.dirs),
            dir: Arc::clone(&offered.dir),
            name: offered.name.clone(),
            is_followed: offered.is_followed,
            size: offered.entry.size,
            mtime: offered.entry.mtime,
            is_hashed: self.options.verifies,
            fd,
        }
    }

    fn directory_is_walked(&mut self, number: u64, is_complete: bool) {
        match self.waiting.get_mut(&number) {
            Some(waiting) if waiting.files != 0 => waiting.walked = Some(is_complete),
            _ => {
                self.waiting.remove(&number);
                let end = Record::DirectoryEnd { directory: number, is_complete };
                self.units.push_back(Unit::Record(end));
            }
        }
    }

    /// Plans the ends of the files whose parts have all arrived.
    fn finish_files(&mut self) {
        let units = &mut self.units;
        self.unfinished.retain(|(reading, directory)| {
            let is_unfinished = reading.unread.load(Acquire) > 0;
            if !is_unfinished {
                let end = Record::End { file: reading.number, tail: reading.tail() };
                units.extend([Unit::Record(end), Unit::Planned(*directory)]);
            }
            is_unfinished
        });
    }

    fn file_is_planned(&mut self, directory: u64) {
        let Some(waiting) = self.waiting.get_mut(&directory) else { return };
        waiting.files -= 1;
        if waiting.files == 0
            && let Some(is_complete) = waiting.walked
        {
            self.directory_is_walked(directory, is_complete);
        }
    }

    fn number(&mut self) -> u64 {
        let number = self.numbers.entry;
        self.numbers.entry += 1;
        number
    }

    fn entry(
        &self,
        number: u64,
        parent: u64,
        name: Option<&Name>,
        kind: Kind,
        stat: &Stat,
    ) -> Entry {
        let mode = match kind {
            Kind::Symlink { .. } => metadata::mode(stat),
            _ => self.options.modes.apply(metadata::mode(stat), kind == Kind::Directory),
        };
        Entry {
            number,
            parent,
            name: name.cloned(),
            size: if kind == Kind::File { metadata::size(stat) } else { 0 },
            kind,
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: metadata::mtime(stat),
            atime: metadata::atime(stat),
            is_linked: false,
            is_unsized: false,
            xattrs: None,
            hash: None,
        }
    }

    fn with_xattrs(&self, mut entry: Entry, fd: impl AsFd) -> Result<Entry, Errno> {
        if self.options.takes_xattrs {
            entry.xattrs = Some(metadata::xattrs(fd.as_fd(), self.options.payload_len / 4)?);
        }
        Ok(entry)
    }

    fn push_entry(&mut self, entry: Entry) {
        self.planned.entries += 1;
        self.name_owners(&entry);
        self.units.push_back(Unit::Record(Record::Entry(Box::new(entry))));
    }

    /// Sends the names of an entry's owners, each once.
    fn name_owners(&mut self, entry: &Entry) {
        let Some(names) = &mut self.names else { return };
        for (is_group, id) in [(false, entry.uid), (true, entry.gid)] {
            if !names.sent.insert((is_group, id)) {
                continue;
            }
            let known = if is_group { &names.groups } else { &names.users };
            if let Some(name) = known.get(&id) {
                let record = Record::Owner { is_group, id, name: name.clone() };
                self.units.push_back(Unit::Record(record));
            }
        }
    }

    fn problem(&mut self, directory: u64, name: Option<Name>, errno: Errno) {
        let record = self.problem_record(directory, name, errno);
        self.units.push_back(Unit::Record(record));
    }

    fn problem_record(&mut self, directory: u64, name: Option<Name>, errno: Errno) -> Record {
        self.planned.problems += 1;
        if let Some(walked) = self.stack.iter_mut().rev().find(|it| it.number == directory) {
            walked.is_complete = false;
        }
        if let Some(Waiting { walked: Some(is_complete), .. }) = self.waiting.get_mut(&directory) {
            *is_complete = false;
        }
        Record::Problem { directory, name, errno: errno.raw_os_error() as u32 }
    }
}

/// The position of a name in the tree.
struct Place {
    dirs: Arc<Dirs>,
    dir: Arc<Dir>,
    /// The directory's number.
    number: u64,
    /// The device of the tree's top; `None` for the top itself.
    device: Option<u64>,
    /// The name's path, for the rules.
    path: Vec<u8>,
    /// The name is a link that is followed.
    is_followed: bool,
}

impl Place {
    fn open(&self, name: &Name) -> Result<OwnedFd, Errno> {
        open_file(&self.dirs, &self.dir, name, self.is_followed)
    }
}
