//! Records: the entries of a tree of files, and their encoding.
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
//! | 12 | copy | file u64, offset u64, length u64: the sink copies this from the open file |
//! | 13 | special | directory u64, name: this pipe, socket or device is not sent |
//! | 14 | differs | file u64, offset u64, length u64: the sink's bytes there are wrong |
//! | 15 | version's part | file u64, offset u64, length u32, bytes of data u32, BLAKE3 |
//!
//! Kind 14 follows the entry of a file of which the sink has parts, before the file's own parts.
//! The sink then gets this range again.
//!
//! Only a source in the sink's own process sends kind 12. A sink without such a source refuses it.
//!
//! *entry*: number u64, number of its directory u64, flags u8 (1: it has other names; 2: extended
//! attributes; 4: BLAKE3 of the content; 8: unknown size), type u8, mode u16, user u32, group u32,
//! mtime and atime each as seconds i64 and nanoseconds u32, size u64, name u8 and bytes; for a
//! symbolic link u16 and its target, for a hard link u64, for a device u32 major and u32 minor; for
//! extended attributes u16 how many, each u8 and name, u32 and value; 32 bytes of BLAKE3.
//!
//! Flag 2 says that the list of extended attributes is complete, even if it is empty: the sink then
//! compares it with what it has, and removes others.
//!
//! A file of unknown size (flag 8) is in a record of kind 1 only, and has none of the flags 1 and
//! 4. Its size is zero there. Its parts come in the order of their offsets, without gaps, and its
//! end comes after all of them with their length as the size.
//!
//! *tail*: status u8 (0 good, 1 changed while read, 2 failed), errno u32, size u64, *digest*.
//! *digest*: 1 and 32 bytes, or 0 and 32 zeros; it has one length, so that its place can be
//! reserved before the data has been read.
//!
//! The data of a block follows its table, in the order of the records that have data.

use std::fmt;

use crate::limits::{
    DELTA_PART_LEN_MAX, ERRNO_MAX, LINK_TARGET_LEN_MAX, OWNER_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX,
    XATTRS_LEN_MAX, XATTRS_MAX,
};
use crate::wire::record_bytes::{Reader, Short, push_counted_u8, push_counted_u16};
use crate::wire::record_name::{Name, NameError};

/// The number of the root directory of the tree.
pub const ROOT: u64 = 0;
/// Data and holes begin at multiples of this length, so that their hashes are subtrees of the
/// file's.
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
/// Length of a copy.
pub const COPY_LEN: usize = HOLE_LEN;

/// Length of a record of a part that is made of another version.
pub const VERSION_PART_LEN: usize = 1 + 8 + 8 + 4 + 4 + 32;

const LINKED: u8 = 1;
const XATTRS: u8 = 2;
const HASHED: u8 = 4;
const UNSIZED: u8 = 8;

/// Why bytes are no valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The table ends within a record.
    #[error("the table ends within a record")]
    Short,
    /// The kind is unknown.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// The type of the entry is unknown, or not allowed in this record.
    #[error("invalid entry type {0}")]
    Type(u8),
    /// An undefined flag is set.
    #[error("undefined flags {0:#x}")]
    Flags(u8),
    /// The mode has bits above the lowest twelve.
    #[error("invalid mode {0:o}")]
    Mode(u16),
    /// A time has more than 999,999,999 nanoseconds.
    #[error("invalid time: {0} ns")]
    Nanoseconds(u32),
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The target of a symbolic link is empty, too long, or contains a zero byte.
    #[error("invalid target of a symbolic link: {0} bytes")]
    Target(usize),
    /// Extended attributes are too many, too long, or have invalid names.
    #[error("invalid extended attributes")]
    Xattrs,
    /// An offset or length is out of range.
    #[error("invalid range: {len} bytes at offset {offset}")]
    Extent {
        /// The offset.
        offset: u64,
        /// The length.
        len: u64,
    },
    /// The status of a file's end is unknown.
    #[error("unknown file status {0}")]
    Status(u8),
    /// The error number is not one of Linux, or should be zero.
    #[error("invalid error number {0}")]
    Errno(u32),
    /// The name of a user or group is empty or has invalid bytes.
    #[error("invalid name of a user or group")]
    Owner,
    /// A directory's number is not above its parent's, or the root has a parent.
    #[error("entry {0} cannot be in directory {1}")]
    Parent(u64, u64),
}

impl From<Short> for RecordError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

/// A timestamp of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds since 1970; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds to add, below 10⁹.
    pub nanoseconds: u32,
}

