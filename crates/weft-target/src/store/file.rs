//! A store in a regular file or on a block device.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::{Extent, Store};
use crate::limits::STEP_LEN;

/// A file or a block device.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    len: AtomicU64,
    is_read_only: bool,
    is_thin: bool,
}

impl File {
    /// Opens the file or block device at `path`, and keeps its length as it is.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or is neither a file nor a block device.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        // Without a wait: a named pipe would make one until another process opens it.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(!is_read_only).custom_flags(flags).open(path)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "it is neither a regular file nor a block device";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let len = seek(&file, SeekFrom::End(0))?;
        Ok(Self { file, len: len.into(), is_read_only, is_thin: kind.is_file() })
    }

    /// A file without a name. Its first `len` bytes are used.
    pub(super) fn of_memory(file: fs::File, len: u64) -> Self {
        Self { file, len: len.into(), is_read_only: false, is_thin: true }
    }

    /// Refuses a range that is not within the length, which may have changed since it was checked.
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(io::Error::new(ErrorKind::InvalidInput, "it is not within the store")),
        }
    }

    fn write_zeros(&self, range: Range<u64>) -> io::Result<()> {
        let zeros = vec![0; STEP_LEN.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let len = zeros.len().min((range.end - at) as usize);
            self.file.write_all_at(&zeros[..len], at)?;
            at += len as u64;
        }
        Ok(())
    }
}

impl Store for File {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn medium_len(&self) -> io::Result<u64> {
        Ok(seek(&self.file, SeekFrom::End(0))?)
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        let medium_len = self.medium_len()?;
        if self.is_thin && !self.is_read_only {
            // Nothing is written behind an end that is going to be cut off.
            let before = self.len.fetch_min(len, Ordering::AcqRel);
            if let Err(error) = self.file.set_len(len) {
                self.len.store(before, Ordering::Release);
                return Err(error);
            }
        } else if len > medium_len {
            let what = format!("it has {medium_len} bytes and cannot be made longer here");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset, buffer.len() as u64)?;
        self.file.read_exact_at(buffer, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let len = range.end - range.start;
        self.check(range.start, len)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, punch, range.start, len) {
            Ok(()) => Ok(()),
            // The file system or the device cannot free parts.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeros(range),
            Err(error) => Err(error.into()),
        }
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        let len = self.len();
        let data = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data.min(len),
            // No data from here to the end.
            Err(Errno::NXIO) => len,
            // A device, or a file system that does not know.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((Extent::Mapped, len)),
            Err(error) => return Err(error.into()),
        };
        if data > offset {
            return Ok((Extent::Unmapped, data));
        }
        let hole = seek(&self.file, SeekFrom::Hole(offset))?;
        Ok((Extent::Mapped, hole.min(len)))
    }

    fn is_thin(&self) -> bool {
        self.is_thin
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}
