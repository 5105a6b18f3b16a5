//! The sink's journal: which parts of unfinished files are there, so that a later session goes on.
//!
//! It is a file that only grows. Each record is the number of its bytes u32, their CRC-32C u32, and
//! these bytes. What ends in the middle of a record, or fails its checksum, counts no more from
//! there on.
//!
//! A part stands in the journal once it has been written. The kernel has it then, so that it
//! survives the end of the process. It survives the end of the kernel once a later record says
//! that the file system had been synced: after a start of the host, or another mount, only what
//! lies before the last such record counts.

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use crc_fast::{CrcAlgorithm, checksum};
use rustix::fs::{fdatasync, syncfs};
use rustix::io::{Errno, Result, write};

use crate::limits::{
    JOURNAL_FILES_MAX, JOURNAL_LEN_MAX, JOURNAL_RECORD_LEN_MAX, RANGES_MAX, SUBTREES_CARRIED_MAX,
};
use crate::mutex::lock;
use crate::tree::hash::{Subtree, Subtrees};
use crate::tree::ranges::Ranges;
use crate::wire::record::Time;
use crate::wire::record_bytes::{Reader, Short, push_counted_u8, push_counted_u16};
use crate::wire::record_name::Name;

const VERSION: u8 = 1;

/// Where a journal was written: what has been written since then is in the kernel's hands as long
/// as both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's identifier of this start.
    pub boot: [u8; 16],
    /// The mount of the root.
    pub mount: u64,
}

/// A file that a session began and did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its path from the root on.
    pub path: Box<[u8]>,
    /// The name in the same directory that its data is under.
    pub temporary: Name,
    /// Its size at the source.
    pub size: u64,
    /// Its mtime at the source.
    pub mtime: Time,
    /// What is there, holes included.
    pub ranges: Ranges,
    /// Subtrees of the hash of what is there.
    pub subtrees: Subtrees,
}

/// What a journal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files to go on with.
    pub unfinished: Vec<Unfinished>,
    /// All files of the session, also those that count no more: path and temporary name.
    pub named: Vec<(Box<[u8]>, Name)>,
    /// Since when, in seconds since 1970, files may have been lost by the end of the kernel.
    pub suspect_since: Option<i64>,
}

/// A journal that is being written. Any thread may.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: OwnedFd,
    len: u64,
    next: u32,
    /// The journal could not be written: it ends there.
    error: Option<Errno>,
}

impl Journal {
    /// Begins a journal in an empty file that is open for appending.
    #[must_use]
    pub fn begin(file: OwnedFd, origin: Origin, now: i64) -> Self {
        let state = State { file, len: 0, next: 0, error: None };
        let journal = Self { state: Mutex::new(state) };
        let mut bytes = vec![1, VERSION];
        bytes.extend_from_slice(&origin.boot);
        bytes.extend_from_slice(&origin.mount.to_be_bytes());
        bytes.extend_from_slice(&now.to_be_bytes());
        journal.with(|state| state.append(&bytes));
        journal
    }

    /// Begins a file; the result names it in the other records.
    pub fn file(&self, path: &[u8], temporary: &Name, size: u64, mtime: Time) -> Option<u32> {
        // Paths beyond this cannot be opened by other programs either; such a file starts anew.
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

    /// A part of a file has been written.
    pub fn part(&self, file: u32, offset: u64, len: u64, subtrees: &Subtrees) {
        let mut bytes = vec![3];
        bytes.extend_from_slice(&file.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        for (at, Subtree { len, value }) in subtrees.iter() {
            bytes.extend_from_slice(&at.to_be_bytes());
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&value);
        }
        self.with(|state| state.append(&bytes));
    }

    /// Parts of a file are there from an earlier session, and on the disk.
    pub fn parts(&self, file: u32, ranges: &Ranges, subtrees: &Subtrees) {
        // The subtrees are of the file, not of a part: all go with the first.
        let mut subtrees = subtrees.clone();
        if subtrees.iter().len() > SUBTREES_CARRIED_MAX {
            subtrees = Subtrees::default();
        }
        for (offset, len) in ranges.iter() {
            self.part(file, offset, len, &std::mem::take(&mut subtrees));
        }
    }

    /// A file has its name, or has been given up.
    pub fn end(&self, file: u32) {
        let mut bytes = vec![4];
        bytes.extend_from_slice(&file.to_be_bytes());
        self.with(|state| state.append(&bytes));
    }

    /// Makes all that has been written so far durable, and says so. `now` is before the call.
    ///
    /// # Errors
    /// What the kernel says; then the journal does not say so.
    pub fn sync(&self, now: i64) -> Result<()> {
        // Not under the lock: others go on writing meanwhile.
        let (len, file) = self.with(|state| (state.len, rustix::io::dup(&state.file)));
        let file = file?;
        syncfs(&file)?;
        let mut bytes = vec![5];
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&now.to_be_bytes());
        self.with(|state| state.append(&bytes));
        fdatasync(&file)
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
                // The disk is full: what follows would not be read behind a torn record.
                Err(error) => self.error = Some(error),
            }
            if self.error.is_some() {
                return;
            }
        }
        self.len += record.len() as u64;
    }
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Reads a journal, as far as it is whole, on the host and mount `here`.
///
/// A peer may have sent the file. So no more than one record is in memory at a time beside what
/// the records say, and the first one that makes no sense ends it: a file of holes claims nothing.
pub fn read(mut file: impl Read + Seek, here: Origin) -> Contents {
    let mut records = Records::new(&mut file);
    let Some((_, Line::Begin { origin, begun })) = records.next() else {
        return Contents::default();
    };
    // What lies before this offset counts.
    let (mut trusted, mut suspect_since) = (u64::MAX, None);
    if origin != here {
        (trusted, suspect_since) = (0, Some(begun));
        for (at, line) in records {
            if let Line::Durable { upto, since } = line
                && upto <= at
            {
                (trusted, suspect_since) = (upto, Some(since));
            }
        }
    }
    let mut contents = Contents { suspect_since, ..Contents::default() };
    let mut files: HashMap<u32, Option<Unfinished>> = HashMap::new();
    if file.rewind().is_err() {
        return contents;
    }
    for (at, line) in Records::new(&mut file) {
        match line {
            Line::File(id, file) => {
                if files.len() == JOURNAL_FILES_MAX {
                    break;
                }
                contents.named.push((file.path.clone(), file.temporary.clone()));
                files.insert(id, Some(file));
            }
            Line::Part { id, offset, len, subtrees } if at < trusted => {
                let Some(Some(file)) = files.get_mut(&id) else { continue };
                let is_within = offset.checked_add(len).is_some_and(|end| end <= file.size);
                let is_room = file.ranges.count() < RANGES_MAX;
                if is_within && is_room && file.ranges.add(offset, len) {
                    file.subtrees.add_all(&subtrees);
                }
            }
            Line::Gone(id) => {
                files.insert(id, None);
            }
            Line::Begin { .. } | Line::Part { .. } | Line::Durable { .. } => {}
        }
    }
    let mut unfinished: Vec<(u32, Unfinished)> =
        files.into_iter().filter_map(|(id, file)| Some((id, file?))).collect();
    unfinished.sort_unstable_by_key(|(id, _)| *id);
    contents.unfinished = unfinished.into_iter().map(|(_, file)| file).collect();
    contents
}

