//! Where the blocks of a unit are: a file or block device, memory, or nowhere.

mod cached;
mod direct;
mod file;
mod null;
mod ram;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::iter;
use std::ops::Range;

use crate::cache::{Origin, Topology};

pub use cached::Cached;
pub use direct::Direct;
pub use file::File;
pub use null::Null;
pub use ram::Ram;

/// A number of bytes that can be read and written from several threads.
///
/// Ranges that are not within [`Store::len`] are errors. Calls with ranges that overlap, of which
/// one writes, may mix the bytes of both.
pub trait Store: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> u64;

    /// The length that the medium has now, of which [`Store::len`] bytes are used.
    ///
    /// # Errors
    ///
    /// If the medium reports one.
    fn medium_len(&self) -> io::Result<u64>;

    /// Sets the length. The medium is made longer or shorter, if it can be.
    ///
    /// # Errors
    ///
    /// If the medium is too short and cannot be made longer.
    fn resize(&self, len: u64) -> io::Result<()>;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    ///
    /// If the medium reports one.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// As `read`, if that does not wait for the medium. `None` if it would, or if that is not
    /// known; the buffer may have changed then.
    fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<io::Result<()>> {
        self.is_instant().then(|| self.read(offset, buffer))
    }

    /// As `write`, if that does not wait for the medium. `None` if it would, or if that is not
    /// known; nothing is written then, or a part of the same bytes.
    fn try_write(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        self.is_instant().then(|| self.write(offset, bytes))
    }

    /// Whether `try_write` may succeed, as far as is known.
    fn writes_at_once(&self) -> bool {
        self.is_instant()
    }

    /// Writes bytes at `offset`. They are safe after [`Store::flush`].
    ///
    /// # Errors
    ///
    /// If the medium reports one.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything safe that was written before this call, against loss of power too.
    ///
    /// # Errors
    ///
    /// If the medium reports one. What was written since the last success may be lost then.
    fn flush(&self) -> io::Result<()>;

    /// Makes a range read as zeros, and frees its space where the store can.
    ///
    /// # Errors
    ///
    /// If the medium reports one.
    fn discard(&self, range: Range<u64>) -> io::Result<()>;

    /// Tells if the byte at `offset` has space of its own, and where that changes: at most at
    /// [`Store::len`].
    ///
    /// # Errors
    ///
    /// If the medium reports one.
    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)>;

    /// A range that is discarded gives its space back.
    fn is_thin(&self) -> bool;

    /// The most bytes of a write that is done whole or not at all, whatever happens meanwhile. 0 if
    /// the store cannot say that.
    fn atomic_len(&self) -> u64 {
        0
    }

    /// Nothing waits for a medium: all is in memory, or nowhere.
    fn is_instant(&self) -> bool {
        false
    }

    /// The file or device that has the bytes, if it is only one.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// The machine's nodes, if they matter: threads of [`Store::closest_node`] are the best ones
    /// for a range then.
    fn topology(&self) -> Option<&Topology> {
        None
    }

    /// The node whose memory has most of a range, or is going to have it.
    fn closest_node(&self, _offset: u64, _len: u64) -> usize {
        0
    }

    /// Counters of the cache that the store is behind.
    fn cache_stats(&self) -> Option<CacheStats> {
        None
    }

    /// The kernel's page cache is not used.
    fn is_direct(&self) -> bool {
        false
    }

    /// Writes are refused by the medium.
    fn is_read_only(&self) -> bool {
        false
    }

    /// It has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the range of `len` bytes at `offset` of a store.
///
/// # Errors
///
/// If it is not within the store, whose length may have changed since the range was checked.
fn within(store: &impl Store, offset: u64, len: u64) -> io::Result<Range<u64>> {
    let end = offset.checked_add(len).filter(|&end| end <= store.len());
    let error = || io::Error::new(io::ErrorKind::InvalidInput, "it is not within the store");
    Ok(offset..end.ok_or_else(error)?)
}

/// The parts of a range, in their order. Each but the last ends at a multiple of `step_len`.
fn steps(range: Range<u64>, step_len: u64) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    iter::from_fn(move || {
        let step = start..range.end.min((start / step_len + 1) * step_len);
        start = step.end;
        (!step.is_empty()).then_some(step)
    })
}

/// The use of a cache by one store. A read counts once for each block of the cache that it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The block was there.
    pub hits: u64,
    /// The store was read.
    pub misses: u64,
}

/// The state of a range of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Space of its own.
    Mapped,
    /// No space. It reads as zeros.
    Unmapped,
}
