//! Shared memory with a name: a file that every process of one user maps.
//!
//! # Safety
//! As for [`SharedMemory`]. The mapping is made without access to most of it; a range is opened
//! before it is used, so that a stray pointer elsewhere in the program meets no foreign data, and
//! `mlockall(2)` does not fill the whole file.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, ftruncate, open, stat, unlink};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use rustix::process::{Resource, geteuid, getrlimit};

use crate::by_hand::system_call;
use crate::shared::SharedMemory;

/// A mapping of a file that has `len` bytes, none of them accessible yet.
#[derive(Debug)]
pub struct NamedMemory {
    memory: SharedMemory,
    writable: bool,
    identity: (u64, u64),
}

impl NamedMemory {
    /// Maps the file at `path`, made with zeros if it does not exist (`create`). Only a file of
    /// this user's own that nobody else may open is taken.
    ///
    /// # Errors
    /// `EPERM` for a file that is not private to the user, `ENOENT`, `EINVAL` for one of another
    /// size, `EFBIG` if the process may not make one of this size, and what `open(2)` and `mmap(2)`
    /// report.
    pub fn open(path: &Path, len: usize, create: bool) -> Result<Self, Errno> {
        let making = if create { OFlags::CREATE } else { OFlags::empty() };
        let access = if create { OFlags::RDWR } else { OFlags::RDONLY };
        // Another user's file of that name may be a pipe or have a lease: `open` must not wait.
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
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that is
        // mapped already.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, &fd, 0)?
        };
        // SAFETY: mapped just now with this length, and owned by nobody else.
        let memory = unsafe { SharedMemory::from_raw(start.cast(), len)? };
        Ok(Self { memory, writable: create, identity: (status.st_dev, status.st_ino) })
    }

    /// Makes `len` bytes from `offset`, whole pages, accessible: to write as well if the memory was
    /// opened so.
    ///
    /// # Errors
    /// What `mprotect(2)` reports, `ENOMEM`.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn open_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.memory.range(offset, len);
        let writing = if self.writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: a part of our own mapping; more access harms nobody.
        unsafe { mprotect(start.cast(), len, MprotectFlags::READ | writing) }
    }

    /// Makes sure that writing to `len` bytes from `offset`, whole pages, meets memory and not a
    /// full file system, which would be fatal. Kernels before 5.14 cannot tell: they say nothing.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`: there is none.
    ///
    /// # Panics
    /// As [`NamedMemory::open_range`].
    pub fn fill_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.memory.range(offset, len);
        // SAFETY: a part of our own mapping, of which no byte changes.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the pages of a range back to the system; they read as zeros from then on.
    ///
    /// # Panics
    /// As [`NamedMemory::open_range`].
    pub fn empty_range(&self, offset: usize, len: usize) {
        const MADV_REMOVE: usize = 9;
        let start = self.memory.range(offset, len);
        // SAFETY: a part of our own mapping, whose users expect any bytes.
        let _ =
            unsafe { system_call(libc::SYS_madvise, [start as usize, len, MADV_REMOVE, 0, 0, 0]) };
    }

    /// Gives the address space of `len` bytes from `offset`, whole pages, back to the process.
    ///
    /// # Safety
    /// Nobody looks at the range or opens it from here on: another mapping may take its place.
    /// (What is never dropped never unmaps that one.)
    ///
    /// # Panics
    /// As [`NamedMemory::open_range`].
    pub unsafe fn unmap_range(&'static self, offset: usize, len: usize) {
        let start = self.memory.range(offset, len);
        // SAFETY: a part of our own mapping, which nobody uses, by the caller's promise.
        let _ = unsafe { munmap(start.cast(), len) };
    }

    /// The bytes. Only opened ranges may be touched.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Whether `path` still leads to this file.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        stat(path).is_ok_and(|status| (status.st_dev, status.st_ino) == self.identity)
    }

    /// Removes the name, if it is this file's.
    pub fn unlink(&self, path: &Path) {
        if self.is_at(path) {
            let _ = unlink(path); // Somebody else has removed it, then.
        }
    }
}

/// Gives an empty file its length. The kernel would kill a process that is not allowed files of
/// that length (`SIGXFSZ`, setrlimit(2)).
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
    fn two_openers_see_the_same() {
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
    fn a_pipe_of_that_name_is_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = path("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        for create in [false, true] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let place = path.clone();
            std::thread::spawn(move || {
                sender.send(NamedMemory::open(&place, 4_096, create).map(drop))
            });
            let opened = receiver.recv_timeout(std::time::Duration::from_secs(20));
            assert_eq!(opened, Ok(Err(Errno::PERM)), "create: {create}");
        }
        std::fs::remove_file(&path).expect("still there");
    }

    #[test]
    fn what_others_could_open_is_refused() {
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
