//! A store without a medium, for measuring what the protocol costs.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Extent, Store};

/// Reads as zeros, and forgets what is written.
#[derive(Debug)]
pub struct Null {
    len: AtomicU64,
}

impl Null {
    /// Returns a store of `len` bytes.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self { len: len.into() }
    }
}

impl Store for Null {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn medium_len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn read(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(0);
        Ok(())
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn extent(&self, _offset: u64) -> io::Result<(Extent, u64)> {
        Ok((Extent::Mapped, self.len()))
    }

    fn is_thin(&self) -> bool {
        false
    }

    fn is_instant(&self) -> bool {
        true
    }
}
