//! Shared memory with a name: a file that all processes of one user map.
//!
//! # Safety
//! As for [`SharedMemory`]. Most of the mapping is inaccessible; a range is opened before it is
//! used, so that a stray pointer of the program does not reach foreign data, and `mlockall(2)` does
//! not allocate the whole file.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::path::Path;

use crate::by_hand::system_call;
use crate::calls::fs::{FileType, Mode, OFlags, fstat, ftruncate, open, stat, unlink};
use crate::calls::io::Errno;
use crate::calls::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap,
};
use crate::calls::process::{Resource, geteuid, getrlimit};
use crate::shared::SharedMemory;

/// A mapping of a file of `len` bytes. Initially none of them is accessible.
#[derive(Debug)]
pub struct NamedMemory {
    memory: SharedMemory,
    writable: bool,
    identity: (u64, u64),
}

impl NamedMemory {
    /// Maps the file at `path`, which is created with zeros if it does not exist (`create`).
    /// Accepts only a file of this user that no other user may open.
    ///
    /// # Errors
    /// `EPERM` for a file that is not private to the user, `ENOENT`, `EINVAL` for a file of another
    /// size, `EFBIG` if the process may not create a file of this size, and errors of `open(2)` and
    /// `mmap(2)`.
    pub fn open(path: &Path, len: usize, create: bool) -> Result<Self, Errno> {
        let making = if create { OFlags::CREATE } else { OFlags::empty() };
        let access = if create { OFlags::RDWR } else { OFlags::RDONLY };
        // Another user's file of that name may be a pipe or have a lease: `open` must not block.
        let flags = access | making | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR)?;
        let status = fstat(&fd)?;
        let others = Mode::from_raw_mode(status.st_mode) & (Mode::RWXG | Mode::RWXO);
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile
            || status.st_uid != geteuid().as_raw()
            || !others.is_empty()
        {
            return Err(Errno::PERM);
        }
        match usize::try_from(status.st_size) {
            Ok(size) if size == len => {}
            Ok(0) if create => lengthen(&fd, len as u64)?,
            _ => return Err(Errno::INVAL),
        }
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, &fd, 0)?
        };
        // SAFETY: it was mapped just now with this length, and nothing else owns it.
        let memory = unsafe { SharedMemory::from_raw(start.cast(), len)? };
        Ok(Self { memory, writable: create, identity: (status.st_dev, status.st_ino) })
    }

    /// Makes `len` bytes from `offset` accessible, in whole pages: also for writing if the memory
    /// was opened for that.
    ///
    /// # Errors
    /// `ENOMEM` or another error of `mprotect(2)`.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn open_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.memory.range(offset, len);
        let writing = if self.writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: the range is a part of this mapping, and more access is harmless.
        unsafe { mprotect(start.cast(), len, MprotectFlags::READ | writing) }
    }

    /// Allocates memory for `len` bytes from `offset`, in whole pages, so that writing does not
    /// meet a full file system, which would kill the process. Kernels before 5.14 cannot do that,
    /// and report success.
    ///
    /// # Errors
    /// `ENOMEM` or `EFAULT` if there is no memory.
    ///
    /// # Panics
    /// Those of [`NamedMemory::open_range`].
    pub fn fill_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.memory.range(offset, len);
        // SAFETY: the range is a part of this mapping, and no byte changes.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the pages of a range to the system. The range reads as zeros from then on.
    ///
    /// # Panics
    /// Those of [`NamedMemory::open_range`].
    pub fn empty_range(&self, offset: usize, len: usize) {
        const MADV_REMOVE: usize = 9;
        let start = self.memory.range(offset, len);
        // SAFETY: the range is a part of this mapping, whose users accept any bytes.
        let _ =
            unsafe { system_call(libc::SYS_madvise, [start as usize, len, MADV_REMOVE, 0, 0, 0]) };
    }

    /// Unmaps `len` bytes from `offset`, in whole pages, which frees their addresses.
    ///
    /// # Safety
    /// No thread accesses or opens the range from here on: another mapping may take its place.
    /// (`self` is never dropped, so it never unmaps that one.)
    ///
    /// # Panics
    /// Those of [`NamedMemory::open_range`].
    pub unsafe fn unmap_range(&'static self, offset: usize, len: usize) {
        let start = self.memory.range(offset, len);
        // SAFETY: the range is a part of this mapping, and the caller guarantees that no thread
        // uses it any more.
        let _ = unsafe { munmap(start.cast(), len) };
    }

    /// The memory. Only opened ranges may be accessed.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Whether `path` still refers to this file.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        stat(path).is_ok_and(|status| (status.st_dev, status.st_ino) == self.identity)
    }

    /// Removes the name if it still refers to this file.
    pub fn unlink(&self, path: &Path) {
        if self.is_at(path) {
            let _ = unlink(path); // Another process may have removed it.
        }
    }
}

/// Sets the length of an empty file. If the process's limit forbids that length, the kernel would
/// kill the process (`SIGXFSZ`, `setrlimit(2)`).
fn lengthen(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len) {
        return Err(Errno::FBIG);
    }
    ftruncate(fd, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("weft-named-{}-{name}", std::process::id()))
    }

    #[test]
    fn two_mappings_share_their_bytes() {
        let path = path("same");
        let ours = NamedMemory::open(&path, 1 << 20, true).expect("a new file");
        let theirs = NamedMemory::open(&path, 1 << 20, true).expect("the same file");
        for memory in [&ours, &theirs] {
            memory.open_range(4_096, 8_192).expect("access");
        }
        ours.fill_range(4_096, 8_192).expect("room");
        ours.memory().copy_in(5_000, b"fabric");
        let mut found = [0; 6];
        theirs.memory().copy_out(5_000, &mut found);
        assert_eq!(&found, b"fabric");
        theirs.empty_range(4_096, 8_192);
        ours.memory().copy_out(5_000, &mut found);
        assert_eq!(found, [0; 6]);
        assert!(ours.is_at(&path));
        theirs.unlink(&path);
        assert!(!ours.is_at(&path));
    }

    /// `open` would wait for a writer for ever.
    #[test]
    fn pipe_of_that_name_is_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = path("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        for create in [false, true] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let place = path.clone();
            std::thread::spawn(move || {
                sender.send(NamedMemory::open(&place, 4_096, create).map(drop))
            });
            let opened = receiver.recv_timeout(std::time::Duration::from_secs(240));
            assert_eq!(opened, Ok(Err(Errno::PERM)), "create: {create}");
        }
        std::fs::remove_file(&path).expect("still there");
    }

    #[test]
    fn file_that_others_could_open_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = path("others");
        std::fs::write(&path, vec![0; 4_096]).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
        let refused = NamedMemory::open(&path, 4_096, true).map(drop);
        std::fs::remove_file(&path).expect("still there");
        assert_eq!(refused, Err(Errno::PERM));
        assert_eq!(NamedMemory::open(&path, 4_096, false).map(drop), Err(Errno::NOENT));
    }
}
