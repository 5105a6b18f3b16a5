//! The file of inboxes: which sockets have one, and at which ports.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_sys::calls::io::Errno;
use weft_sys::{SharedGuard, SharedLock, SharedMemory, SlotState};

use super::layout::{BITMAP, COMMON_LEN, Common, Entry, SLOT_LEN, VERSION, Words, slot_at};
use super::oracle;
use crate::kernel::{Kernel as _, Linux};
use crate::limits::INBOXES_MAX;
use crate::slot_file::{Format, OpenError, SlotFile};

/// The file's format; each slot belongs to one socket.
static FORMAT: Format = Format {
    name: "weft-datagrams",
    version: VERSION,
    common_len: COMMON_LEN,
    bitmap: BITMAP,
    slots: INBOXES_MAX,
    slot_len: SLOT_LEN,
};
/// Number of generations of a slot that a process tells apart.
const STAMPS: u32 = 1 << 31;
/// Number of slots that keep their memory when they are free, because they are soon used again.
const WARM: usize = 64;

/// The file of inboxes, mapped into this process.
#[derive(Debug)]
pub struct Datagrams {
    file: SlotFile,
    /// The second of the last sweep for slots of dead processes.
    swept: AtomicU64,
}

/// Totals over the life of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramTotals {
    /// Datagrams that went through memory.
    pub datagrams: u64,
    /// Bytes of those datagrams.
    pub bytes: u64,
    /// Datagrams that found an inbox full, and were dropped.
    pub dropped: u64,
    /// Datagrams to a socket with an inbox that went through the kernel, to wake its owner.
    pub by_kernel: u64,
}

impl DatagramTotals {
    /// Adds the totals of another file.
    pub fn add(&mut self, more: Self) {
        self.datagrams += more.datagrams;
        self.bytes += more.bytes;
        self.dropped += more.dropped;
        self.by_kernel += more.by_kernel;
    }
}

