//! A store behind a cache: what is read is kept, and what is written goes to both.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{CacheStats, Extent, Store, within};
use crate::cache::{Cache, Key, Layout, Opened, Origin, Owned, Piece, Topology};
use crate::limits::{FORWARD_LEN_MIN, OWNED_BLOCKS_MAX};
use crate::locks::at_once;

/// A store whose blocks are kept in a cache, as the store has them: a write is complete when the
/// store has taken it.
#[derive(Debug)]
pub struct Cached {
    inner: Box<dyn Store>,
    cache: Arc<Cache>,
    /// Its number in the cache.
    unit: u32,
    origin: Option<Origin>,
    /// What changes the length holds it alone. What reads the store or writes to it shares it.
    changes: RwLock<()>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Blocks that one write holds.
type OwnedBlocks<'a> = [Option<(Owned<'a>, Piece)>; OWNED_BLOCKS_MAX];

impl Cached {
    /// Puts a store behind a cache.
    ///
    /// # Errors
    ///
    /// If another store of the cache has the same file or device.
    pub fn new(inner: Box<dyn Store>, cache: Arc<Cache>) -> io::Result<Self> {
        let origin = inner.origin();
        let unit = cache.attach(origin)?;
        let (changes, hits, misses) = Default::default();
        Ok(Self { inner, cache, unit, origin, changes, hits, misses })
    }

    fn layout(&self) -> &Layout {
        self.cache.layout()
    }

    fn key(&self, piece: Piece) -> Key {
        Key { unit: self.unit, number: piece.number }
    }

    /// The range of a block in the store.
    fn block(&self, piece: Piece) -> Range<u64> {
        let start = piece.number * self.layout().block_len as u64;
        start..self.inner.len().min(start + self.layout().block_len as u64)
    }

    fn is_whole(&self, piece: Piece) -> bool {
        let block = self.block(piece);
        piece.at == 0 && piece.len as u64 == block.end.saturating_sub(block.start)
    }

    /// While the guard lives, the length stays.
    fn share_changes(&self) -> RwLockReadGuard<'_, ()> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `share_changes`, without a wait.
    fn try_share_changes(&self) -> Option<RwLockReadGuard<'_, ()>> {
        at_once(self.changes.try_read())
    }

    /// While the guard lives, nothing is filled or written.
    fn own_changes(&self) -> RwLockWriteGuard<'_, ()> {
        self.changes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all blocks that have a byte of a range, with what others have begun to read and to
    /// write before.
    fn forget(&self, range: Range<u64>) {
        let block_len = self.layout().block_len as u64;
        self.cache.forget(self.unit, range.start / block_len..range.end.div_ceil(block_len));
    }

    /// Reads a part of a block that is not there, as far as is known.
    fn fetch(&self, piece: Piece, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (hits, misses) = match self.cache.open(self.key(piece), piece.at, into) {
            Opened::Copied => (1, 0),
            Opened::Uncached => {
                self.inner.read(offset, into)?;
                (0, 1)
            }
            Opened::Missing(mut claim) => {
                let Range { start, end } = self.block(piece);
                let bytes = claim.bytes(end.saturating_sub(start) as usize);
                let is_filled =
                    piece.at + piece.len <= bytes.len() && self.inner.read(start, bytes).is_ok();
                if is_filled {
                    into.copy_from_slice(&bytes[piece.at..][..piece.len]);
                    claim.publish();
                } else {
                    // Only a part of the block may be broken.
                    drop(claim);
                    self.inner.read(offset, into)?;
                }
                (0, 1)
            }
        };
        self.count(hits, misses);
        Ok(())
    }

    fn count(&self, hits: u64, misses: u64) {
        for (counter, count) in [(&self.hits, hits), (&self.misses, misses)] {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// The steps of a write, each of which is in as many blocks as one may hold.
    fn steps<'a>(&self, offset: u64, bytes: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
        let step_len = (OWNED_BLOCKS_MAX * self.layout().block_len) as u64;
        let range = offset..offset + bytes.len() as u64;
        super::steps(range, step_len).map(move |step| {
            let part = (step.start - offset) as usize..(step.end - offset) as usize;
            (step.start, &bytes[part])
        })
    }

    /// Takes the blocks of a step of a write, and waits for those that are in use.
    fn own(&self, range: Range<u64>) -> OwnedBlocks<'_> {
        loop {
            match self.try_own(range.clone()) {
                Ok(owned) => return owned,
                // All others are free again.
                Err(key) => self.cache.wait_for(key),
            }
        }
    }

    /// Takes the blocks of a step of a write without a wait.
    ///
    /// # Errors
    ///
    /// One that is in use. None is taken then.
    fn try_own(&self, range: Range<u64>) -> Result<OwnedBlocks<'_>, Key> {
        let mut owned = OwnedBlocks::default();
        for (place, piece) in owned.iter_mut().zip(self.layout().pieces(range)) {
            let key = self.key(piece);
            let block = self.cache.try_own(key, self.is_whole(piece)).ok_or(key)?;
            *place = Some((block, piece));
        }
        Ok(owned)
    }
}

