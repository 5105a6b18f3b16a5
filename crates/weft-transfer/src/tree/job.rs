//! Planned blocks and their filling, in which the source reads files.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use rustix::fs::OFlags;
use rustix::io::{Errno, preadv};

use crate::limits::{COPIED_FILES_IN_BLOCK_MAX, COPIES_IN_BLOCK_MAX, EXTENT_LEN_MIN};
use crate::tree::beneath;
use crate::tree::checking::Checking;
use crate::tree::delta::{BYTES_HEAD_LEN, Index};
use crate::tree::digest::digest_of_file;
use crate::tree::dirs::{Dir, Dirs};
use crate::tree::extent::Extent;
use crate::tree::input::{Input, Portion};
use crate::tree::reading::{Reading, status_of};
use crate::wire::record::{
    COPY_LEN, DATA_LEN, DIGEST_LEN, END_LEN, GRAIN, Record, Status, TAIL_LEN, Tail, Time,
};
use crate::wire::record_name::Name;

/// A planned block that any thread can fill.
#[derive(Debug)]
pub struct Job {
    /// The block's sequence number. The sink applies blocks in this order.
    pub number: u64,
    pub(crate) plan: Plan,
}

/// The lengths of a filled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Length of the record table, for the block's header.
    pub table_len: usize,
    /// Length of the payload: the table and the data after it.
    pub len: usize,
}

impl Job {
    /// The length of the payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plan.len()
    }

    /// Whether it contains bytes of an input: the next ones can be planned when it is filled.
    pub(crate) fn has_input(&self) -> bool {
        matches!(self.plan.items.last(), Some(Item::Input { .. }))
    }

    /// Always false: no block is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it compares what the sink has, after which more can be planned.
    #[must_use]
    pub fn checks(&self) -> bool {
        self.plan.items.iter().any(|item| matches!(item, Item::Check { .. }))
    }

    /// Reads the files and writes the payload. An unreadable file does not affect the others.
    ///
    /// # Panics
    /// If the payload is shorter than the source's option.
    pub fn fill(self, payload: &mut [u8]) -> Filled {
        self.plan.fill(payload)
    }

    /// Does the same, but leaves the last part of the payload in its file if the transport can take
    /// it from there. That part is then behind the filled bytes, and counts in their length.
    pub(crate) fn fill_before_extent(mut self, payload: &mut [u8]) -> (Filled, Option<Extent>) {
        let Some(extent) = self.plan.take_extent() else { return (self.fill(payload), None) };
        let Filled { table_len, len } = self.plan.fill(payload);
        (Filled { table_len, len: len + extent.len() }, Some(extent))
    }
}

impl Plan {
    /// Removes the last part of the payload, if it can stay in its file.
    fn take_extent(&mut self) -> Option<Extent> {
        let last = self.items.pop_if(|last| {
            matches!(last, Item::Part { reading, len, .. }
                if reading.is_sent_by_extents && *len >= EXTENT_LEN_MIN)
        })?;
        // The table says already that the part has no digest.
        let Item::Part { reading, offset, len, .. } = last else { return None };
        self.data_len -= len;
        Some(Extent::new(reading, offset, len))
    }