impl Datagrams {
    /// Opens this process's file in `directory`, and creates it if there is none.
    ///
    /// # Errors
    /// Those of [`crate::Registry::open`].
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        SlotFile::open(directory, &FORMAT).map(Self::of)
    }

    /// The files of this user in `directory`, read-only.
    #[must_use]
    pub fn existing(directory: &Path) -> Vec<Self> {
        SlotFile::existing(directory, &FORMAT).map(Self::of).collect()
    }

    fn of(file: SlotFile) -> Self {
        Self { file, swept: AtomicU64::new(0) }
    }

    /// Ends this process's use of the file. The last user removes the file's name.
    pub fn leave(&self) {
        self.file.leave(|| {});
    }

    /// Counts a child, born by `fork`, as a user of the file.
    pub fn enter(&self) {
        self.file.enter();
    }

    /// A number that changes when the receivers at a port may have changed. Zero if no socket has
    /// ever received there through memory.
    #[must_use]
    #[inline]
    pub fn changes(&self, port: u16) -> u32 {
        self.port(port).load(Ordering::Acquire)
    }

    /// Makes all senders to a port ask again which socket receives there.
    pub(crate) fn change(&self, port: u16) {
        let word = self.port(port);
        if word.fetch_add(1, Ordering::AcqRel) == u32::MAX {
            word.fetch_add(1, Ordering::AcqRel); // Zero is for ports that no socket has had.
        }
    }

    /// The slot of the socket with this port and cookie, and its generation.
    pub(crate) fn find_slot(&self, port: u16, cookie: u64) -> Option<(usize, u32)> {
        let (slot, generation) = self.live().find(|&(slot, _)| {
            let entry = self.entry(slot);
            entry.port.load(Ordering::Relaxed) == u32::from(port)
                && entry.cookie.load(Ordering::Relaxed) == cookie
        })?;
        self.open_slot(slot).ok()?;
        Some((slot, generation))
    }

    /// The totals, including inboxes in use.
    #[must_use]
    pub fn totals(&self) -> DatagramTotals {
        let common = self.common();
        let mut sums = DatagramTotals {
            datagrams: common.datagrams.load(Ordering::Relaxed),
            bytes: common.bytes.load(Ordering::Relaxed),
            dropped: common.dropped.load(Ordering::Relaxed),
            by_kernel: common.by_kernel.load(Ordering::Relaxed),
        };
        for (slot, _) in self.live() {
            if !self.file.is_used() || self.open_slot(slot).is_ok() {
                sums.add(self.counts(slot));
            }
        }
        sums
    }

    /// Prevents other threads and processes from giving a socket an inbox meanwhile. `None` if this
    /// is a signal handler that has interrupted the holder of the lock.
    pub(crate) fn lock(&self) -> Option<SharedGuard<'_>> {
        SharedLock::on(&self.common().lock).lock()
    }

    /// Takes a slot, and returns it with its generation. `None` if all are taken or there is no
    /// memory.
    pub(crate) fn take(&self) -> Option<(usize, u32)> {
        let slot = self.file.bitmap().take().or_else(|| {
            self.sweep_once_in(Linux::second());
            self.file.bitmap().take()
        })?;
        let generation = self.state(slot).prepare();
        if self.open_slot(slot).is_err() {
            self.file.bitmap().give(slot);
            return None;
        }
        Some((slot, generation))
    }

    /// Publishes a prepared slot to senders.
    pub(crate) fn publish(&self, slot: usize, generation: u32) {
        self.state(slot).publish(generation);
    }

    /// Frees a slot for which [`SlotState::release`] has returned `true` to the caller: no socket
    /// receives there any more, and no sender uses it.
    pub(crate) fn free(&self, slot: usize, generation: u32) {
        let (common, counts) = (self.common(), self.counts(slot));
        common.datagrams.fetch_add(counts.datagrams, Ordering::Relaxed);
        common.bytes.fetch_add(counts.bytes, Ordering::Relaxed);
        common.dropped.fetch_add(counts.dropped, Ordering::Relaxed);
        common.by_kernel.fetch_add(counts.by_kernel, Ordering::Relaxed);
        if slot >= WARM {
            // The next owner gets memory again.
            self.file.empty_range(slot_at(slot), SLOT_LEN);
        }
        self.state(slot).free(generation);
        self.file.bitmap().give(slot);
    }

    /// Sweeps, unless a sweep has begun in the same second. While live sockets use all slots, each
    /// sweep lists all UDP sockets and finds nothing.
    fn sweep_once_in(&self, second: u64) {
        if self.swept.swap(second, Ordering::Relaxed) != second {
            self.sweep();
        }
    }

    /// Frees the slots of sockets that the kernel no longer has, because their processes were
    /// killed.
    fn sweep(&self) {
        let suspects: Vec<_> = self.live().collect();
        // List the sockets after the slots: a slot's socket that is not in the list was closed.
        let Ok(sockets) = oracle::all() else { return };
        for (slot, generation) in suspects {
            let cookie = self.entry(slot).cookie.load(Ordering::Relaxed);
            let is_dead = !sockets.contains(&cookie) && self.open_slot(slot).is_ok();
            if is_dead && self.state(slot).release(generation) {
                self.free(slot, generation);
            }
        }
    }

    /// Whether a socket uses a slot, and how many have used it.
    #[inline]
    pub(crate) fn state(&self, slot: usize) -> SlotState<'_> {
        SlotState::on(&self.entry(slot).state)
    }

    /// The live slots, with their generations.
    fn live(&self) -> impl Iterator<Item = (usize, u32)> {
        self.file.bitmap().taken().filter_map(|slot| Some((slot, self.state(slot).live()?)))
    }

    fn counts(&self, slot: usize) -> DatagramTotals {
        let words = self.words(slot);
        DatagramTotals {
            datagrams: words.datagrams.load(Ordering::Relaxed),
            bytes: words.bytes.load(Ordering::Relaxed),
            dropped: words.dropped.load(Ordering::Relaxed),
            by_kernel: words.by_kernel.load(Ordering::Relaxed),
        }
    }

    /// Makes a slot accessible in this process, and allocates its memory.
    fn open_slot(&self, slot: usize) -> Result<(), Errno> {
        // The slot's memory may have been released since.
        let stamp = if slot < WARM { 1 } else { self.state(slot).generation() % STAMPS + 1 };
        self.file.open_slot(slot, stamp, SLOT_LEN)
    }

    /// Releases the address space of slots that this process has not used. It can use no others
    /// later.
    pub fn shrink(&'static self) {
        self.file.shrink();
    }

    #[inline]
    pub(crate) fn memory(&self) -> &SharedMemory {
        self.file.memory()
    }

    #[inline]
    fn common(&self) -> &Common {
        self.memory().structure(0)
    }

    /// A slot's entry in the directory.
    #[inline]
    pub(crate) fn entry(&self, slot: usize) -> &Entry {
        &self.common().directory[slot]
    }

    /// The words of a slot.
    #[inline]
    pub(crate) fn words(&self, slot: usize) -> &Words {
        self.memory().structure(slot_at(slot))
    }

    #[inline]
    fn port(&self, port: u16) -> &AtomicU32 {
        &self.common().ports[usize::from(port)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{Inbox, Owner};

    #[test]
    fn inboxes_of_dead_sockets_are_swept_when_the_file_is_full() {
        let dir = tempfile::tempdir().expect("a directory");
        let datagrams = Datagrams::open(dir.path()).expect("a file");
        let datagrams: &'static Datagrams = Box::leak(Box::new(datagrams));
        let owner = |cookie| Owner { port: 7, cookie, pid: 1, limit: 1_000, shared: false };
        // No socket has such a cookie.
        for cookie in 0..INBOXES_MAX as u64 {
            Inbox::register(datagrams, &owner(u64::MAX - cookie)).expect("room");
        }
        assert_eq!(datagrams.live().count(), INBOXES_MAX);
        // The same socket gets the same inbox.
        Inbox::register(datagrams, &owner(u64::MAX - 1)).expect("its own");
        assert_eq!(datagrams.live().count(), INBOXES_MAX);
        Inbox::register(datagrams, &owner(1)).expect("room for the living");
        assert_eq!(datagrams.live().count(), 1);
        assert!(datagrams.find(7, 1).is_some());
        assert!(datagrams.find(8, 1).is_none());
    }

    #[test]
    fn full_file_is_swept_once_a_second_at_most() {
        let dir = tempfile::tempdir().expect("a directory");
        let datagrams = Datagrams::open(dir.path()).expect("a file");
        let datagrams: &'static Datagrams = Box::leak(Box::new(datagrams));
        // No socket has such a cookie.
        let dead = Owner { port: 7, cookie: u64::MAX, pid: 1, limit: 1_000, shared: false };
        Inbox::register(datagrams, &dead).expect("room");
        datagrams.sweep_once_in(5);
        assert_eq!(datagrams.live().count(), 0);
        Inbox::register(datagrams, &dead).expect("room");
        datagrams.sweep_once_in(5);
        assert_eq!(datagrams.live().count(), 1);
        datagrams.sweep_once_in(6);
        assert_eq!(datagrams.live().count(), 0);
    }

    #[test]
    fn change_of_a_port_is_never_zero() {
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
