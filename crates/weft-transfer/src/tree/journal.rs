//! The sink's journal: the received parts of unfinished files, from which a later session resumes.
//!
//! The journal is an append-only file. Each record consists of its length u32, its CRC-32C u32, and
//! its bytes. An incomplete record, or one with a wrong checksum, ends the journal. The
//! second record is the mark, without which the file is not a journal of Weft's.
//!
//! A part is recorded after it has been written, and nothing is synced. A recorded part may
//! nevertheless be missing or wrong: after a crash of the kernel, or because another program has
//! changed it. So the journal says only where to look. Both ends hash each part before it is used.
//!
//! The same is true for complete files: after a reboot or a new mount, those that were written
//! since the journal began may lack data, unless the session synced each of them.

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use crc_fast::{CrcAlgorithm, checksum};
use rustix::io::{Errno, write};

use crate::limits::{JOURNAL_FILES_MAX, JOURNAL_LEN_MAX, JOURNAL_RECORD_LEN_MAX, RANGES_MAX};
use crate::tree::ranges::Ranges;
use crate::tree::temporary::Key;
use crate::wire::record::Time;
use crate::wire::record_bytes::{Reader, Short, push_counted_u8, push_counted_u16};
use crate::wire::record_name::Name;
use weft_sys::lock;

const VERSION: u8 = 2;

/// Identifies where a journal was written. While both values are the same, the kernel still has all
/// written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's boot identifier.
    pub boot: [u8; 16],
    /// The identifier of the root's mount.
    pub mount: u64,
}

/// What tells a journal from a file of somebody else: the key of the session's temporary names, and
/// the file in which it was written. A copy of the file is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The key of the session's temporary names.
    pub key: Key,
    /// The journal's own inode.
    pub inode: u64,
    /// When that inode was created, if the file system knows it.
    pub born: Time,
}

/// A file that a session began and did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its path from the root.
    pub path: Box<[u8]>,
    /// The temporary name of its data, in the same directory.
    pub temporary: Name,
    /// Its size at the source.
    pub size: u64,
    /// Its mtime at the source.
    pub mtime: Time,
    /// The parts that have been written, holes included.
    pub ranges: Ranges,
}

/// The contents of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The files that can be resumed.
    pub unfinished: Vec<Unfinished>,
    /// The mark of the journal.
    pub mark: Option<Mark>,
    /// The directories, as paths from the root, in which the session has made temporary files.
    pub folders: Vec<Box<[u8]>>,
    /// All files of the session, even those that cannot be resumed: path and temporary name.
    pub named: Vec<(Box<[u8]>, Name)>,
    /// Files that changed since this time, in seconds since 1970, may have lost data in a crash.
    pub suspect_since: Option<i64>,
}

/// A journal that is being written. Threads share it.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: OwnedFd,
    next: u32,
    /// An error of writing, after which nothing is appended.
    error: Option<Errno>,
}

impl Journal {
    /// Begins a journal in an empty file that is open for appending. `syncs` says whether each file
    /// is synced before it gets its name.
    #[must_use]
    pub fn begin(file: OwnedFd, origin: Origin, now: i64, syncs: bool) -> Self {
        let state = State { file, next: 0, error: None };
        let journal = Self { state: Mutex::new(state) };
        let mut bytes = vec![1, VERSION];
        bytes.extend_from_slice(&origin.boot);
        bytes.extend_from_slice(&origin.mount.to_be_bytes());
        bytes.extend_from_slice(&now.to_be_bytes());
        bytes.push(syncs.into());
        journal.with(|state| state.append(&bytes));
        journal
    }

