//! Records: what a tree of files is, one after another, and their bytes.
//!
//! All numbers are big-endian. A record begins with its kind, one byte:
//!
//! | kind | record | fields |
//! | --- | --- | --- |
//! | 0 | nothing | none: it fills a place that was reserved |
//! | 1 | entry | *entry* |
//! | 2 | offer | *entry* of a file: does the sink want it? |
//! | 3 | whole file | *entry* of a file, bytes of data u32, *tail* |
//! | 4 | data | file u64, offset u64, bytes of data u32, *digest* |
//! | 5 | hole | file u64, offset u64, length u64 |
//! | 6 | end of a file | file u64, *tail* |
//! | 7 | end of a directory | directory u64, flags u8: 1 if all of its names have been listed |
//! | 8 | keep | directory u64, name: the sink must not delete this |
//! | 9 | problem | directory u64, name, errno u32: the source could not read this |
//! | 10 | owner | 0 for a user or 1 for a group u8, id u32, name u8 and bytes |
//! | 11 | finish | number of entries u64: the tree is complete |
//!
//! *entry*: number u64, number of its directory u64, flags u8 (1: it has other names; 2: extended
//! attributes; 4: BLAKE3 of the content), type u8, mode u16, user u32, group u32, mtime and
//! atime each as seconds i64 and nanoseconds u32, size u64, name u8 and bytes; for a symbolic link
//! u16 and its target, for a hard link u64, for a device u32 major and u32 minor; for extended
//! attributes u16 how many, each u8 and name, u32 and value; 32 bytes of BLAKE3.
//!
//! *tail*: status u8 (0 good, 1 changed while read, 2 failed), errno u32, size u64, *digest*.
//! *digest*: 1 and 32 bytes, or 0 and 32 zeros; it has one length, so that its place can be
//! reserved before the data has been read.
//!
//! Data of a block lies behind its table, in the order of the records that have data.

use std::fmt;

use crate::limits::{
    ERRNO_MAX, LINK_TARGET_LEN_MAX, OWNER_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX, XATTRS_LEN_MAX,
    XATTRS_MAX,
};
use crate::wire::record_bytes::{Reader, Short, push_counted_u8, push_counted_u16};
use crate::wire::record_name::{Name, NameError};

/// The number of the directory that the whole tree goes into.
pub const ROOT: u64 = 0;
/// Data and holes begin at multiples of this, so that their hashes are parts of the file's.
pub const GRAIN: u64 = 1024;
/// Length of a tail.
pub const TAIL_LEN: usize = 1 + 4 + 8 + DIGEST_LEN;
/// Length of a digest with its flag.
pub const DIGEST_LEN: usize = 33;
/// Length of an end of a file.
pub const END_LEN: usize = 1 + 8 + TAIL_LEN;
/// Length of a record of data.
pub const DATA_LEN: usize = 1 + 8 + 8 + 4 + DIGEST_LEN;
/// Length of a hole.
pub const HOLE_LEN: usize = 1 + 8 + 8 + 8;

const LINKED: u8 = 1;
const XATTRS: u8 = 2;
const HASHED: u8 = 4;

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The table ends within a record.
    #[error("the table ends within a record")]
    Short,
    /// No record has this kind.
    #[error("kind {0}")]
    Kind(u8),
    /// No entry has this type, or not in this record.
    #[error("type {0} of an entry")]
    Type(u8),
    /// A bit is set that means nothing.
    #[error("flags {0:#x}")]
    Flags(u8),
    /// The mode has more than its twelve bits.
    #[error("mode {0:o}")]
    Mode(u16),
    /// A second has no more than 999,999,999 nanoseconds.
    #[error("{0} ns")]
    Nanoseconds(u32),
    /// What stands for a name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// What a symbolic link says is empty, too long, or has a zero byte.
    #[error("a symbolic link of {0} bytes")]
    Target(usize),
    /// Extended attributes are too many, too long, or have odd names.
    #[error("extended attributes")]
    Xattrs,
    /// An offset or length is not possible.
    #[error("{len} bytes at {offset}")]
    Extent {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// No file ends with this status.
    #[error("status {0}")]
    Status(u8),
    /// Linux has no such error, or there should be none.
    #[error("error number {0}")]
    Errno(u32),
    /// The name of a user or group is empty or has odd bytes.
    #[error("the name of an owner")]
    Owner,
    /// A directory is said to be within itself, or the root to have a directory.
    #[error("entry {0} in directory {1}")]
    Parent(u64, u64),
}

