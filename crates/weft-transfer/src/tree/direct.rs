//! Direct I/O: reads and writes of files that bypass the page cache, through an aligned buffer of
//! each thread.
//!
//! The cache pays if somebody reads a file again before the kernel needs the memory. It cannot pay
//! for a file that is larger than the memory that is available: when its end has been read or
//! written, its beginning has left the cache, and so has what other programs had there.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat, major};
use rustix::io::{Errno, Result, pread, pwrite};

use crate::limits::{DIRECT_BUFFER_LEN, DIRECT_FILE_LEN_MIN};
use crate::tree::write::write_all;

/// The alignment of offsets, lengths and memory. It suffices for all usual devices.
const ALIGN: usize = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Which files are read and written directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// None.
    #[default]
    Never,
    /// All large files.
    Always,
    /// Files of more bytes than this, on block devices.
    Beyond(u64),
}

impl When {
    /// Returns the choice for this machine: the files that do not fit into the memory that is
    /// available now.
    #[must_use]
    pub fn automatic() -> Self {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        available(&text).map_or(Self::Never, Self::Beyond)
    }

    /// Whether a file of this size is read or written directly. `at` is the file or its directory.
    pub(crate) fn is_for(self, size: u64, at: impl AsFd) -> bool {
        size >= DIRECT_FILE_LEN_MIN
            && match self {
                Self::Never => false,
                Self::Always => true,
                Self::Beyond(most) => size > most && is_on_block_device(at),
            }
    }
}

/// Returns the bytes of memory that are available, as `/proc/meminfo` tells.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether a file is on a block device. The kernel gives all other file systems, such as tmpfs, NFS
/// and FUSE, but also Btrfs, device numbers with the major number 0.
fn is_on_block_device(at: impl AsFd) -> bool {
    fstat(at).is_ok_and(|stat| major(stat.st_dev) != 0)
}

/// Calls `act` with this thread's aligned buffer.
fn with_buffer<R>(act: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with_borrow_mut(|memory| {
        memory.resize(DIRECT_BUFFER_LEN + ALIGN, 0);
        let start = memory.as_ptr().align_offset(ALIGN);
        act(&mut memory[start..start + DIRECT_BUFFER_LEN])
    })
}

/// Turns direct I/O of an open file on or off.
fn set(fd: impl AsFd, is_direct: bool) -> Result<()> {
    let mut flags = fcntl_getfl(&fd)?;
    flags.set(OFlags::DIRECT, is_direct);
    fcntl_setfl(&fd, flags)
}

/// Whether direct I/O was asked for and a file system has refused it. Both ends have one for all
/// files of a copy.
#[derive(Debug, Default)]
pub struct Refusals {
    is_refused: AtomicBool,
    is_reported: AtomicBool,
}

impl Refusals {
    /// Records a refusal.
    pub(crate) fn add(&self) {
        self.is_refused.store(true, Relaxed);
    }

    /// Whether there was a refusal that has not been reported. It returns true once.
    pub(crate) fn take(&self) -> bool {
        self.is_refused.load(Relaxed) && !self.is_reported.swap(true, Relaxed)
    }
}

/// The direct reading of an open file.
#[derive(Debug)]
pub(crate) struct Reader {
    is_on: AtomicBool,
    refusals: Arc<Refusals>,
}

impl Reader {
    /// Turns direct reading on if the file system allows it.
    pub(crate) fn new(fd: &OwnedFd, refusals: &Arc<Refusals>) -> Self {
        let is_on = set(fd, true).is_ok();
        if !is_on {
            refusals.add();
        }
        Self { is_on: AtomicBool::new(is_on), refusals: Arc::clone(refusals) }
    }

    /// Reads like `pread`, directly while the file system allows it.
    pub(crate) fn read(&self, fd: &OwnedFd, data: &mut [u8], offset: u64) -> Result<usize> {
        if self.is_on.load(Relaxed) {
            match read_aligned(fd, data, offset) {
                Err(Errno::INVAL) => {
                    set(fd, false)?;
                    self.is_on.store(false, Relaxed);
                    self.refusals.add();
                }
                read => return read,
            }
        }
        pread(fd, data, offset)
    }
}

/// Reads the blocks that contain a part of a file, and copies the part.
fn read_aligned(fd: &OwnedFd, data: &mut [u8], offset: u64) -> Result<usize> {
    with_buffer(|buffer| {
        let start = offset - offset % ALIGN as u64;
        let skip = (offset - start) as usize;
        let len = (skip + data.len()).next_multiple_of(ALIGN).min(buffer.len());
        let got = pread(fd, &mut buffer[..len], start)?.saturating_sub(skip).min(data.len());
        data[..got].copy_from_slice(&buffer[skip..skip + got]);
        Ok(got)
    })
}