    fn fill(self, payload: &mut [u8]) -> Filled {
        let Self { mut table, items, data_len, .. } = self;
        let table_len = table.len();
        let (head, behind) = payload[..table_len + data_len].split_at_mut(table_len);
        let mut at = 0;
        for item in items {
            match item {
                Item::Whole { file, len, tail_at } => {
                    let tail = file.read_whole(&mut behind[at..at + len]);
                    table[tail_at..tail_at + TAIL_LEN].copy_from_slice(&tail.bytes());
                    at += len;
                }
                Item::Part { reading, offset, len, digest_at } => {
                    let digest = reading.read_part(offset, &mut behind[at..at + len]);
                    table[digest_at..digest_at + DIGEST_LEN].copy_from_slice(&digest);
                    if reading.is_sent_by_extents {
                        reading.is_read();
                    }
                    at += len;
                }
                Item::Version(part) => {
                    let space = &mut behind[at..at + part.len + BYTES_HEAD_LEN];
                    let place = (part.offset, part.len);
                    let (digest, len) = part.reading.read_version_part(&part.index, place, space);
                    let mut bytes = Vec::new();
                    part.record(len, digest).emit(&mut bytes);
                    table[part.record_at..part.record_at + bytes.len()].copy_from_slice(&bytes);
                    at += len;
                }
                Item::EndOfParts { reading, end_at } => {
                    if let Some(end) = reading.part_is_done() {
                        let mut bytes = Vec::new();
                        end.emit(&mut bytes);
                        table[end_at..end_at + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Item::Input { input, file, len, data_at, end_at } => {
                    let Portion { offset, len, digest, end } =
                        input.read(&mut behind[at..at + len]);
                    let mut put = |place: usize, record: Record| {
                        let mut bytes = Vec::new();
                        record.emit(&mut bytes);
                        table[place..place + bytes.len()].copy_from_slice(&bytes);
                    };
                    if len > 0 {
                        put(data_at, Record::Data { file, offset, len: len as u32, digest });
                    }
                    if let Some(tail) = end {
                        put(end_at, Record::End { file, tail });
                    }
                    at += len;
                }
                Item::Check { checking, index } => checking.compare(index),
                Item::Hash { file, hash_at } => {
                    // The sink will want the file because of the wrong hash, and reading it then
                    // reports the error.
                    let hash = file.hash().unwrap_or_default();
                    table[hash_at..hash_at + 32].copy_from_slice(&hash);
                }
            }
        }
        head.copy_from_slice(&table);
        // An input can deliver less than the block has room for.
        Filled { table_len, len: table_len + at }
    }
}

/// The contents of a planned block.
#[derive(Debug)]
pub(crate) struct Plan {
    table: Vec<u8>,
    items: Vec<Item>,
    data_len: usize,
    capacity: usize,
    table_max: usize,
    /// The bytes that the block may still have the kernel copy, and the files that it may begin for
    /// that.
    copies_left: u64,
    copied_files_left: usize,
}

#[derive(Debug)]
enum Item {
    Whole {
        file: PlannedFile,
        len: usize,
        tail_at: usize,
    },
    Part {
        reading: Arc<Reading>,
        offset: u64,
        len: usize,
        digest_at: usize,
    },
    /// A part that the sink makes of its version. It takes less space than is planned for it.
    Version(VersionPart),
    /// The reserved space for the end of a file, which the thread that reads the last part fills.
    EndOfParts {
        reading: Arc<Reading>,
        end_at: usize,
    },
    Hash {
        file: PlannedFile,
        hash_at: usize,
    },
    /// A piece to compare with the sink's. It has no bytes in the block.
    Check {
        checking: Arc<Checking>,
        index: usize,
    },
    /// At most `len` bytes of an input, the last data of its block. There is reserved space for the
    /// records of the data and of the end.
    Input {
        input: Arc<Input>,
        file: u64,
        len: usize,
        data_at: usize,
        end_at: usize,
    },
}

/// A part of a file of which the sink has another version.
#[derive(Debug)]
struct VersionPart {
    reading: Arc<Reading>,
    index: Arc<Index>,
    offset: u64,
    len: usize,
    /// Where its record is in the table.
    record_at: usize,
}

impl VersionPart {
    fn record(&self, data_len: usize, digest: [u8; 32]) -> Record {
        let (file, offset, len) = (self.reading.number, self.offset, self.len as u32);
        Record::VersionPart { file, offset, len, data_len: data_len as u32, digest }
    }
}

impl Plan {
    pub(crate) fn new(capacity: usize, table_max: usize) -> Self {
        Self {
            table: Vec::new(),
            items: Vec::new(),
            data_len: 0,
            capacity,
            table_max,
            copies_left: COPIES_IN_BLOCK_MAX,
            copied_files_left: COPIED_FILES_IN_BLOCK_MAX,
        }
    }

    fn len(&self) -> usize {
        self.table.len() + self.data_len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The number of free bytes.
    pub(crate) fn left(&self) -> usize {
        self.capacity - self.len()
    }

    /// Adds a record if it fits with its data.
    fn push(&mut self, record: &Record) -> bool {
        let before = self.table.len();
        record.emit(&mut self.table);
        let data_len = record.data_len();
        if self.table.len() > self.table_max || self.len() + data_len > self.capacity {
            self.table.truncate(before);
            return false;
        }
        self.data_len += data_len;
        true
    }

    /// Adds a record without data if it fits.
    pub(crate) fn add(&mut self, record: &Record) -> bool {
        debug_assert_eq!(record.data_len(), 0);
        self.push(record)
    }

    /// Adds an offer if it fits. Its file is hashed when the block is filled.
    pub(crate) fn add_hashed(&mut self, record: &Record, file: PlannedFile) -> bool {
        let fits = self.push(record);
        if fits {
            self.items.push(Item::Hash { file, hash_at: self.table.len() - 32 });
        }
        fits
    }

    /// Adds the comparison of a piece. The block may have no other contents, so it gets a filler.
    pub(crate) fn add_check(&mut self, checking: &Arc<Checking>, index: usize) -> bool {
        let fits = self.push(&Record::Nothing);
        if fits {
            self.items.push(Item::Check { checking: Arc::clone(checking), index });
        }
        fits
    }

    /// Adds a whole file if it fits; otherwise returns it.
    pub(crate) fn add_whole(
        &mut self,
        record: &Record,
        file: PlannedFile,
    ) -> Result<(), PlannedFile> {
        if !self.push(record) {
            return Err(file);
        }
        let tail_at = self.table.len() - TAIL_LEN;
        self.items.push(Item::Whole { file, len: record.data_len(), tail_at });
        Ok(())
    }

    /// Adds a part of a file. The caller has checked that it fits.
    pub(crate) fn add_part(&mut self, reading: &Arc<Reading>, offset: u64, len: usize) {
        if let Some(index) = &reading.version {
            return self.add_version_part(reading, index, offset, len);
        }
        let record = Record::Data { file: reading.number, offset, len: len as u32, digest: None };
        let fits = self.push(&record);
        assert!(fits, "a part that does not fit was planned");
        if reading.is_sent_by_extents {
            reading.unread.fetch_add(1, AcqRel);
        }
        let (digest_at, reading) = (self.table.len() - DIGEST_LEN, Arc::clone(reading));
        self.items.push(Item::Part { reading, offset, len, digest_at });
    }

    /// Adds a part that the sink makes of its version. The caller has checked that it fits if none
    /// of it is there.
    fn add_version_part(
        &mut self,
        reading: &Arc<Reading>,
        index: &Arc<Index>,
        offset: u64,
        len: usize,
    ) {
        let (reading, index) = (Arc::clone(reading), Arc::clone(index));
        let part = VersionPart { reading, index, offset, len, record_at: self.table.len() };
        let fits = self.push(&part.record(len + BYTES_HEAD_LEN, [0; 32]));
        assert!(fits, "a part that does not fit was planned");
        self.items.push(Item::Version(part));
    }

    /// Fills the rest of the block with the next bytes of an input.
    pub(crate) fn add_input(&mut self, input: &Arc<Input>, file: u64) {
        let data_at = self.table.len();
        let end_at = data_at + DATA_LEN;
        self.table.resize(end_at + END_LEN, 0);
        let len = self.left() - self.left() % GRAIN as usize;
        self.data_len += len;
        let input = Arc::clone(input);
        self.items.push(Item::Input { input, file, len, data_at, end_at });
    }

    /// Counts a file that the kernel will copy. Returns false if the block has enough of them.
    pub(crate) fn begin_copied_file(&mut self) -> bool {
        let left = self.copied_files_left.checked_sub(1);
        self.copied_files_left = left.unwrap_or(0);
        left.is_some()
    }

    /// The bytes that the block may still have the kernel copy; none if its table is full.
    pub(crate) fn copies_left(&self) -> u64 {
        let left = self.left().min(self.table_max.saturating_sub(self.table.len()));
        let has_room = left >= COPY_LEN + END_LEN;
        if has_room { self.copies_left } else { 0 }
    }

    /// Adds a range that the kernel will copy. The caller has checked that it fits.
    pub(crate) fn add_copy(&mut self, file: u64, offset: u64, len: u64) {
        let fits = self.push(&Record::Copy { file, offset, len });
        assert!(fits, "a copy that does not fit was planned");
        self.copies_left -= len;
    }

    /// Reserves space for the end of a file after its parts in this block.
    pub(crate) fn add_end_of_parts(&mut self, reading: &Arc<Reading>, is_last: bool) {
        let end_at = self.table.len();
        self.table.resize(end_at + END_LEN, 0);
        if !is_last {
            reading.unread.fetch_add(1, AcqRel);
        }
        self.items.push(Item::EndOfParts { reading: Arc::clone(reading), end_at });
    }
}

/// A file that is read or hashed at once.
#[derive(Debug)]
pub(crate) struct PlannedFile {
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) dir: Arc<Dir>,
    pub(crate) name: Name,
    /// The name is a link that is followed.
    pub(crate) is_followed: bool,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) is_hashed: bool,
    /// The descriptor, if the file is open already.
    pub(crate) fd: Option<CountedFd>,
}

/// An open descriptor that counts towards `PLANNED_FILES_OPEN_MAX`.
#[derive(Debug)]
pub(crate) struct CountedFd {
    pub(crate) fd: OwnedFd,
    pub(crate) count: Arc<AtomicUsize>,
}

impl Drop for CountedFd {
    fn drop(&mut self) {
        self.count.fetch_sub(1, AcqRel);
    }
}

impl PlannedFile {
    fn open(&self) -> Result<OwnedFd, Errno> {
        open_file(&self.dirs, &self.dir, &self.name, self.is_followed)
    }

    fn read_whole(&self, data: &mut [u8]) -> Tail {
        let result = match &self.fd {
            Some(counted) => self.read_from(counted.fd.as_fd(), data),
            None => self.open().and_then(|fd| {
                // The file may have been replaced by a pipe or a device, which must not be read.
                status_of(fd.as_fd(), self.size, self.mtime)?;
                self.read_from(fd.as_fd(), data)
            }),
        };
        let failed = |errno: Errno| Tail {
            status: Status::Failed { errno: errno.raw_os_error() as u32 },
            size: 0,
            hash: None,
        };
        result.unwrap_or_else(failed)
    }

    fn read_from(&self, fd: BorrowedFd<'_>, data: &mut [u8]) -> Result<Tail, Errno> {
        // One extra byte shows whether the file has grown.
        let (mut got, mut more) = (0, [0]);
        while got <= data.len() {
            let mut parts = [IoSliceMut::new(&mut data[got..]), IoSliceMut::new(&mut more)];
            match preadv(fd, &mut parts, got as u64) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            // A read that lacks only the extra byte has reached the end.
            if got == data.len() {
                break;
            }
        }
        // A change that keeps the length shows only in the mtime.
        let mut status = status_of(fd, self.size, self.mtime)?;
        if got != data.len() {
            status = Status::Changed;
        }
        let got = got.min(data.len());
        data[got..].fill(0);
        let hash = self.is_hashed.then(|| blake3::hash(&data[..got]).into());
        Ok(Tail { status, size: got as u64, hash })
    }

    fn hash(&self) -> Result<[u8; 32], Errno> {
        digest_of_file(self.open()?)
    }
}

/// Opens a regular file for reading, which may be that of a link that is followed.
pub(crate) fn open_file(
    dirs: &Dirs,
    dir: &Arc<Dir>,
    name: &Name,
    is_followed: bool,
) -> Result<OwnedFd, Errno> {
    if is_followed {
        return dirs.follow(dir, name, OFlags::RDONLY);
    }
    let dir = dirs.open(dir)?;
    // A pipe in the file's place must not block the thread.
    beneath::open(&dir, name.as_path(), OFlags::RDONLY | OFlags::NONBLOCK, 0)
}
