//! The file of inboxes: who has one, and at which port.

use std::fs::read_dir;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::geteuid;
use weft_sys::{NamedMemory, OpenSlots, SharedGuard, SharedLock, SharedMemory};

use super::inbox::Inbox;
use super::layout::{
    BITMAP, COMMON_LEN, FILE_LEN, INBOXES_MAX, LOCK, PORTS, SLOT_LEN, VERSION, entry, entry_at,
    slot_at, totals, words,
};
use super::oracle;
use crate::bitmap::Bitmap;
use crate::registry::{OpenError, file_name};

const FREE: u32 = 0;
const LIVE: u32 = 1;
/// How the file's name begins.
const NAME: &str = "weft-datagrams";
/// How many generations of a slot a process tells apart.
const STAMPS: u32 = 1 << 31;
/// OpenSlots whose memory stays when they are free: it is soon used again.
const WARM: usize = 64;

/// The file of inboxes, mapped.
#[derive(Debug)]
pub struct Datagrams {
    file: NamedMemory,
    path: PathBuf,
    /// Which slots are accessible in this process.
    opened: OpenSlots,
}

/// Sums over the life of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramTotals {
    /// Datagrams through memory.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Datagrams that found an inbox full, and were dropped.
    pub dropped: u64,
    /// Datagrams for an inbox that went through the kernel, to wake its owner.
    pub by_kernel: u64,
}

impl DatagramTotals {
    /// Adds those of another file.
    pub fn add(&mut self, more: Self) {
        self.datagrams += more.datagrams;
        self.bytes += more.bytes;
        self.dropped += more.dropped;
        self.by_kernel += more.by_kernel;
    }
}

