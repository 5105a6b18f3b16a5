//! Events at the sink, entry by entry.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::tree::dirs::Dir;
use crate::wire::record::{Entry, Kind};
use crate::wire::record_name::Name;

/// Receives the events of entries. Any thread calls it.
pub trait Report: Send + Sync {
    /// Reports an event of an entry.
    fn event(&self, subject: Subject<'_>, event: Event);

    /// Reports an entry that the source has, if that is wanted.
    fn found(&self, subject: Subject<'_>, entry: &Entry) {
        let _ = (subject, entry);
    }

    /// Reports the number of an entry that is whole and has its name, if that is wanted.
    fn confirmed(&self, number: u64) {
        let _ = number;
    }

    /// Reports the blocks of a version of an offered file, with the rolling hash and the digest of
    /// each.
    fn described(&self, number: u64, block_len: u32, blocks: &[(u64, u64)]) {
        let _ = (number, block_len, blocks);
    }

    /// Reports what entries do not keep, once at the end. The path is that of the first one.
    fn not_kept(&self, path: &[u8], not_kept: NotKept) {
        let _ = (path, not_kept);
    }
}

/// The entry of an event.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'event> {
    pub(crate) dir: &'event Dir,
    pub(crate) name: Option<&'event Name>,
}

impl Subject<'_> {
    /// Returns the path relative to the root; empty for the root itself.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        self.dir.path_of(self.name)
    }
}

/// An event of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file was copied and has its final name.
    Copied {
        /// Its size.
        size: u64,
        /// BLAKE3 of its contents, if computed.
        hash: Option<[u8; 32]>,
    },
    /// An equal file existed already.
    Unchanged,
    /// An entry was deleted, because the source does not have it.
    Deleted,
    /// This change was made. It is reported only if changes are listed.
    Done {
        /// The change.
        change: Change,
        /// The type of the entry.
        kind: EntryKind,
        /// The size of a file in bytes.
        size: u64,
    },
    /// A dry run predicts this change.
    Planned {
        /// The change.
        change: Change,
        /// The type of the entry.
        kind: EntryKind,
        /// The size of a file in bytes.
        size: u64,
    },
    /// The entry is to be copied once more, or the whole tree if not only this entry is concerned.
    Again {
        /// Whether it concerns only this entry.
        is_alone: bool,
    },
    /// A part of the entry cannot be made of the version that exists.
    OtherVersion,
    /// A problem occurred.
    Problem(Problem),
    /// Entries do not keep something, and exist without it.
    NotKept(NotKept),
}

/// What an entry does not keep, without an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// The setuid or setgid bit.
    pub(super) special: bool,
    /// The owner or the group.
    pub(super) owner: bool,
}

/// What entries do not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKept {
    /// Why, and with that what.
    pub why: Why,
    /// How many entries there are besides the first.
    pub others: u64,
}

/// Why entries do not keep something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A server makes no files setuid or setgid.
    Server,
    /// Files have other owners here, for which setuid and setgid would mean something else.
    Owner,
    /// The owners of another host are not known here.
    OtherHost,
    /// Only root may give files to other users.
    Privilege,
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why) = match self.why {
            Why::Server => ("setuid or setgid bit", "a server sets them for nobody"),
            Why::Owner => ("setuid or setgid bit", "the owner is another one here"),
            Why::OtherHost => (
                "setuid or setgid bit",
                "it belongs to an owner of the other host, whom --owners keeps",
            ),
            Why::Privilege => ("owner or group", "only root may give files to others"),
        };
        write!(f, "has not kept its {what}: {why}")?;
        match self.others {
            0 => Ok(()),
            others => write!(f, "; nor have {others} other entries"),
        }
    }
}

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entry does not exist and would be created.
    Copy = 1,
    /// Another entry has its name and would be replaced.
    Update = 2,
    /// Only owner, mode or time would be set.
    Attributes = 3,
    /// The entry would be deleted, because the source does not have it.
    Delete = 4,
}

impl Change {
    /// The change with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Copy, Self::Update, Self::Attributes, Self::Delete];
        all.into_iter().find(|it| *it as u8 == number)
    }
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A hard link to a file.
    HardLink = 4,
    /// A pipe, a socket or a device.
    Special = 5,
}

impl EntryKind {
    /// The type with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::File, Self::Directory, Self::Symlink, Self::HardLink, Self::Special];
        all.into_iter().find(|it| *it as u8 == number)
    }
}

impl From<&Kind> for EntryKind {
    fn from(kind: &Kind) -> Self {
        match kind {
            Kind::File => Self::File,
            Kind::Directory => Self::Directory,
            Kind::Symlink { .. } => Self::Symlink,
            Kind::HardLink { .. } => Self::HardLink,
            _ => Self::Special,
        }
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

/// Why an entry could not be copied: the step, and its error.
pub(super) type Failure = (Step, Errno);

/// The limit of a quota that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of bytes.
    Bytes(u64),
    /// That of names.
    Names(u64),
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("exceeds the quota of the shared directory, ")?;
        match self {
            Self::Bytes(most) => write!(f, "{most} bytes"),
            Self::Names(most) => write!(f, "{most} files, directories and links"),
        }
    }
}