impl From<Short> for RecordError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

/// A time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Since 1970; before it, less than zero.
    pub seconds: i64,
    /// Added to the seconds, below 10⁹.
    pub nanoseconds: u32,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// What it says.
        target: Box<[u8]>,
    },
    /// Another name of a file of this tree.
    HardLink {
        /// The number of the entry that it is another name of.
        target: u64,
    },
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice {
        /// Its driver.
        major: u32,
        /// Which of the driver's.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Its driver.
        major: u32,
        /// Which of the driver's.
        minor: u32,
    },
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Its name, with the namespace, without a zero byte.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

/// One name of a tree, and all about it but the data.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number, one more than the one before it; [`ROOT`] gives the root's attributes.
    pub number: u64,
    /// The number of the directory that it is in.
    pub parent: u64,
    /// Its name there; the root has none.
    pub name: Option<Name>,
    /// What it is.
    pub kind: Kind,
    /// Permissions, with the three bits above them.
    pub mode: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// When the content was last changed.
    pub mtime: Time,
    /// When the content was last read.
    pub atime: Time,
    /// Bytes of a file.
    pub size: u64,
    /// Whether later entries may be other names of this file.
    pub is_linked: bool,
    /// Extended attributes.
    pub xattrs: Vec<Xattr>,
    /// BLAKE3 of the content, if the sink is to compare that.
    pub hash: Option<[u8; 32]>,
}

/// How reading a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of it was read, and it did not change.
    Good,
    /// Its size or mtime changed while it was read.
    Changed,
    /// It could not be read to its end.
    Failed {
        /// The error.
        errno: u32,
    },
}

/// What is known of a file once it has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// How reading ended.
    pub status: Status,
    /// Bytes that it has: what was sent beyond them does not count.
    pub size: u64,
    /// BLAKE3 of all of it, if the source has it.
    pub hash: Option<[u8; 32]>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing.
    Nothing,
    /// An entry; of a file, the data follows in other records.
    Entry(Box<Entry>),
    /// A file that the sink may want.
    Offer(Box<Entry>),
    /// A file with all of its data.
    Whole {
        /// The file.
        entry: Box<Entry>,
        /// Bytes of data in this block.
        len: u32,
        /// How reading it ended.
        tail: Tail,
    },
    /// A part of a file.
    Data {
        /// The file's number.
        file: u64,
        /// Where the part begins, a multiple of [`GRAIN`].
        offset: u64,
        /// Bytes of data in this block.
        len: u32,
        /// See [`crate::tree::hash`].
        digest: Option<[u8; 32]>,
    },
    /// A part of a file that is zeros and takes no space.
    Hole {
        /// The file's number.
        file: u64,
        /// Where the part begins, a multiple of [`GRAIN`].
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// The end of a file, which may come before some of its data.
    End {
        /// The file's number.
        file: u64,
        /// How reading it ended.
        tail: Tail,
    },
    /// The end of a directory: all of its entries have been sent.
    DirectoryEnd {
        /// The directory's number.
        directory: u64,
        /// Whether all of its names have been listed without an error.
        is_complete: bool,
    },
    /// A name that was left out on purpose.
    Keep {
        /// The directory's number.
        directory: u64,
        /// The name in it.
        name: Name,
    },
    /// A name that could not be read.
    Problem {
        /// The directory's number.
        directory: u64,
        /// The name in it; none is the directory itself.
        name: Option<Name>,
        /// The error.
        errno: u32,
    },
    /// The name of a numeric owner.
    Owner {
        /// Whether it is a group.
        is_group: bool,
        /// The number in entries.
        id: u32,
        /// The name.
        name: Box<[u8]>,
    },
    /// The end of the tree.
    Finish {
        /// How many entries it has.
        entries: u64,
    },
}