/// Writes a part of a file: whole blocks by a descriptor for direct I/O, the rest by an ordinary
/// one.
///
/// # Errors
/// An error of the kernel; `EINVAL` if the file system refuses. A part may have been written.
pub(crate) fn write(direct: &OwnedFd, plain: &OwnedFd, data: &[u8], offset: u64) -> Result<()> {
    let head = (offset.next_multiple_of(ALIGN as u64) - offset) as usize;
    let (head, rest) = data.split_at(head.min(data.len()));
    let (whole, tail) = rest.split_at(rest.len() - rest.len() % ALIGN);
    write_all(plain, head, offset)?;
    let mut at = offset + head.len() as u64;
    for chunk in whole.chunks(DIRECT_BUFFER_LEN) {
        with_buffer(|buffer| {
            buffer[..chunk.len()].copy_from_slice(chunk);
            let mut done = 0;
            while done < chunk.len() {
                match pwrite(direct, &buffer[done..chunk.len()], at + done as u64) {
                    Ok(0) => return Err(Errno::IO),
                    // After a part of a block, the next write would not be aligned.
                    Ok(written) if written < ALIGN => return Err(Errno::IO),
                    Ok(written) => done += written - written % ALIGN,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        at += chunk.len() as u64;
    }
    write_all(plain, tail, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    /// Lengths and offsets around the alignment and the length of the buffer.
    const PLACES: [(u64, usize); 8] = [
        (0, 1),
        (0, 4096),
        (1, 4095),
        (4095, 2),
        (4096, 8192),
        (5, DIRECT_BUFFER_LEN + 4096),
        (100, 3),
        (0, DIRECT_BUFFER_LEN * 2 + 17),
    ];

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
    }

    #[test]
    fn files_that_fit_into_memory_or_are_in_memory_are_cached() {
        let file = tempfile::tempfile().expect("a file");
        let (large, small) = (DIRECT_FILE_LEN_MIN, DIRECT_FILE_LEN_MIN - 1);
        assert!(When::Always.is_for(large, &file) && !When::Always.is_for(small, &file));
        assert!(!When::Never.is_for(u64::MAX, &file));
        assert!(!When::Beyond(large).is_for(large, &file));
        assert!(!When::Beyond(0).is_for(small, &file));
        assert_eq!(When::Beyond(large).is_for(large + 1, &file), is_on_block_device(&file));
        // These file systems have no block device.
        for path in ["/proc/version", "/sys"] {
            let file = File::open(path).expect("it is there");
            assert!(!When::Beyond(0).is_for(u64::MAX, &file), "{path}");
        }
        let shm = tempfile::tempfile_in("/dev/shm").expect("a tmpfs");
        assert!(!When::Beyond(0).is_for(u64::MAX, &shm));
    }

    #[test]
    fn available_memory_is_that_of_the_kernel() {
        let text = "MemTotal:  24683128 kB\nMemAvailable:   22502948 kB\nBuffers: 1 kB\n";
        assert_eq!(available(text), Some(22_502_948 << 10));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 5", "MemAvailable: -1 kB"] {
            assert_eq!(available(text), None, "{text}");
        }
        assert_ne!(When::automatic(), When::Never);
    }

    #[test]
    fn reads_return_what_the_file_has_at_any_offset() {
        let data = noise(DIRECT_BUFFER_LEN * 2 + 4_500);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&data).expect("room");
        file.sync_all().expect("a file");
        let (fd, refusals) = (OwnedFd::from(file), Arc::default());
        let reader = Reader::new(&fd, &refusals);
        for (offset, len) in PLACES.into_iter().chain([(data.len() as u64 - 3, 10)]) {
            let mut found = vec![0; len];
            let mut got = 0;
            while got < len {
                match reader.read(&fd, &mut found[got..], offset + got as u64).expect("a file") {
                    0 => break,
                    read => got += read,
                }
            }
            let expected = &data[offset as usize..(offset as usize + len).min(data.len())];
            assert!(found[..got] == *expected, "{offset} {len}: {got}");
        }
        assert_eq!(reader.read(&fd, &mut [0; 10], data.len() as u64), Ok(0));
    }

    #[test]
    fn file_system_that_refuses_is_reported_once_and_read_all_the_same() {
        let (fd, refusals) = (File::open("/proc/version").expect("a file").into(), Arc::default());
        for _ in 0..2 {
            let reader = Reader::new(&fd, &refusals);
            let mut found = [0; 5];
            assert_eq!((reader.read(&fd, &mut found, 0), &found), (Ok(5), b"Linux"));
        }
        assert!(refusals.take() && !refusals.take());
    }

    #[test]
    fn writes_change_exactly_their_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let plain = OwnedFd::from(File::create(&path).expect("room"));
        let open =
            File::options().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        // Where the file system refuses, there is nothing to test.
        let Ok(direct) = open.map(OwnedFd::from) else { return };
        let mut expected = vec![0; DIRECT_BUFFER_LEN * 2 + 8_192];
        write_all(&plain, &expected, 0).expect("room");
        for (round, (offset, len)) in (1..).zip(PLACES) {
            let data: Vec<u8> = noise(len).iter().map(|byte| byte.wrapping_add(round)).collect();
            write(&direct, &plain, &data, offset).expect("room");
            expected[offset as usize..offset as usize + len].copy_from_slice(&data);
            assert!(std::fs::read(&path).expect("a file") == expected, "{offset} {len}");
        }
    }
}
