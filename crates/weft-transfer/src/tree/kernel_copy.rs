//! Copies within one host: the sink lets the kernel copy ranges of the source's open files.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rustix::fs::copy_file_range;
use rustix::io::{Errno, pread};

use crate::limits::COPY_BUFFER_LEN;
use crate::tree::reading::Reading;
use crate::tree::write::write_all;
use weft_sys::lock;

/// The files that a source and a sink in one process share, so that the kernel can copy their data
/// without passing it through blocks. File systems that can share extents do so in
/// `copy_file_range`.
pub struct KernelCopies {
    /// The source's open files that the sink has not begun, by their entries' numbers.
    files: Mutex<HashMap<u64, Arc<Reading>>>,
    is_refused: AtomicBool,
    copied: Box<dyn Fn(u64) + Send + Sync>,
}

impl fmt::Debug for KernelCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCopies").finish_non_exhaustive()
    }
}

impl KernelCopies {
    /// Creates an empty table. `copied` receives the number of bytes of each copied range.
    #[must_use]
    pub fn new(copied: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self {
            files: Mutex::default(),
            is_refused: AtomicBool::new(false),
            copied: Box::new(copied),
        }
    }

    /// Whether the kernel has refused to copy between these file systems. The source then sends
    /// data in blocks.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Relaxed)
    }

    /// Passes an open file to the sink.
    pub(crate) fn put(&self, reading: &Arc<Reading>) {
        lock(&self.files).insert(reading.number, Arc::clone(reading));
    }

    /// Takes the open file of an entry.
    pub(crate) fn take(&self, number: u64) -> Option<Arc<Reading>> {
        lock(&self.files).remove(&number)
    }

    /// Copies a range of a file to the same offset of another one. Returns whether all of it is
    /// there; it is not if the source has ended earlier or cannot be read, which `reading` records.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub(crate) fn copy(
        &self,
        reading: &Reading,
        to: BorrowedFd<'_>,
        offset: u64,
        len: u64,
    ) -> Result<bool, Errno> {
        let end = offset + len;
        let at = match self.is_refused() {
            true => offset,
            false => self.copy_in_kernel(reading, to, offset, end),
        };
        // The kernel does not tell whether reading or writing has failed, and some file systems
        // refuse in unusual ways. So the rest of a range that it did not copy goes through memory.
        let is_whole = at == end || copy_in_memory(reading, to, at, end)?;
        (self.copied)(len);
        Ok(is_whole)
    }

    /// Returns the offset up to which the kernel has copied.
    fn copy_in_kernel(&self, reading: &Reading, to: BorrowedFd<'_>, start: u64, end: u64) -> u64 {
        let mut at = start;
        while at < end {
            let (mut from_at, mut to_at) = (at, at);
            let len = usize::try_from(end - at).unwrap_or(usize::MAX);
            let from = reading.fd.as_fd();
            match copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len) {
                Ok(0) => break,
                Ok(copied) => at += copied as u64,
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::NOTSUP | Errno::INVAL | Errno::NOSYS) => {
                    self.is_refused.store(true, Relaxed);
                    break;
                }
                Err(_) => break,
            }
        }
        at
    }
}

/// Copies a range by reading and writing. Returns whether all of it is there.
fn copy_in_memory(
    reading: &Reading,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> Result<bool, Errno> {
    let (mut at, mut buffer) = (start, vec![0; COPY_BUFFER_LEN]);
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        match pread(&*reading.fd, &mut buffer[..len], at) {
            Ok(0) => {
                reading.ends_at(at);
                return Ok(false);
            }
            Ok(got) => {
                write_all(to, &buffer[..got], at)?;
                at += got as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                reading.failed(error);
                return Ok(false);
            }
        }
    }
    Ok(true)
}