impl Record {
    /// Bytes of data that belong to the record, behind the table.
    #[must_use]
    pub fn data_len(&self) -> usize {
        match self {
            Self::Whole { len, .. } | Self::Data { len, .. } => *len as usize,
            _ => 0,
        }
    }

    /// Takes the next record off the bytes.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(match from.u8()? {
            0 => Self::Nothing,
            1 => Self::Entry(Box::new(Entry::parse(from)?)),
            2 => Self::Offer(Box::new(file(Entry::parse(from)?)?)),
            3 => {
                let entry = Box::new(file(Entry::parse(from)?)?);
                let (len, tail) = (from.u32()?, Tail::parse(from)?);
                if tail.size > len.into() {
                    return Err(RecordError::Extent { offset: 0, len: tail.size });
                }
                Self::Whole { entry, len, tail }
            }
            4 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u32()?);
                check_extent(offset, len.into())?;
                Self::Data { file, offset, len, digest: parse_digest(from)? }
            }
            5 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u64()?);
                check_extent(offset, len)?;
                Self::Hole { file, offset, len }
            }
            6 => Self::End { file: from.u64()?, tail: Tail::parse(from)? },
            7 => {
                let (directory, flags) = (from.u64()?, from.u8()?);
                if flags > 1 {
                    return Err(RecordError::Flags(flags));
                }
                Self::DirectoryEnd { directory, is_complete: flags == 1 }
            }
            8 => Self::Keep { directory: from.u64()?, name: Name::new(from.counted_u8()?)? },
            9 => {
                let (directory, name) = (from.u64()?, from.counted_u8()?);
                let name = if name.is_empty() { None } else { Some(Name::new(name)?) };
                Self::Problem { directory, name, errno: parse_errno(from)? }
            }
            10 => {
                let (is_group, id, name) = (from.u8()?, from.u32()?, from.counted_u8()?);
                let odd = |byte: &u8| *byte <= b' ' || *byte == b':' || *byte == 0x7f;
                if is_group > 1 || name.is_empty() || name.iter().any(odd) {
                    return Err(RecordError::Owner);
                }
                Self::Owner { is_group: is_group == 1, id, name: name.into() }
            }
            11 => Self::Finish { entries: from.u64()? },
            kind => return Err(RecordError::Kind(kind)),
        })
    }

    /// Appends the record's bytes.
    ///
    /// # Panics
    /// If a field is longer than its limit.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => out.push(0),
            Self::Entry(entry) => entry.emit(1, out),
            Self::Offer(entry) => entry.emit(2, out),
            Self::Whole { entry, len, tail } => {
                entry.emit(3, out);
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&tail.bytes());
            }
            Self::Data { file, offset, len, digest } => {
                out.push(4);
                out.extend_from_slice(&file.to_be_bytes());
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&digest_bytes(*digest));
            }
            Self::Hole { file, offset, len } => {
                out.push(5);
                for number in [file, offset, len] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
            Self::End { file, tail } => {
                out.push(6);
                out.extend_from_slice(&file.to_be_bytes());
                out.extend_from_slice(&tail.bytes());
            }
            Self::DirectoryEnd { directory, is_complete } => {
                out.push(7);
                out.extend_from_slice(&directory.to_be_bytes());
                out.push((*is_complete).into());
            }
            Self::Keep { directory, name } => {
                out.push(8);
                out.extend_from_slice(&directory.to_be_bytes());
                push_counted_u8(out, name.as_bytes());
            }
            Self::Problem { directory, name, errno } => {
                out.push(9);
                out.extend_from_slice(&directory.to_be_bytes());
                push_counted_u8(out, name.as_ref().map_or(&[], Name::as_bytes));
                out.extend_from_slice(&errno.to_be_bytes());
            }
            Self::Owner { is_group, id, name } => {
                assert!(name.len() <= OWNER_NAME_LEN_MAX);
                out.extend_from_slice(&[10, (*is_group).into()]);
                out.extend_from_slice(&id.to_be_bytes());
                push_counted_u8(out, name);
            }
            Self::Finish { entries } => {
                out.push(11);
                out.extend_from_slice(&entries.to_be_bytes());
            }
        }
    }
}

