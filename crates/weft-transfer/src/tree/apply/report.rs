//! What happens at the sink, entry by entry.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::tree::dirs::Dir;
use crate::wire::record_name::Name;

/// Hears what happens to entries. Any thread calls it.
pub trait Report: Send + Sync {
    /// Something has happened to an entry.
    fn event(&self, subject: Subject<'_>, event: Event);
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'event> {
    pub(crate) dir: &'event Dir,
    pub(crate) name: Option<&'event Name>,
}

impl Subject<'_> {
    /// Bytes of the path from the root on; the root itself has none.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        self.dir.path_of(self.name)
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file has been copied and has its name.
    Copied {
        /// Its size.
        size: u64,
        /// BLAKE3 of it, where it was computed.
        hash: Option<[u8; 32]>,
    },
    /// The file was there and the same.
    Unchanged,
    /// It was deleted, as the source has not got it.
    Deleted,
    /// In a dry run: this would happen.
    Planned {
        /// What would happen.
        change: Change,
        /// To what.
        kind: EntryKind,
        /// Bytes of a file.
        size: u64,
    },
    /// Something went wrong.
    Problem(Problem),
}

/// What would happen to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is not at the destination, and would be made.
    Copy = 1,
    /// Something else has its name, and would be replaced.
    Update = 2,
    /// Only its owner, mode or time would be set.
    Attributes = 3,
    /// It would be deleted, as the source has not got it.
    Delete = 4,
}

impl Change {
    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Copy, Self::Update, Self::Attributes, Self::Delete];
        all.into_iter().find(|it| *it as u8 == number)
    }
}

/// What an entry is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// Another name of a file.
    HardLink = 4,
    /// A pipe, a socket or a device.
    Special = 5,
}

impl EntryKind {
    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::File, Self::Directory, Self::Symlink, Self::HardLink, Self::Special];
        all.into_iter().find(|it| *it as u8 == number)
    }
}

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

/// Something that went wrong with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What was being done.
    pub step: Step,
    /// The error.
    pub errno: Option<Errno>,
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The source could not read it, or not to its end.
    Source,
    /// It changed while the source read it. It is there as it was read.
    Changed,
    /// Data has another digest than at the source. The file is not there.
    Verify,
    /// Creating it, or its directory.
    Create,
    /// Writing data.
    Write,
    /// Giving it its name.
    Rename,
    /// A directory, or a name that differs in case, is in its place.
    Clash,
    /// Linking it to a file.
    Link,
    /// Setting owner, mode, times or extended attributes. It is there without.
    Attributes,
    /// Deleting it.
    Delete,
    /// Parts of it have not come.
    Incomplete,
}

impl Step {
    /// Whether the entry is there in spite of the problem.
    #[must_use]
    pub fn is_warning(self) -> bool {
        matches!(self, Self::Changed | Self::Attributes)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            Step::Source => "cannot be read at the source",
            Step::Changed => "changed while it was read",
            Step::Verify => "has other data than at the source",
            Step::Create => "cannot be created",
            Step::Write => "cannot be written",
            Step::Rename => "cannot get its name",
            Step::Clash => "has its name taken",
            Step::Link => "cannot be linked",
            Step::Attributes => "cannot get its attributes",
            Step::Delete => "cannot be deleted",
            Step::Incomplete => "is incomplete",
        };
        f.write_str(step)?;
        self.errno.map_or(Ok(()), |errno| write!(f, ": {errno}"))
    }
}

/// Numbers of what has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files that were copied.
    pub copied: u64,
    /// Their bytes, holes included.
    pub bytes: u64,
    /// Files that were there and the same.
    pub unchanged: u64,
    /// Entries that were deleted.
    pub deleted: u64,
    /// Entries that are not there as they should be.
    pub failed: u64,
    /// Entries that are there with something amiss.
    pub warnings: u64,
}

/// The numbers while they change.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) copied: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) deleted: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) warnings: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, event: &Event) {
        let one = |counter: &AtomicU64| {
            counter.fetch_add(1, Relaxed);
        };
        match event {
            Event::Copied { size, .. } => {
                one(&self.copied);
                self.bytes.fetch_add(*size, Relaxed);
            }
            Event::Unchanged => one(&self.unchanged),
            Event::Deleted | Event::Planned { change: Change::Delete, .. } => one(&self.deleted),
            Event::Planned {
                change: Change::Copy | Change::Update,
                kind: EntryKind::File,
                size,
            } => {
                one(&self.copied);
                self.bytes.fetch_add(*size, Relaxed);
            }
            Event::Planned { .. } => {}
            Event::Problem(problem) if problem.step.is_warning() => one(&self.warnings),
            Event::Problem(_) => one(&self.failed),
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Summary {
            copied: get(&self.copied),
            bytes: get(&self.bytes),
            unchanged: get(&self.unchanged),
            deleted: get(&self.deleted),
            failed: get(&self.failed),
            warnings: get(&self.warnings),
        }
    }
}