/// The type of an entry, with the data that only this type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// The path that it contains.
        target: Box<[u8]>,
    },
    /// Another name of a file of this tree.
    HardLink {
        /// The number of the entry whose file it links to.
        target: u64,
    },
    /// A named pipe.
    Fifo,
    /// A socket in the file system.
    Socket,
    /// A character device.
    CharacterDevice {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Its name with the namespace, without zero bytes.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

/// One entry of a tree: its name and metadata, without the data.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number, one above the previous entry's; [`ROOT`] for the root's attributes.
    pub number: u64,
    /// The number of its parent directory.
    pub parent: u64,
    /// Its name in that directory; `None` for the root.
    pub name: Option<Name>,
    /// Its type.
    pub kind: Kind,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub mode: u16,
    /// The numeric user.
    pub uid: u32,
    /// The numeric group.
    pub gid: u32,
    /// When the content was last changed.
    pub mtime: Time,
    /// When the content was last read.
    pub atime: Time,
    /// The size of a file in bytes.
    pub size: u64,
    /// Whether later entries may be hard links to this file.
    pub is_linked: bool,
    /// Whether the size of this file is unknown until its end; the field is zero then.
    pub is_unsized: bool,
    /// All extended attributes; `None` if the source does not send them.
    pub xattrs: Option<Vec<Xattr>>,
    /// BLAKE3 of the content, if the sink is to compare it.
    pub hash: Option<[u8; 32]>,
}

/// How the source's reading of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The source read all of it, and it did not change.
    Good,
    /// Its size or mtime changed meanwhile.
    Changed,
    /// The source could not read all of it.
    Failed {
        /// The error.
        errno: u32,
    },
}

/// The final facts of a file, which the source knows after it has read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// How reading ended.
    pub status: Status,
    /// The file's size. Data that was sent beyond it is ignored.
    pub size: u64,
    /// BLAKE3 of the whole content, if the source has computed it.
    pub hash: Option<[u8; 32]>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A filler for reserved space.
    Nothing,
    /// An entry. The data of a file follows in other records.
    Entry(Box<Entry>),
    /// A file that the source offers to the sink.
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
        /// The offset of the part, a multiple of [`GRAIN`].
        offset: u64,
        /// Bytes of data in this block.
        len: u32,
        /// The digest of the part, see [`crate::tree::hash`].
        digest: Option<[u8; 32]>,
    },
    /// A part of a file that is a hole: zeros that take no space.
    Hole {
        /// The file's number.
        file: u64,
        /// The offset of the hole, a multiple of [`GRAIN`].
        offset: u64,
        /// The length of the hole.
        len: u64,
    },
    /// A part of a file that the sink copies from the source's open file, in the same process.
    Copy {
        /// The file's number.
        file: u64,
        /// The offset of the part, a multiple of [`GRAIN`].
        offset: u64,
        /// The length of the part.
        len: u64,
    },
    /// A part of a file that the sink makes of the version that it has, and of the data in this
    /// block, see `tree::delta`.
    VersionPart {
        /// The file's number.
        file: u64,
        /// The offset of the part, a multiple of [`GRAIN`].
        offset: u64,
        /// The length of the part.
        len: u32,
        /// Bytes of data in this block.
        data_len: u32,
        /// The digest of the part.
        digest: [u8; 32],
    },
    /// A part that the sink has, and that differs from the source's. Other records replace it.
    Differs {
        /// The file's number.
        file: u64,
        /// The offset of the part, a multiple of [`GRAIN`].
        offset: u64,
        /// The length of the part.
        len: u64,
    },
    /// The end of a file. It may come before some of the file's data.
    End {
        /// The file's number.
        file: u64,
        /// How reading it ended.
        tail: Tail,
    },
    /// The end of a directory, after all of its entries.
    DirectoryEnd {
        /// The directory's number.
        directory: u64,
        /// Whether the source could list all of its names.
        is_complete: bool,
    },
    /// A name that the source left out on purpose, so that the sink does not delete it.
    Keep {
        /// The directory's number.
        directory: u64,
        /// The name in it.
        name: Name,
    },
    /// A pipe, a socket or a device, which the source does not send. The sink keeps its name.
    Special {
        /// The directory's number.
        directory: u64,
        /// The name in it.
        name: Name,
    },
    /// A name that the source could not read.
    Problem {
        /// The directory's number.
        directory: u64,
        /// The name in it; `None` means the directory itself.
        name: Option<Name>,
        /// The error.
        errno: u32,
    },
    /// The name of a numeric user or group.
    Owner {
        /// Whether it is a group.
        is_group: bool,
        /// The numeric user or group.
        id: u32,
        /// The name.
        name: Box<[u8]>,
    },
    /// The end of the tree, with its number of entries.
    Finish {
        /// The number of entries in the tree.
        entries: u64,
    },
}

