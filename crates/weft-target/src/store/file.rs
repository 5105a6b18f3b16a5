//! A store in a regular file or on a block device.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags, fallocate, fstatfs, seek, statx,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{Extent, Store, within};
use crate::cache::Origin;
use crate::limits::{PAGE_LEN, STEP_LEN};

/// File systems in memory, by the numbers that the kernel gives them: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// The flag by which the kernel tells what direct I/O needs (statx).
const STATX_DIOALIGN: u32 = 0x2000;

/// A file or a block device.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    len: AtomicU64,
    is_read_only: bool,
    is_thin: bool,
    /// The file is in memory.
    is_instant: bool,
    /// The kernel can read what it has in memory, and write to memory, without a wait for the
    /// medium, as far as is known.
    reads_at_once: AtomicBool,
    writes_at_once: AtomicBool,
}

impl File {
    /// Opens the file or block device at `path`, and keeps its length as it is.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or is neither a file nor a block device.
    pub fn open(path: &Path, is_read_only: bool) -> io::Result<Self> {
        // Without a wait: a named pipe would make one until another process opens it.
        Self::open_with(path, is_read_only, OFlags::NONBLOCK)
    }

    /// As `open`, without the kernel's page cache: what is read and written has whole sectors and
    /// aligned memory.
    pub(super) fn open_direct(path: &Path, is_read_only: bool) -> io::Result<Self> {
        Self::open_with(path, is_read_only, OFlags::NONBLOCK | OFlags::DIRECT)
    }

    fn open_with(path: &Path, is_read_only: bool, flags: OFlags) -> io::Result<Self> {
        let flags = flags.bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(!is_read_only).custom_flags(flags).open(path)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "it is neither a regular file nor a block device";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let len = seek(&file, SeekFrom::End(0))?;
        let system = fstatfs(&file)?.f_type as u64;
        let is_instant = kind.is_file() && MEMORY_FILE_SYSTEMS.contains(&system);
        Ok(Self::with(file, len, (is_read_only, kind.is_file(), is_instant)))
    }

    /// A file without a name. Its first `len` bytes are used.
    pub(super) fn of_memory(file: fs::File, len: u64) -> Self {
        Self::with(file, len, (false, true, true))
    }

    fn with(
        file: fs::File,
        len: u64,
        (is_read_only, is_thin, is_instant): (bool, bool, bool),
    ) -> Self {
        let [reads_at_once, writes_at_once] = [true, true].map(AtomicBool::new);
        let len = len.into();
        Self { file, len, is_read_only, is_thin, is_instant, reads_at_once, writes_at_once }
    }

    /// The multiple of bytes that direct I/O needs of offsets, lengths and memory. `None` if there
    /// is no direct I/O.
    pub(super) fn direct_alignment(&self) -> io::Result<Option<usize>> {
        let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
        let status = statx(&self.file, "", AtFlags::EMPTY_PATH, wanted)?;
        if status.stx_mask & STATX_DIOALIGN == 0 {
            // A kernel before 6.1, or a file system that does not say: no sector is longer.
            return Ok(Some(PAGE_LEN));
        }
        let len = status.stx_dio_offset_align.max(status.stx_dio_mem_align) as usize;
        Ok((status.stx_dio_offset_align > 0).then_some(len))
    }

    /// Frees a range that is not empty. Returns whether the file system or the device can do that.
    pub(super) fn punch(&self, range: &Range<u64>) -> io::Result<bool> {
        let len = range.end - range.start;
        within(self, range.start, len)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, punch, range.start, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
            Err(error) => Err(error.into()),
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
        within(self, offset, buffer.len() as u64)?;
        self.file.read_exact_at(buffer, offset)
    }

    fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<io::Result<()>> {
        if self.is_instant {
            return Some(self.read(offset, buffer));
        }
        if !self.reads_at_once.load(Ordering::Relaxed) {
            return None;
        }
        if let Err(error) = within(self, offset, buffer.len() as u64) {
            return Some(Err(error));
        }
        let len = buffer.len();
        let buffers = &mut [IoSliceMut::new(buffer)];
        let read = preadv2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT);
        all_at_once(read, len, &self.reads_at_once)
    }

    fn try_write(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        if self.is_instant {
            return Some(self.write(offset, bytes));
        }
        if !self.writes_at_once.load(Ordering::Relaxed) {
            return None;
        }
        if let Err(error) = within(self, offset, bytes.len() as u64) {
            return Some(Err(error));
        }
        let buffers = &[IoSlice::new(bytes)];
        let written = pwritev2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT);
        all_at_once(written, bytes.len(), &self.writes_at_once)
    }

    fn writes_at_once(&self) -> bool {
        self.is_instant || self.writes_at_once.load(Ordering::Relaxed)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        within(self, offset, bytes.len() as u64)?;
        self.file.write_all_at(bytes, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.punch(&range)? { Ok(()) } else { self.write_zeros(range) }
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

    fn origin(&self) -> Option<Origin> {
        let file = self.file.metadata().ok()?;
        Some(match file.file_type().is_block_device() {
            true => Origin { device: file.rdev(), file: None },
            false => Origin { device: file.dev(), file: Some(file.ino()) },
        })
    }

    fn is_thin(&self) -> bool {
        self.is_thin
    }

    fn is_instant(&self) -> bool {
        self.is_instant
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}

/// The result of a call that does not wait: `None` unless all of `len` bytes were moved. Whatever
/// has failed is tried again with a wait, which reports it.
fn all_at_once(
    moved: Result<usize, Errno>,
    len: usize,
    is_possible: &AtomicBool,
) -> Option<io::Result<()>> {
    if moved == Err(Errno::OPNOTSUPP) {
        is_possible.store(false, Ordering::Relaxed);
    }
    (moved == Ok(len)).then_some(Ok(()))
}