impl Datagrams {
    /// Opens this process's file in `directory`, and makes it if there is none.
    ///
    /// # Errors
    /// As [`crate::Registry::open`].
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join(file_name(NAME, VERSION));
        loop {
            let datagrams = Self::map(&path, true)?;
            datagrams.enter();
            // The last user before us may have removed it in this moment.
            if datagrams.file.is_at(&path) {
                return Ok(datagrams);
            }
        }
    }

    /// The files of this user in `directory`, to look at only.
    #[must_use]
    pub fn existing(directory: &Path) -> Vec<Self> {
        let prefix = format!("{NAME}-{VERSION}.{}.", geteuid().as_raw());
        let files = read_dir(directory).into_iter().flatten().flatten();
        let names = files.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
        names.filter_map(|file| Self::map(&file.path(), false).ok()).collect()
    }

    fn map(path: &Path, create: bool) -> Result<Self, OpenError> {
        let failed = |errno| OpenError { path: path.to_owned(), errno };
        let file = NamedMemory::open(path, FILE_LEN, create).map_err(failed)?;
        let accessible = if create { COMMON_LEN } else { FILE_LEN };
        file.open_range(0, accessible).map_err(failed)?;
        if create {
            file.fill_range(0, COMMON_LEN).map_err(failed)?;
        }
        let count = if create { INBOXES_MAX } else { 0 };
        let opened = OpenSlots::new(count);
        Ok(Self { file, path: path.to_owned(), opened })
    }

    /// This process will not use it any more. The last one removes the name.
    pub fn leave(&self) {
        if self.word64(totals::USERS).fetch_sub(1, Ordering::SeqCst) == 1 {
            self.file.unlink(&self.path);
        }
    }

    /// A relative, born by fork, uses it too.
    pub fn enter(&self) {
        self.word64(totals::USERS).fetch_add(1, Ordering::SeqCst);
    }

    /// Changes when who receives at a port may have changed. Zero: nobody ever has, through memory.
    #[must_use]
    #[inline]
    pub fn changes(&self, port: u16) -> u32 {
        self.port(port).load(Ordering::Acquire)
    }

    /// Has everybody who sends to a port ask again who receives there.
    pub(crate) fn change(&self, port: u16) {
        let word = self.port(port);
        if word.fetch_add(1, Ordering::AcqRel) == u32::MAX {
            word.fetch_add(1, Ordering::AcqRel); // Zero is for ports that nobody has had.
        }
    }

    /// The inbox at a port of the socket with this number of the kernel's.
    #[must_use]
    pub fn find(&'static self, port: u16, cookie: u64) -> Option<Inbox> {
        let slot = self.live().find(|&slot| {
            let at = entry_at(slot);
            self.word(at + entry::PORT).load(Ordering::Relaxed) == u32::from(port)
                && self.word64(at + entry::COOKIE).load(Ordering::Relaxed) == cookie
        })?;
        self.open_slot(slot).ok()?;
        Some(Inbox::at(self, slot))
    }

    /// The sums. Those of inboxes in use are included.
    #[must_use]
    pub fn totals(&self) -> DatagramTotals {
        let total = |offset| self.word64(offset).load(Ordering::Relaxed);
        let mut sums = DatagramTotals {
            datagrams: total(totals::DATAGRAMS),
            bytes: total(totals::BYTES),
            dropped: total(totals::DROPPED),
            by_kernel: total(totals::BY_KERNEL),
        };
        for slot in self.live() {
            if self.opened.is_empty() || self.open_slot(slot).is_ok() {
                sums.add(self.counts(slot));
            }
        }
        sums
    }

    /// Keeps others from giving a socket an inbox meanwhile. `None`: this is the handler of a
    /// signal that has interrupted just that.
    pub(crate) fn lock(&self) -> Option<SharedGuard<'_>> {
        SharedLock::on(self.word(LOCK)).lock()
    }

    /// Takes a slot. `None` if all are taken or there is no memory.
    pub(crate) fn take(&self) -> Option<usize> {
        let slot = self.bitmap().take().or_else(|| {
            self.sweep();
            self.bitmap().take()
        })?;
        self.word(entry_at(slot) + entry::GENERATION).fetch_add(1, Ordering::AcqRel);
        if self.open_slot(slot).is_err() {
            self.bitmap().give(slot);
            return None;
        }
        Some(slot)
    }

    /// Shows a prepared slot to senders.
    pub(crate) fn publish(&self, slot: usize) {
        self.word(entry_at(slot) + entry::STATE).store(LIVE, Ordering::Release);
    }

    /// Gives a slot back; nobody receives there any more, and no sender is at it.
    pub(crate) fn release(&self, slot: usize) {
        self.word(entry_at(slot) + entry::STATE).store(FREE, Ordering::Release);
        let counts = self.counts(slot);
        let add = |offset, count| self.word64(offset).fetch_add(count, Ordering::Relaxed);
        add(totals::DATAGRAMS, counts.datagrams);
        add(totals::BYTES, counts.bytes);
        add(totals::DROPPED, counts.dropped);
        add(totals::BY_KERNEL, counts.by_kernel);
        if slot >= WARM {
            // Who comes next fills it again.
            self.file.empty_range(slot_at(slot), SLOT_LEN);
        }
        self.bitmap().give(slot);
    }

    /// Gives back the slots of sockets that the kernel does not have any more: their processes were
    /// killed.
    fn sweep(&self) {
        let suspects: Vec<_> = self.live().collect();
        // Listed after the slots: what is in neither was closed.
        let Ok(sockets) = oracle::all() else { return };
        for slot in suspects {
            let cookie = self.word64(entry_at(slot) + entry::COOKIE).load(Ordering::Relaxed);
            let mine = self.word(entry_at(slot) + entry::STATE);
            let dead = !sockets.contains(&cookie)
                && mine.compare_exchange(LIVE, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if dead && self.open_slot(slot).is_ok() {
                self.release(slot);
            }
        }
    }

    pub(crate) fn is_live(&self, slot: usize) -> bool {
        self.word(entry_at(slot) + entry::STATE).load(Ordering::Acquire) == LIVE
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        self.bitmap().taken().filter(|&slot| self.is_live(slot))
    }

    fn counts(&self, slot: usize) -> DatagramTotals {
        let count = |offset| self.word64(slot_at(slot) + offset).load(Ordering::Relaxed);
        DatagramTotals {
            datagrams: count(words::DATAGRAMS),
            bytes: count(words::BYTES),
            dropped: count(words::DROPPED),
            by_kernel: count(words::BY_KERNEL),
        }
    }

    /// Makes a slot accessible in this process, with memory behind it.
    fn open_slot(&self, slot: usize) -> Result<(), Errno> {
        let generation = self.word(entry_at(slot) + entry::GENERATION).load(Ordering::Acquire);
        // One may have been emptied since.
        let stamp = if slot < WARM { 1 } else { generation % STAMPS + 1 };
        self.opened.open(slot, stamp, || {
            self.file.open_range(slot_at(slot), SLOT_LEN)?;
            self.file.fill_range(slot_at(slot), SLOT_LEN)
        })
    }

    /// Gives back the address space of slots that this process has not used: it will use no others.
    pub fn shrink(&'static self) {
        self.opened.give_back(&self.file, slot_at(0), SLOT_LEN);
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        self.file.memory()
    }

    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory().word32(offset)
    }

    #[inline]
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        self.memory().word64(offset)
    }

    fn port(&self, port: u16) -> &AtomicU32 {
        self.word(PORTS + 4 * usize::from(port))
    }

    fn bitmap(&self) -> Bitmap<'_> {
        Bitmap::new(self.memory(), BITMAP, INBOXES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::Owner;

    #[test]
    fn dead_sockets_are_swept_when_room_is_short() {
        let dir = tempfile::tempdir().expect("a directory");
        let datagrams = Datagrams::open(dir.path()).expect("a file");
        let datagrams: &'static Datagrams = Box::leak(Box::new(datagrams));
        let owner = |cookie| Owner { port: 7, cookie, pid: 1, limit: 1_000, shared: false };
        // No socket has such a number.
        for cookie in 0..INBOXES_MAX as u64 {
            Inbox::register(datagrams, &owner(u64::MAX - cookie)).expect("room");
        }
        assert_eq!(datagrams.live().count(), INBOXES_MAX);
        // A socket has one.
        Inbox::register(datagrams, &owner(u64::MAX - 1)).expect("its own");
        assert_eq!(datagrams.live().count(), INBOXES_MAX);
        Inbox::register(datagrams, &owner(1)).expect("room for the living");
        assert_eq!(datagrams.live().count(), 1);
        assert!(datagrams.find(7, 1).is_some());
        assert!(datagrams.find(8, 1).is_none());
    }

    #[test]
    fn ports_tell_of_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let datagrams = Datagrams::open(dir.path()).expect("a file");
        assert_eq!(datagrams.changes(53), 0);
        datagrams.change(53);
        assert_ne!(datagrams.changes(53), 0);
        datagrams.port(53).store(u32::MAX, Ordering::Relaxed);
        datagrams.change(53);
        assert_ne!(datagrams.changes(53), 0);
    }
}