impl Full {
    /// Returns it as the failure of an entry.
    pub(super) fn failure(self) -> Failure {
        (Step::Room(self), Errno::DQUOT)
    }
}

/// A problem with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The step that failed.
    pub step: Step,
    /// The error.
    pub errno: Option<Errno>,
}

/// A step of copying an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The source could not read it completely.
    Source,
    /// It changed while the source read it. The sink has what was read.
    Changed,
    /// Its data has another digest than at the source, so the file was not installed.
    Verify,
    /// Creating it or its directory.
    Create,
    /// Writing data.
    Write,
    /// Making it of the version that exists.
    Version,
    /// Charging the quota for it.
    Room(Full),
    /// Renaming it to its final name.
    Rename,
    /// A directory, or a name that differs only in case, has its place.
    Clash,
    /// Creating the hard link.
    Link,
    /// Setting owner, mode, times or extended attributes. The entry exists without them.
    Attributes,
    /// It is a pipe, a socket or a device, which is not copied.
    Special,
    /// Deleting it.
    Delete,
    /// It has lost its name to an entry of another type, and has this one now, because some of the
    /// source could not be read.
    Aside,
    /// Nothing is deleted, because some of the source could not be read.
    NotDeleted,
    /// This many entries are kept, because as many as were allowed have been deleted.
    Kept(u64),
    /// Keeping what it replaces.
    Keep,
    /// Opening another directory to whose files it could link.
    Third,
    /// Syncing a directory.
    Sync,
    /// Parts of it are missing.
    Incomplete,
    /// Writing it past the page cache. It is written through the cache.
    Direct,
}

impl Step {
    /// Whether the entry exists in spite of the problem.
    #[must_use]
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::Attributes | Self::Direct | Self::NotDeleted | Self::Aside | Self::Third
        )
    }

    /// Whether there may be no room for it.
    fn needs_room(self) -> bool {
        matches!(self, Self::Create | Self::Write | Self::Room(_) | Self::Rename)
    }

    /// Whether some of the source is not known, so that it may have an entry that seems to be only
    /// at the sink.
    pub(super) fn is_of_source(self) -> bool {
        matches!(self, Self::Source | Self::Verify | Self::Incomplete)
    }
}

impl Problem {
    /// Whether another try may succeed; `is_deleted` means that there is more room then.
    pub(super) fn may_pass(self, is_deleted: bool) -> bool {
        let is_full = matches!(self.errno, Some(Errno::NOSPC | Errno::DQUOT));
        matches!(self.step, Step::Changed | Step::Version)
            || is_full && is_deleted && self.step.needs_room()
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
            Step::Version => "cannot be made of its version here, which has changed meanwhile",
            Step::Room(full) => return full.fmt(f),
            Step::Rename => "cannot get its name",
            Step::Clash => return f.write_str(clash(self.errno)),
            Step::Link => "cannot be linked",
            Step::Attributes => "cannot get its attributes",
            Step::Special => "is a pipe, a socket or a device, and is not copied",
            Step::Delete => "cannot be deleted",
            Step::Aside => {
                "has been replaced, and is kept, as some of the source could not be read"
            }
            Step::NotDeleted => "nothing was deleted, as some of the source could not be read",
            Step::Kept(count) => {
                return write!(
                    f,
                    "{count} entries are kept that the source does not have \
                    (--max-delete)"
                );
            }
            Step::Keep => "cannot be replaced, as what has its name cannot be kept",
            Step::Third => "a directory of --link-dest cannot be used",
            Step::Sync => "cannot be synced",
            Step::Incomplete => "is incomplete",
            Step::Direct => {
                "is written through the page cache, as the file system refuses direct I/O"
            }
        };
        f.write_str(step)?;
        self.errno.map_or(Ok(()), |errno| write!(f, ": {errno}"))
    }
}

/// Says what has the name of an entry.
fn clash(errno: Option<Errno>) -> &'static str {
    match errno {
        Some(Errno::ISDIR) => "a directory has its name (--delete or --force replaces it)",
        Some(Errno::NOTDIR) => {
            "something that is no directory has its name (--delete or --force replaces it)"
        }
        Some(Errno::NOTEMPTY) => {
            "what has its name stays, as a pattern excludes some of it, or --backup keeps it there"
        }
        _ => "has a name that differs from another one only in case",
    }
}

/// The counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Copied files.
    pub copied: u64,
    /// Bytes of the copied files, holes included.
    pub bytes: u64,
    /// Files that existed and were equal.
    pub unchanged: u64,
    /// Deleted entries.
    pub deleted: u64,
    /// Entries that could not be copied.
    pub failed: u64,
    /// Entries that exist with a problem.
    pub warnings: u64,
    /// Entries to copy once more.
    pub again: u64,
}

/// The counters as atomics.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) copied: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) deleted: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) warnings: AtomicU64,
    pub(super) again: AtomicU64,
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
            Event::Planned { .. } | Event::Done { .. } | Event::OtherVersion => {}
            Event::Again { .. } => one(&self.again),
            Event::NotKept(_) => one(&self.warnings),
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
            again: get(&self.again),
        }
    }
}
