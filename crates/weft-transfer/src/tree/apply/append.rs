//! Files that exist and are appended to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, statat};

use crate::tree::digest::{digest_of, leave_cache};
use crate::tree::ranges::{self, Ranges};
use crate::tree::{beneath, metadata};
use crate::wire::record::{Entry, GRAIN, Time};
use crate::wire::record_wants::HavePiece;
use weft_sys::lock;

use super::context::Context;
use super::directory::Directory;
use super::options::Append;

/// What a file was when its pieces were reported to the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shorter {
    id: (u64, u64),
    size: u64,
    mtime: Time,
    /// Size and time of the source's file.
    of: (u64, Time),
}

impl Shorter {
    /// Whether the source still has the file that it has offered.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        self.of == (entry.size, entry.mtime)
    }

    /// Whether an open file still begins with the reported pieces.
    pub(super) fn is_still(&self, stat: &Stat, append: Append) -> bool {
        let size = metadata::size(stat);
        let is_unchanged = match append {
            Append::Trusted => size >= self.size,
            Append::Compared => size == self.size && metadata::mtime(stat) == self.mtime,
        };
        (stat.st_dev, stat.st_ino) == self.id && is_unchanged
    }
}

/// Returns the pieces of a file that exists and is shorter than the source's: what of it the source
/// need not send. Pieces that are trusted have no digests.
pub(super) fn have(
    context: &Context,
    directory: &Directory,
    entry: &Entry,
    append: Append,
    pieces_max: usize,
) -> Option<(Vec<HavePiece>, Shorter)> {
    if directory.is_new() || pieces_max == 0 {
        return None;
    }
    let dir = context.dirs.open(&directory.dir).ok()?;
    let name = entry.name.as_ref()?;
    let found = |stat: &Stat| {
        let (size, mtime) = (metadata::size(stat), metadata::mtime(stat));
        let is_file = metadata::kind(stat) == FileType::RegularFile;
        let id = (stat.st_dev, stat.st_ino);
        let shorter = Shorter { id, size, mtime, of: (entry.size, entry.mtime) };
        (is_file && (GRAIN..entry.size).contains(&size)).then_some((size - size % GRAIN, shorter))
    };
    if append == Append::Trusted {
        // Such a file need not be readable.
        let stat = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let (len, shorter) = found(&stat)?;
        return Some((vec![HavePiece { offset: 0, len, digest: [0; 32] }], shorter));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = beneath::open(&*dir, name.as_path(), flags, 0).ok()?;
    let (len, shorter) = found(&fstat(&fd).ok()?)?;
    if context.options.verifies {
        leave_cache(&fd).ok()?;
    }
    let piece = |(offset, len)| {
        // What cannot be read is written again.
        let digest = digest_of(&fd, offset, len).ok()?;
        Some(HavePiece { offset, len, digest })
    };
    let mut all = Ranges::default();
    all.add(0, len);
    let pieces: Vec<_> = ranges::split(&all).take(pieces_max).filter_map(piece).collect();
    (!pieces.is_empty()).then_some((pieces, shorter))
}

/// The writes to a file that is appended to. They happen in the order in which they have come, so
/// that whatever interrupts them leaves a beginning of the file and no hole in it.
#[derive(Debug)]
pub(super) struct Appending {
    /// The bytes at the beginning that are not written, whatever comes.
    pub(super) kept: u64,
    /// The size before.
    pub(super) size: u64,
    /// The number of writes that have come. One thread counts them.
    begun: AtomicU64,
    /// The number of writes that are done.
    done: Mutex<u64>,
    changed: Condvar,
}

/// The turn of a write. The next one begins when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Appending);

impl Appending {
    pub(super) fn new(append: Append, stat: &Stat) -> Self {
        let size = metadata::size(stat);
        let kept = if append == Append::Trusted { size } else { 0 };
        let (begun, done) = (AtomicU64::new(0), Mutex::new(0));
        Self { kept, size, begun, done, changed: Condvar::new() }
    }

    /// Returns the number of the next write.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Relaxed)
    }

    /// Waits until all earlier writes are done. Tasks begin in the order of their numbers, so some
    /// thread runs the earliest of them.
    pub(super) fn wait(&self, number: u64) -> Turn<'_> {
        let done = lock(&self.done);
        let is_early = |done: &mut u64| *done != number;
        drop(self.changed.wait_while(done, is_early).unwrap_or_else(PoisonError::into_inner));
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.done) += 1;
        self.0.changed.notify_all();
    }
}