/// The store may have other bytes from here on than the cache.
fn taint(owned: &mut OwnedBlocks<'_>) {
    for (block, _) in owned.iter_mut().flatten() {
        if let Owned::Claimed(claim) = block {
            claim.taint();
        }
    }
}

/// The store has these bytes now.
fn change(owned: OwnedBlocks<'_>, mut bytes: &[u8]) {
    for (block, piece) in owned.into_iter().flatten() {
        let (part, rest) = bytes.split_at(piece.len);
        bytes = rest;
        if let Owned::Claimed(claim) = block {
            claim.change(piece.at, part);
        }
    }
}

impl Store for Cached {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn medium_len(&self) -> io::Result<u64> {
        self.inner.medium_len()
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        let _changes = self.own_changes();
        let before = self.inner.len();
        let result = self.inner.resize(len);
        // Also the block with the end: it has other bytes than it would have now.
        self.forget(before.min(len)..u64::MAX);
        result
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = within(self, offset, buffer.len() as u64)?;
        let (mut at, mut changes) = (0, None);
        for piece in self.layout().pieces(range) {
            let into = &mut buffer[at..][..piece.len];
            if self.cache.copy(self.key(piece), piece.at, into) {
                self.count(1, 0);
            } else {
                changes.get_or_insert_with(|| self.share_changes());
                self.fetch(piece, offset + at as u64, into)?;
            }
            at += piece.len;
        }
        Ok(())
    }

    fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<io::Result<()>> {
        let range = match within(self, offset, buffer.len() as u64) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        // A thread of that node copies it faster, even after it has been handed over.
        if self.layout().nodes > 1
            && buffer.len() as u64 >= FORWARD_LEN_MIN
            && self.layout().closest(self.unit, range.clone()) != self.cache.current_node()
        {
            return None;
        }
        let (mut at, mut pieces) = (0, 0);
        for piece in self.layout().pieces(range) {
            if !self.cache.copy(self.key(piece), piece.at, &mut buffer[at..][..piece.len]) {
                return None;
            }
            at += piece.len;
            pieces += 1;
        }
        self.count(pieces, 0);
        Some(Ok(()))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _changes = self.share_changes();
        within(self, offset, bytes.len() as u64)?;
        for (at, part) in self.steps(offset, bytes) {
            let mut owned = self.own(at..at + part.len() as u64);
            taint(&mut owned);
            self.inner.write(at, part)?;
            change(owned, part);
        }
        Ok(())
    }

    fn writes_at_once(&self) -> bool {
        self.inner.writes_at_once()
    }

    fn try_write(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        if !self.inner.writes_at_once() {
            return None;
        }
        let _changes = self.try_share_changes()?;
        if let Err(error) = within(self, offset, bytes.len() as u64) {
            return Some(Err(error));
        }
        let mut steps = self.steps(offset, bytes);
        let (Some((at, part)), None) = (steps.next(), steps.next()) else { return None };
        let mut owned = self.try_own(at..at + part.len() as u64).ok()?;
        taint(&mut owned);
        // What is not written may be written in part: the blocks are forgotten then.
        let written = self.inner.try_write(at, part)?;
        if written.is_ok() {
            change(owned, part);
        }
        Some(written)
    }

    fn flush(&self) -> io::Result<()> {
        let result = self.inner.flush();
        if result.is_err() {
            // The store may lose what it has taken, or have lost it.
            let _changes = self.share_changes();
            self.forget(0..u64::MAX);
        }
        result
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let _changes = self.share_changes();
        let result = self.inner.discard(range.clone());
        self.forget(range);
        result
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        self.inner.extent(offset)
    }

    fn is_thin(&self) -> bool {
        self.inner.is_thin()
    }

    fn atomic_len(&self) -> u64 {
        self.inner.atomic_len()
    }

    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn cache_stats(&self) -> Option<CacheStats> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Some(CacheStats { hits: load(&self.hits), misses: load(&self.misses) })
    }

    fn topology(&self) -> Option<&Topology> {
        Some(self.cache.topology())
    }

    fn closest_node(&self, offset: u64, len: u64) -> usize {
        if self.layout().nodes == 1 {
            return 0;
        }
        self.layout().closest(self.unit, offset..offset.saturating_add(len))
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.cache.detach(self.unit, self.origin);
    }
}
