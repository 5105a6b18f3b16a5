//! A file that the processes of one user share by its name: words that are common to all, then
//! slots, each of which becomes accessible in a process when the process first uses it.
//!
//! The file is of one network namespace, in which the addresses of both ends name one connection,
//! and of one PID namespace, in which numbers of threads name holders of locks. No process has to
//! be there for the others: the file stays while a process uses it.

use std::fs::{metadata, read_dir};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::geteuid;
use weft_sys::{NamedMemory, OpenSlots, SharedMemory};

use crate::bitmap::Bitmap;

/// What such a file is called, and where everything lies in it. It begins with the number of its
/// users, a word of 64 bits.
#[derive(Debug)]
pub(crate) struct Format {
    /// How the file's name begins.
    pub(crate) name: &'static str,
    /// The version of the layout, which is in the name.
    pub(crate) version: u32,
    /// Bytes before the first slot: they are accessible from the start.
    pub(crate) common_len: usize,
    /// Where the bitmap of the slots that are taken begins.
    pub(crate) bitmap: usize,
    /// How many slots there are.
    pub(crate) slots: usize,
    /// Bytes of a slot.
    pub(crate) slot_len: usize,
}

impl Format {
    const fn file_len(&self) -> usize {
        self.common_len + self.slots * self.slot_len
    }

    /// The name of this process's file: by its user, and by the namespaces that it is in.
    fn file_name(&self) -> String {
        let [net, pid] = ["net", "pid"].map(namespace);
        format!("{}{net}.{pid}", self.prefix())
    }

    /// How the names of this user's files begin.
    fn prefix(&self) -> String {
        format!("{}-{}.{}.", self.name, self.version, geteuid().as_raw())
    }
}

/// Which namespace of a kind this process is in.
fn namespace(kind: &str) -> u64 {
    metadata(format!("/proc/self/ns/{kind}")).map_or(0, |file| file.ino())
}

/// Why a file is not to be had.
#[derive(Debug)]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// What the system says about it.
    pub errno: Errno,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot share memory through {}: {}", self.path.display(), self.errno)
    }
}

impl std::error::Error for OpenError {}

/// The directory of shared files: `WEFT_SHM_DIR`, or that of POSIX shared memory.
#[must_use]
pub fn directory() -> PathBuf {
    std::env::var_os("WEFT_SHM_DIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// The file, mapped.
#[derive(Debug)]
pub(crate) struct SlotFile {
    format: &'static Format,
    file: NamedMemory,
    path: PathBuf,
    /// Which slots are accessible in this process; none are counted if it only looks at the file,
    /// all of which it can read then.
    opened: OpenSlots,
}

impl SlotFile {
    /// Opens this process's file in `directory`, makes it if there is none, and counts the process
    /// as a user.
    ///
    /// # Errors
    /// What the file system says; `EPERM` if another user's file has the name.
    pub(crate) fn open(directory: &Path, format: &'static Format) -> Result<Self, OpenError> {
        let path = directory.join(format.file_name());
        loop {
            let file = Self::map(&path, format, true)?;
            file.enter();
            // The last user before us may have removed it in this moment.
            if file.file.is_at(&path) {
                return Ok(file);
            }
        }
    }

    /// The files of this user in `directory`, to look at only.
    pub(crate) fn existing(
        directory: &Path,
        format: &'static Format,
    ) -> impl Iterator<Item = Self> {
        let prefix = format.prefix();
        let files = read_dir(directory).into_iter().flatten().flatten();
        files
            .filter(move |file| file.file_name().to_string_lossy().starts_with(&prefix))
            .filter_map(move |file| Self::map(&file.path(), format, false).ok())
    }

    fn map(path: &Path, format: &'static Format, create: bool) -> Result<Self, OpenError> {
        let failed = |errno| OpenError { path: path.to_owned(), errno };
        let file = NamedMemory::open(path, format.file_len(), create).map_err(failed)?;
        let accessible = if create { format.common_len } else { format.file_len() };
        file.open_range(0, accessible).map_err(failed)?;
        if create {
            file.fill_range(0, format.common_len).map_err(failed)?;
        }
        let count = if create { format.slots } else { 0 };
        Ok(Self { format, file, path: path.to_owned(), opened: OpenSlots::new(count) })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is that of this process's namespaces, so that the processes and addresses in it
    /// are those that this process sees.
    pub(crate) fn is_own(&self) -> bool {
        self.path.file_name().is_some_and(|name| *name == *self.format.file_name())
    }

    /// Whether this process takes part, and does not only look at the file.
    pub(crate) fn is_used(&self) -> bool {
        !self.opened.is_empty()
    }

    /// A process uses it, too.
    pub(crate) fn enter(&self) {
        self.users().fetch_add(1, Ordering::SeqCst);
    }

    /// This process will not use it any more. The last one removes the name, and before that what
    /// `clear` removes.
    pub(crate) fn leave(&self, clear: impl FnOnce()) {
        if self.users().fetch_sub(1, Ordering::SeqCst) == 1 {
            clear();
            self.file.unlink(&self.path);
        }
    }

    fn users(&self) -> &AtomicU64 {
        self.memory().word64(0)
    }

    /// Makes a slot accessible in this process, with memory behind its first `len` bytes, unless
    /// that has been done under this stamp ([`OpenSlots::open`]).
    ///
    /// # Errors
    /// `EINVAL` if this process only looks at the file; `ENOMEM`, `EFAULT`: there is no memory.
    #[inline]
    pub(crate) fn open_slot(&self, slot: usize, stamp: u32, len: usize) -> Result<(), Errno> {
        self.opened.open(slot, stamp, || {
            let start = self.slot_at(slot);
            self.file.open_range(start, self.format.slot_len)?;
            self.file.fill_range(start, len)
        })
    }

    /// Makes sure that there is memory behind a range of an accessible slot.
    ///
    /// # Errors
    /// As [`NamedMemory::fill_range`].
    pub(crate) fn fill_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.file.fill_range(offset, len)
    }

    /// Gives the memory of a range back: it reads as zeros from then on.
    pub(crate) fn empty_range(&self, offset: usize, len: usize) {
        self.file.empty_range(offset, len);
    }

    /// Gives back the address space of slots that this process has not used: it will use no others.
    pub(crate) fn shrink(&'static self) {
        self.opened.give_back(&self.file, self.slot_at(0), self.format.slot_len);
    }

    /// Which slots are taken.
    pub(crate) fn bitmap(&self) -> Bitmap<'_> {
        Bitmap::new(self.memory(), self.format.bitmap, self.format.slots)
    }

    #[inline]
    pub(crate) fn memory(&self) -> &SharedMemory {
        self.file.memory()
    }

    const fn slot_at(&self, slot: usize) -> usize {
        self.format.common_len + slot * self.format.slot_len
    }
}
