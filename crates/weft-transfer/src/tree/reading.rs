//! A large file that is read in parts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, pread};

use crate::tree::delta::Index;
use crate::tree::direct::Reader;
use crate::tree::hash::{self, Subtrees};
use crate::tree::metadata;
use crate::wire::record::{DIGEST_LEN, Record, Status, Tail, Time, digest_bytes};
use weft_sys::lock;

/// A file that is read in parts.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) direct: Option<Reader>,
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) is_hashed: bool,
    /// Whether the whole file is sent as data, so that its hash becomes known.
    pub(crate) is_all_data: bool,
    /// Whether the transport may read parts itself. The end of the file is then planned after all
    /// parts have arrived: until then the kernel may still read the file to send them.
    pub(crate) is_sent_by_extents: bool,
    /// The version that the sink has.
    pub(crate) version: Option<Arc<Index>>,
    /// The number of unfilled blocks with parts of it, plus one for the planner. If it is sent by
    /// extents, the number of parts that have not been read or have not arrived.
    pub(crate) unread: AtomicUsize,
    /// The end of the file: its planned size, or less if the file has been truncated.
    pub(crate) end: AtomicU64,
    pub(crate) subtrees: Mutex<Subtrees>,
    pub(crate) error: Mutex<Option<Errno>>,
}

impl Reading {
    /// Reads a part, and returns the bytes of its digest.
    pub(crate) fn read_part(&self, offset: u64, data: &mut [u8]) -> [u8; DIGEST_LEN] {
        let mut got = 0;
        while got < data.len() {
            let (rest, at) = (&mut data[got..], offset + got as u64);
            let read = match &self.direct {
                Some(direct) => direct.read(&self.fd, rest, at),
                None => pread(&*self.fd, rest, at),
            };
            match read {
                Ok(0) => {
                    self.ends_at(offset + got as u64);
                    break;
                }
                Ok(read) => got += read,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.failed(error);
                    break;
                }
            }
        }
        data[got..].fill(0);
        if !self.is_hashed {
            return digest_bytes(None);
        }
        let (digest, subtrees) = hash::of_part(offset, data);
        lock(&self.subtrees).add_all(&subtrees);
        digest_bytes(Some(digest))
    }

    /// Reads a part, and puts the operations into `out` that make it of the sink's version. Returns
    /// its digest and their length.
    pub(crate) fn read_version_part(
        &self,
        index: &Index,
        (offset, len): (u64, usize),
        out: &mut [u8],
    ) -> ([u8; 32], usize) {
        // What is around the part shows where blocks begin.
        let before = (index.margin() as u64).min(offset) as usize;
        let behind = (index.margin() as u64).min(self.size - offset - len as u64) as usize;
        let mut bytes = vec![0; before + len + behind];
        let (head, rest) = bytes.split_at_mut(before);
        let (part, tail) = rest.split_at_mut(len);
        let is_around = self.read_around(offset - before as u64, head)
            && self.read_around(offset + len as u64, tail);
        self.read_part(offset, part);
        let (digest, _) = hash::of_part(offset, part);
        let mut operations = Vec::new();
        match is_around {
            true => index.encode(&bytes, before..before + len, &mut operations),
            false => index.encode(part, 0..len, &mut operations),
        }
        out[..operations.len()].copy_from_slice(&operations);
        (digest, operations.len())
    }

    /// Reads bytes that are not sent. Returns false if they cannot be read.
    fn read_around(&self, offset: u64, data: &mut [u8]) -> bool {
        let mut got = 0;
        while got < data.len() {
            match pread(&*self.fd, &mut data[got..], offset + got as u64) {
                Ok(0) => return false,
                Ok(read) => got += read,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Records that the file ends at this offset.
    pub(crate) fn ends_at(&self, offset: u64) {
        self.end.fetch_min(offset, AcqRel);
    }

    /// Records that the file cannot be read.
    pub(crate) fn failed(&self, error: Errno) {
        lock(&self.error).get_or_insert(error);
    }

    /// Counts one of `unread` as done. Returns whether it was the last.
    pub(crate) fn is_read(&self) -> bool {
        self.unread.fetch_sub(1, AcqRel) == 1
    }

    /// Counts a block of this file as filled. The last one returns the file's end.
    pub(crate) fn part_is_done(&self) -> Option<Record> {
        self.is_read().then(|| Record::End { file: self.number, tail: self.tail() })
    }

    /// Returns how reading the file ended, after all of it has been read.
    pub(crate) fn tail(&self) -> Tail {
        let size = self.end.load(Acquire);
        let mut status = match status_of(self.fd.as_fd(), self.size, self.mtime) {
            Ok(status) if size == self.size => status,
            _ => Status::Changed,
        };
        if let Some(error) = *lock(&self.error) {
            status = Status::Failed { errno: error.raw_os_error() as u32 };
        }
        let is_known = self.is_hashed && self.is_all_data && size == self.size;
        let subtrees = lock(&self.subtrees);
        let hash = if is_known { subtrees.root(size) } else { None };
        Tail { status, size, hash }
    }
}

/// Whether an open file is unchanged since it was planned.
pub(crate) fn status_of(fd: BorrowedFd<'_>, size: u64, mtime: Time) -> Result<Status, Errno> {
    let stat = fstat(fd)?;
    if metadata::kind(&stat) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    let is_same = metadata::size(&stat) == size && metadata::mtime(&stat) == mtime;
    Ok(if is_same { Status::Good } else { Status::Changed })
}