impl Tail {
    fn parse(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let status = match from.u8()? {
            2 => Status::Failed { errno: parse_errno(from)? },
            other => match (other, from.u32()?) {
                (0, 0) => Status::Good,
                (1, 0) => Status::Changed,
                (0 | 1, errno) => return Err(RecordError::Errno(errno)),
                (other, _) => return Err(RecordError::Status(other)),
            },
        };
        let size = from.u64()?;
        check_extent(0, size)?;
        Ok(Self { status, size, hash: parse_digest(from)? })
    }

    /// The bytes of a tail, which can replace those of another in a table.
    #[must_use]
    pub fn bytes(&self) -> [u8; TAIL_LEN] {
        let (status, errno) = match self.status {
            Status::Good => (0, 0),
            Status::Changed => (1, 0),
            Status::Failed { errno } => (2, errno),
        };
        let mut bytes = [0; TAIL_LEN];
        bytes[0] = status;
        bytes[1..5].copy_from_slice(&u32::to_be_bytes(errno));
        bytes[5..13].copy_from_slice(&self.size.to_be_bytes());
        bytes[13..].copy_from_slice(&digest_bytes(self.hash));
        bytes
    }
}

impl Entry {
    fn parse(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let (number, parent, flags, kind) = (from.u64()?, from.u64()?, from.u8()?, from.u8()?);
        if flags & !(LINKED | XATTRS | HASHED) != 0 {
            return Err(RecordError::Flags(flags));
        }
        let mode = from.u16()?;
        if mode > 0o7777 {
            return Err(RecordError::Mode(mode));
        }
        let (uid, gid) = (from.u32()?, from.u32()?);
        let (mtime, atime) = (Time::parse(from)?, Time::parse(from)?);
        let size = from.u64()?;
        check_extent(0, size)?;
        let name = from.counted_u8()?;
        let is_root = number == ROOT && parent == ROOT && name.is_empty();
        // A directory has a lower number than what is in it.
        if (number == ROOT) != is_root || (!is_root && number <= parent) {
            return Err(RecordError::Parent(number, parent));
        }
        let name = if is_root { None } else { Some(Name::new(name)?) };
        let kind = match kind {
            2 if is_root => Kind::Directory,
            other if is_root => return Err(RecordError::Type(other)),
            1 => Kind::File,
            2 => Kind::Directory,
            3 => {
                let target = from.counted_u16()?;
                if !(1..=LINK_TARGET_LEN_MAX).contains(&target.len()) || target.contains(&0) {
                    return Err(RecordError::Target(target.len()));
                }
                Kind::Symlink { target: target.into() }
            }
            4 => {
                let target = from.u64()?;
                if target >= number {
                    return Err(RecordError::Parent(number, target));
                }
                Kind::HardLink { target }
            }
            5 => Kind::Fifo,
            6 => Kind::Socket,
            7 => Kind::CharacterDevice { major: from.u32()?, minor: from.u32()? },
            8 => Kind::BlockDevice { major: from.u32()?, minor: from.u32()? },
            other => return Err(RecordError::Type(other)),
        };
        let xattrs = if flags & XATTRS != 0 { parse_xattrs(from)? } else { Vec::new() };
        let hash = if flags & HASHED != 0 { Some(from.array()?) } else { None };
        let is_linked = flags & LINKED != 0;
        Ok(Self {
            number,
            parent,
            name,
            kind,
            mode,
            uid,
            gid,
            mtime,
            atime,
            size,
            is_linked,
            xattrs,
            hash,
        })
    }

