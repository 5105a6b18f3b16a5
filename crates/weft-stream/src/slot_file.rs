//! A file that the processes of one user share by its name: a common part, followed by slots, each
//! of which becomes accessible in a process when that first uses it.
//!
//! The file belongs to one network namespace, in which the addresses of both ends identify a
//! connection, and to one PID namespace, in which thread numbers identify holders of locks. The
//! file exists as long as any process uses it; no particular process has to run.

use std::fs::{metadata, read_dir};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use weft_sys::calls::io::Errno;
use weft_sys::calls::process::geteuid;
use weft_sys::{NamedMemory, OpenSlots, SharedMemory};

use crate::bitmap::Bitmap;
use crate::layout::Users;

/// The name and layout of such a file, which starts with [`Users`].
#[derive(Debug)]
pub(crate) struct Format {
    /// The start of the file's name.
    pub(crate) name: &'static str,
    /// The version of the layout, which is a part of the name.
    pub(crate) version: u32,
    /// Bytes before the first slot, which are accessible from the start.
    pub(crate) common_len: usize,
    /// Offset of the bitmap of taken slots.
    pub(crate) bitmap: usize,
    /// Number of slots.
    pub(crate) slots: usize,
    /// Length in bytes of a slot.
    pub(crate) slot_len: usize,
}

impl Format {
    const fn file_len(&self) -> usize {
        self.common_len + self.slots * self.slot_len
    }

    /// The name of this process's file, which contains its user and namespaces.
    fn file_name(&self) -> String {
        let [net, pid] = ["net", "pid"].map(namespace);
        format!("{}{net}.{pid}", self.prefix())
    }

    /// The start of the names of this user's files.
    fn prefix(&self) -> String {
        format!("{}-{}.{}.", self.name, self.version, geteuid().as_raw())
    }
}

/// The number of this process's namespace of a kind.
fn namespace(kind: &str) -> u64 {
    metadata(format!("/proc/self/ns/{kind}")).map_or(0, |file| file.ino())
}

/// Why a file could not be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
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

/// A shared file, mapped into this process.
#[derive(Debug)]
pub(crate) struct SlotFile {
    format: &'static Format,
    file: NamedMemory,
    path: PathBuf,
    /// Slots that are accessible in this process. Empty if the process only reads the file, because
    /// all of it is readable then.
    opened: OpenSlots,
}

impl SlotFile {
    /// Opens this process's file in `directory`, creates it if there is none, and counts the
    /// process as a user.
    ///
    /// # Errors
    /// An error of the file system; `EPERM` if a file of another user has the name.
    pub(crate) fn open(directory: &Path, format: &'static Format) -> Result<Self, OpenError> {
        let path = directory.join(format.file_name());
        loop {
            let file = Self::map(&path, format, true)?;
            file.enter();
            // The last user may have removed the file between the two calls.
            if file.file.is_at(&path) {
                return Ok(file);
            }
        }
    }

    /// The files of this user in `directory`, read-only.
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

    /// Whether the file belongs to this process's namespaces, so that process numbers and addresses
    /// in it mean the same here.
    pub(crate) fn is_own(&self) -> bool {
        self.path.file_name().is_some_and(|name| *name == *self.format.file_name())
    }

    /// Whether this process is a user of the file, and does not only read it.
    pub(crate) fn is_used(&self) -> bool {
        !self.opened.is_empty()
    }

    /// Counts a process as a user.
    pub(crate) fn enter(&self) {
        self.users().fetch_add(1, Ordering::SeqCst);
    }

    /// Ends this process's use of the file. The last user calls `clear` and removes the file's
    /// name.
    pub(crate) fn leave(&self, clear: impl FnOnce()) {
        if self.users().fetch_sub(1, Ordering::SeqCst) == 1 {
            clear();
            self.file.unlink(&self.path);
        }
    }

    fn users(&self) -> &AtomicU64 {
        &self.memory().structure::<Users>(0).count
    }

    /// Makes a slot accessible in this process, and allocates memory for its first `len` bytes,
    /// unless that was done with this stamp ([`OpenSlots::open`]).
    ///
    /// # Errors
    /// `EINVAL` if this process only reads the file; `ENOMEM`, `EFAULT` if there is no memory.
    #[inline]
    pub(crate) fn open_slot(&self, slot: usize, stamp: u32, len: usize) -> Result<(), Errno> {
        self.opened.open(slot, stamp, || {
            let start = self.slot_at(slot);
            self.file.open_range(start, self.format.slot_len)?;
            self.file.fill_range(start, len)
        })
    }

    /// Allocates memory for a range of an accessible slot.
    ///
    /// # Errors
    /// Those of [`NamedMemory::fill_range`].
    pub(crate) fn fill_range(&self, offset: usize, len: usize) -> Result<(), Errno> {
        self.file.fill_range(offset, len)
    }

    /// Releases the memory of a range, which reads as zeros from then on.
    pub(crate) fn empty_range(&self, offset: usize, len: usize) {
        self.file.empty_range(offset, len);
    }

    /// Releases the address space of slots that this process has not used. It can use no others
    /// later.
    pub(crate) fn shrink(&'static self) {
        self.opened.give_back(&self.file, self.slot_at(0), self.format.slot_len);
    }

    /// The bitmap of taken slots.
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