/// The records of a journal, each with its offset.
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
    type Item = (u64, Line);

    fn next(&mut self) -> Option<Self::Item> {
        let mut head = [0; 8];
        self.file.read_exact(&mut head).ok()?;
        let mut from = Reader::new(&head);
        let (len, expected) = (from.u32().ok()? as usize, from.u32().ok()?);
        let at = self.at;
        if len > JOURNAL_RECORD_LEN_MAX || at > JOURNAL_LEN_MAX {
            return None;
        }
        self.bytes.resize(len, 0);
        self.file.read_exact(&mut self.bytes).ok()?;
        self.at += (head.len() + len) as u64;
        if crc(&self.bytes) != expected {
            return None;
        }
        // A record that is whole and makes no sense is of another version.
        Some((at, Line::parse(&self.bytes).ok()?))
    }
}

enum Line {
    Begin { origin: Origin, begun: i64 },
    File(u32, Unfinished),
    Part { id: u32, offset: u64, len: u64, subtrees: Subtrees },
    Gone(u32),
    Durable { upto: u64, since: i64 },
}

impl Line {
    fn parse(record: &[u8]) -> std::result::Result<Self, Short> {
        let mut from = Reader::new(record);
        Ok(match from.u8()? {
            1 => {
                if from.u8()? != VERSION {
                    return Err(Short);
                }
                let origin = Origin { boot: from.array()?, mount: from.u64()? };
                Self::Begin { origin, begun: i64::from_be_bytes(from.array()?) }
            }
            2 => {
                let (id, size) = (from.u32()?, from.u64()?);
                let seconds = i64::from_be_bytes(from.array()?);
                let mtime = Time { seconds, nanoseconds: from.u32()? };
                let temporary = Name::new(from.counted_u8()?).map_err(|_| Short)?;
                let path = from.counted_u16()?.into();
                let (ranges, subtrees) = (Ranges::default(), Subtrees::default());
                Self::File(id, Unfinished { path, temporary, size, mtime, ranges, subtrees })
            }
            3 => {
                let (id, offset, len) = (from.u32()?, from.u64()?, from.u64()?);
                let mut subtrees = Subtrees::default();
                while from.left() != 0 {
                    let (at, len) = (from.u64()?, from.u64()?);
                    subtrees.add(at, Subtree { len, value: from.array()? });
                }
                Self::Part { id, offset, len, subtrees }
            }
            4 => Self::Gone(from.u32()?),
            5 => Self::Durable { upto: from.u64()?, since: i64::from_be_bytes(from.array()?) },
            _ => return Err(Short),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Seek, SeekFrom};

    use super::{Line, Origin, Records, VERSION, crc, read};

    const HERE: Origin = Origin { boot: [7; 16], mount: 3 };

    /// A file of holes, of which little may be read.
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
    fn holes_behind_the_records_are_not_read_on() {
        assert_eq!(read(Holes(0), HERE).named, vec![]);
        // Nor behind a journal that begins well.
        let mut begin = vec![1, VERSION];
        begin.extend_from_slice(&HERE.boot);
        begin.extend_from_slice(&HERE.mount.to_be_bytes());
        begin.extend_from_slice(&0_i64.to_be_bytes());
        let mut bytes = (begin.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&crc(&begin).to_be_bytes());
        bytes.extend_from_slice(&begin);
        let mut records = Records::new(io::Cursor::new(bytes).chain(Holes(0)));
        assert!(matches!(records.next(), Some((0, Line::Begin { origin: HERE, begun: 0 }))));
        assert!(records.next().is_none());
    }
}