    /// Records which file the journal is, and the key of the session's temporary names.
    pub fn mark(&self, mark: Mark) {
        let Mark { key, inode, born } = mark;
        let mut bytes = vec![5];
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&inode.to_be_bytes());
        bytes.extend_from_slice(&born.seconds.to_be_bytes());
        bytes.extend_from_slice(&born.nanoseconds.to_be_bytes());
        self.with(|state| state.append(&bytes));
    }

    /// Records a directory in which the session makes temporary files.
    pub fn folder(&self, path: &[u8]) {
        // Other programs cannot open longer paths either.
        if path.len() <= JOURNAL_RECORD_LEN_MAX / 2 {
            let mut bytes = vec![6];
            push_counted_u16(&mut bytes, path);
            self.with(|state| state.append(&bytes));
        }
    }

    /// Records a new file, and returns its number for other records.
    pub fn file(&self, path: &[u8], temporary: &Name, size: u64, mtime: Time) -> Option<u32> {
        // Other programs cannot open longer paths either, so such a file is not resumed.
        if path.len() > JOURNAL_RECORD_LEN_MAX / 2 {
            return None;
        }
        self.with(|state| {
            let id = state.next;
            state.next += 1;
            let mut bytes = vec![2];
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&size.to_be_bytes());
            bytes.extend_from_slice(&mtime.seconds.to_be_bytes());
            bytes.extend_from_slice(&mtime.nanoseconds.to_be_bytes());
            push_counted_u8(&mut bytes, temporary.as_bytes());
            push_counted_u16(&mut bytes, path);
            state.append(&bytes);
            Some(id)
        })
    }

    /// Records that a part of a file was written.
    pub fn part(&self, file: u32, offset: u64, len: u64) {
        let mut bytes = vec![3];
        bytes.extend_from_slice(&file.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        self.with(|state| state.append(&bytes));
    }

    /// Records the parts of an earlier session.
    pub fn parts(&self, file: u32, ranges: &Ranges) {
        for (offset, len) in ranges.iter() {
            self.part(file, offset, len);
        }
    }

    /// Records that a file has its final name or was given up.
    pub fn end(&self, file: u32) {
        let mut bytes = vec![4];
        bytes.extend_from_slice(&file.to_be_bytes());
        self.with(|state| state.append(&bytes));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

impl State {
    fn append(&mut self, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let mut record = (bytes.len() as u32).to_be_bytes().to_vec();
        record.extend_from_slice(&crc(bytes).to_be_bytes());
        record.extend_from_slice(bytes);
        let mut rest = &record[..];
        while !rest.is_empty() {
            match write(&self.file, rest) {
                Ok(0) => self.error = Some(Errno::IO),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                // The disk is full. Records after a partial one would never be read.
                Err(error) => self.error = Some(error),
            }
            if self.error.is_some() {
                return;
            }
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Reads the valid records of a journal for the host and mount `here`.
///
/// The file may come from a peer. So at most one record is in memory besides the result, and the
/// first invalid record ends the journal. A sparse file thus cannot use much memory.
pub fn read(mut file: impl Read + Seek, here: Origin) -> Contents {
    let mut records = Records::new(&mut file);
    let Some(Line::Begin { origin, begun, syncs }) = records.next() else {
        return Contents::default();
    };
    let suspect_since = (origin != here && !syncs).then_some(begun);
    let mut contents = Contents { suspect_since, ..Contents::default() };
    let mut files: HashMap<u32, Option<Unfinished>> = HashMap::new();
    if file.rewind().is_err() {
        return contents;
    }
    for line in Records::new(&mut file) {
        match line {
            Line::File(id, file) => {
                if files.len() == JOURNAL_FILES_MAX {
                    break;
                }
                contents.named.push((file.path.clone(), file.temporary.clone()));
                files.insert(id, Some(file));
            }
            Line::Part { id, offset, len } => {
                let Some(Some(file)) = files.get_mut(&id) else { continue };
                let is_within = offset.checked_add(len).is_some_and(|end| end <= file.size);
                let is_room = file.ranges.count() < RANGES_MAX;
                if is_within && is_room {
                    // One that overlaps is read from the source again.
                    file.ranges.add(offset, len);
                }
            }
            Line::Gone(id) => {
                files.insert(id, None);
            }
            Line::Mark(mark) => contents.mark = contents.mark.or(Some(mark)),
            Line::Folder(path) if contents.folders.len() < JOURNAL_FILES_MAX => {
                contents.folders.push(path);
            }
            Line::Folder(_) | Line::Begin { .. } => {}
        }
    }
    let mut unfinished: Vec<(u32, Unfinished)> =
        files.into_iter().filter_map(|(id, file)| Some((id, file?))).collect();
    unfinished.sort_unstable_by_key(|(id, _)| *id);
    contents.unfinished = unfinished.into_iter().map(|(_, file)| file).collect();
    contents
}

/// Returns the mark at the beginning of a journal; `None` if the file is no journal.
pub(crate) fn mark_in(file: impl Read) -> Option<Mark> {
    let mut records = Records::new(file);
    match (records.next()?, records.next()?) {
        (Line::Begin { .. }, Line::Mark(mark)) => Some(mark),
        _ => None,
    }
}

/// The records of a journal.
struct Records<R> {
    file: BufReader<R>,
    at: u64,
    bytes: Vec<u8>,
}

impl<R: Read> Records<R> {
    fn new(file: R) -> Self {
        Self { file: BufReader::new(file), at: 0, bytes: Vec::new() }
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Line;

    fn next(&mut self) -> Option<Self::Item> {
        let mut head = [0; 8];
        self.file.read_exact(&mut head).ok()?;
        let mut from = Reader::new(&head);
        let (len, expected) = (from.u32().ok()? as usize, from.u32().ok()?);
        if len > JOURNAL_RECORD_LEN_MAX || self.at > JOURNAL_LEN_MAX {
            return None;
        }
        self.bytes.resize(len, 0);
        self.file.read_exact(&mut self.bytes).ok()?;
        self.at += (head.len() + len) as u64;
        if crc(&self.bytes) != expected {
            return None;
        }
        // A complete record that cannot be parsed comes from another version.
        Line::parse(&self.bytes).ok()
    }
}

enum Line {
    Begin { origin: Origin, begun: i64, syncs: bool },
    File(u32, Unfinished),
    Part { id: u32, offset: u64, len: u64 },
    Gone(u32),
    Mark(Mark),
    Folder(Box<[u8]>),
}

impl Line {
    fn parse(record: &[u8]) -> Result<Self, Short> {
        let mut from = Reader::new(record);
        Ok(match from.u8()? {
            1 => {
                if from.u8()? != VERSION {
                    return Err(Short);
                }
                let origin = Origin { boot: from.array()?, mount: from.u64()? };
                let begun = i64::from_be_bytes(from.array()?);
                Self::Begin { origin, begun, syncs: from.u8()? != 0 }
            }
            2 => {
                let (id, size) = (from.u32()?, from.u64()?);
                let seconds = i64::from_be_bytes(from.array()?);
                let mtime = Time { seconds, nanoseconds: from.u32()? };
                let temporary = Name::new(from.counted_u8()?).map_err(|_| Short)?;
                let path = from.counted_u16()?.into();
                let ranges = Ranges::default();
                Self::File(id, Unfinished { path, temporary, size, mtime, ranges })
            }
            3 => Self::Part { id: from.u32()?, offset: from.u64()?, len: from.u64()? },
            4 => Self::Gone(from.u32()?),
            5 => {
                let (key, inode) = (from.array()?, from.u64()?);
                let seconds = i64::from_be_bytes(from.array()?);
                let born = Time { seconds, nanoseconds: from.u32()? };
                Self::Mark(Mark { key, inode, born })
            }
            6 => Self::Folder(from.counted_u16()?.into()),
            _ => return Err(Short),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Seek, SeekFrom};

    use super::{Line, Origin, Records, VERSION, crc, read};

    const HERE: Origin = Origin { boot: [7; 16], mount: 3 };

    /// A sparse file that fails the test if much of it is read.
    struct Holes(u64);

    impl Read for Holes {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            assert!(self.0 <= 1 << 20, "a journal without a record is read on");
            bytes.fill(0);
            Ok(bytes.len())
        }
    }

    impl Seek for Holes {
        fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
            Ok(0)
        }
    }

    #[test]
    fn reading_stops_at_a_hole_after_the_records() {
        assert_eq!(read(Holes(0), HERE).named, vec![]);
        // A valid beginning does not make it read the hole either.
        let mut begin = vec![1, VERSION];
        begin.extend_from_slice(&HERE.boot);
        begin.extend_from_slice(&HERE.mount.to_be_bytes());
        begin.extend_from_slice(&0_i64.to_be_bytes());
        begin.push(1);
        let mut bytes = (begin.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&crc(&begin).to_be_bytes());
        bytes.extend_from_slice(&begin);
        let mut records = Records::new(io::Cursor::new(bytes).chain(Holes(0)));
        let begin = records.next();
        assert!(matches!(begin, Some(Line::Begin { origin: HERE, begun: 0, syncs: true })));
        assert!(records.next().is_none());
    }
}