impl Record {
    /// Bytes of the record's data in the block.
    #[must_use]
    pub fn data_len(&self) -> usize {
        match self {
            Self::Whole { len, .. }
            | Self::Data { len, .. }
            | Self::VersionPart { data_len: len, .. } => *len as usize,
            _ => 0,
        }
    }

    /// Parses the next record.
    ///
    /// # Errors
    /// If the bytes are no valid record.
    pub fn parse(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(match from.u8()? {
            0 => Self::Nothing,
            1 => Self::Entry(Box::new(Entry::parse(from)?)),
            2 => Self::Offer(Box::new(sized_file(Entry::parse(from)?)?)),
            3 => {
                let entry = Box::new(sized_file(Entry::parse(from)?)?);
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
            12 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u64()?);
                check_extent(offset, len)?;
                Self::Copy { file, offset, len }
            }
            13 => Self::Special { directory: from.u64()?, name: Name::new(from.counted_u8()?)? },
            14 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u64()?);
                check_extent(offset, len)?;
                Self::Differs { file, offset, len }
            }
            15 => {
                let (file, offset, len) = (from.u64()?, from.u64()?, from.u32()?);
                check_extent(offset, len.into())?;
                if len > DELTA_PART_LEN_MAX {
                    return Err(RecordError::Extent { offset, len: len.into() });
                }
                let data_len = from.u32()?;
                let digest = *from.bytes(32)?.first_chunk().ok_or(RecordError::Short)?;
                Self::VersionPart { file, offset, len, data_len, digest }
            }
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
            Self::Hole { file, offset, len }
            | Self::Copy { file, offset, len }
            | Self::Differs { file, offset, len } => {
                out.push(match self {
                    Self::Copy { .. } => 12,
                    Self::Differs { .. } => 14,
                    _ => 5,
                });
                for number in [file, offset, len] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
            Self::VersionPart { file, offset, len, data_len, digest } => {
                out.push(15);
                out.extend_from_slice(&file.to_be_bytes());
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&data_len.to_be_bytes());
                out.extend_from_slice(digest);
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
            Self::Keep { directory, name } | Self::Special { directory, name } => {
                out.push(if matches!(self, Self::Keep { .. }) { 8 } else { 13 });
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

    /// Returns the bytes of a tail. All tails have one length, so they can overwrite another in a
    /// table.
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
        if flags & !(LINKED | XATTRS | HASHED | UNSIZED) != 0 {
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
        // A directory comes before its entries, so its number is lower.
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
        let xattrs = if flags & XATTRS != 0 { Some(parse_xattrs(from)?) } else { None };
        let hash = if flags & HASHED != 0 { Some(from.array()?) } else { None };
        let is_linked = flags & LINKED != 0;
        let is_unsized = flags & UNSIZED != 0;
        // The input has no other name, and its content is unknown before it is read.
        if is_unsized && (kind != Kind::File || size != 0 || flags & (LINKED | HASHED) != 0) {
            return Err(RecordError::Flags(flags));
        }
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
            is_unsized,
            xattrs,
            hash,
        })
    }

    fn emit(&self, record: u8, out: &mut Vec<u8>) {
        out.push(record);
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.parent.to_be_bytes());
        let mut flags = if self.is_linked { LINKED } else { 0 };
        flags |= if self.xattrs.is_none() { 0 } else { XATTRS };
        flags |= if self.hash.is_none() { 0 } else { HASHED };
        flags |= if self.is_unsized { UNSIZED } else { 0 };
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
        if let Some(xattrs) = &self.xattrs {
            let count = u16::try_from(xattrs.len()).expect("at most XATTRS_MAX");
            out.extend_from_slice(&count.to_be_bytes());
            for xattr in xattrs {
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

/// Returns the bytes of a digest. All have one length, so they can overwrite another in a table.
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

/// Parses an error number and checks Linux's range.
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

/// Checks that a range ends within Linux's largest file offset.
fn check_extent(offset: u64, len: u64) -> Result<(), RecordError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
    if fits && offset.is_multiple_of(GRAIN) {
        Ok(())
    } else {
        Err(RecordError::Extent { offset, len })
    }
}

/// Refuses entries other than files of known sizes.
fn sized_file(entry: Entry) -> Result<Entry, RecordError> {
    match entry.kind {
        Kind::File if entry.is_unsized => Err(RecordError::Flags(UNSIZED)),
        Kind::File => Ok(entry),
        other => Err(RecordError::Type(other.code())),
    }
}