    fn emit(&self, record: u8, out: &mut Vec<u8>) {
        out.push(record);
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.parent.to_be_bytes());
        let mut flags = if self.is_linked { LINKED } else { 0 };
        flags |= if self.xattrs.is_empty() { 0 } else { XATTRS };
        flags |= if self.hash.is_none() { 0 } else { HASHED };
        out.extend_from_slice(&[flags, self.kind.code()]);
        out.extend_from_slice(&self.mode.to_be_bytes());
        out.extend_from_slice(&self.uid.to_be_bytes());
        out.extend_from_slice(&self.gid.to_be_bytes());
        for time in [self.mtime, self.atime] {
            out.extend_from_slice(&time.seconds.to_be_bytes());
            out.extend_from_slice(&time.nanoseconds.to_be_bytes());
        }
        out.extend_from_slice(&self.size.to_be_bytes());
        push_counted_u8(out, self.name.as_ref().map_or(&[], Name::as_bytes));
        match &self.kind {
            Kind::Symlink { target } => push_counted_u16(out, target),
            Kind::HardLink { target } => out.extend_from_slice(&target.to_be_bytes()),
            Kind::CharacterDevice { major, minor } | Kind::BlockDevice { major, minor } => {
                out.extend_from_slice(&major.to_be_bytes());
                out.extend_from_slice(&minor.to_be_bytes());
            }
            Kind::File | Kind::Directory | Kind::Fifo | Kind::Socket => {}
        }
        if !self.xattrs.is_empty() {
            let count = u16::try_from(self.xattrs.len()).expect("at most XATTRS_MAX");
            out.extend_from_slice(&count.to_be_bytes());
            for xattr in &self.xattrs {
                push_counted_u8(out, &xattr.name);
                let len = u32::try_from(xattr.value.len()).expect("at most XATTR_VALUE_LEN_MAX");
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&xattr.value);
            }
        }
        if let Some(hash) = &self.hash {
            out.extend_from_slice(hash);
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, parent, name, kind, mode, size, .. } = self;
        write!(f, "{number} in {parent}: {name:?} {kind:?} {mode:o}, {size} bytes")
    }
}

impl Kind {
    fn code(&self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::Symlink { .. } => 3,
            Self::HardLink { .. } => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::CharacterDevice { .. } => 7,
            Self::BlockDevice { .. } => 8,
        }
    }
}

impl Time {
    fn parse(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let (seconds, nanoseconds) = (i64::from_be_bytes(from.array()?), from.u32()?);
        if nanoseconds >= 1_000_000_000 {
            return Err(RecordError::Nanoseconds(nanoseconds));
        }
        Ok(Self { seconds, nanoseconds })
    }
}

/// The bytes of a digest, which can replace those of another in a table.
#[must_use]
pub fn digest_bytes(digest: Option<[u8; 32]>) -> [u8; DIGEST_LEN] {
    let mut bytes = [0; DIGEST_LEN];
    if let Some(digest) = digest {
        bytes[0] = 1;
        bytes[1..].copy_from_slice(&digest);
    }
    bytes
}

fn parse_digest(from: &mut Reader<'_>) -> Result<Option<[u8; 32]>, RecordError> {
    let (flag, digest) = (from.u8()?, from.array()?);
    match flag {
        0 => Ok(None),
        1 => Ok(Some(digest)),
        other => Err(RecordError::Flags(other)),
    }
}

/// An error number that Linux can have.
fn parse_errno(from: &mut Reader<'_>) -> Result<u32, RecordError> {
    let errno = from.u32()?;
    if (1..=ERRNO_MAX).contains(&errno) { Ok(errno) } else { Err(RecordError::Errno(errno)) }
}

fn parse_xattrs(from: &mut Reader<'_>) -> Result<Vec<Xattr>, RecordError> {
    let count = usize::from(from.u16()?);
    if count > XATTRS_MAX {
        return Err(RecordError::Xattrs);
    }
    let (mut xattrs, mut total) = (Vec::new(), 0);
    for _ in 0..count {
        let name = from.counted_u8()?;
        let len = from.u32()? as usize;
        total += name.len() + len;
        let is_odd = name.is_empty() || name.contains(&0);
        if is_odd || len > XATTR_VALUE_LEN_MAX || total > XATTRS_LEN_MAX {
            return Err(RecordError::Xattrs);
        }
        xattrs.push(Xattr { name: name.into(), value: from.bytes(len)?.into() });
    }
    Ok(xattrs)
}

/// Offsets end where those of Linux do.
fn check_extent(offset: u64, len: u64) -> Result<(), RecordError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
    if fits && offset.is_multiple_of(GRAIN) {
        Ok(())
    } else {
        Err(RecordError::Extent { offset, len })
    }
}

fn file(entry: Entry) -> Result<Entry, RecordError> {
    match entry.kind {
        Kind::File => Ok(entry),
        other => Err(RecordError::Type(other.code())),
    }
}
