//! A store in memory, whose pages are allocated when they are first written.

use std::io;
use std::ops::Range;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{Extent, File, Store};
use crate::limits::WHOLE_LEN_MAX;

/// Memory of this process. It is gone when the process ends.
#[derive(Debug)]
pub struct Ram(File);

impl Ram {
    /// Returns a store of `len` bytes, which read as zeros.
    ///
    /// # Errors
    ///
    /// If the kernel has no descriptor for it, or refuses the length.
    pub fn new(len: u64) -> io::Result<Self> {
        let memory = memfd_create("weft-target", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, len)?;
        Ok(Self(File::of_memory(memory.into(), len)))
    }
}

impl Store for Ram {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn medium_len(&self) -> io::Result<u64> {
        self.0.medium_len()
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.0.resize(len)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(offset, bytes)
    }

    /// Memory is as safe as it gets.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.0.discard(range)
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        self.0.extent(offset)
    }

    fn is_thin(&self) -> bool {
        true
    }

    fn is_instant(&self) -> bool {
        true
    }

    /// What could interrupt a write ends the store too.
    fn atomic_len(&self) -> u64 {
        WHOLE_LEN_MAX
    }
}
