//! The registry: a file that processes of one user on one host share, with a slot for each
//! connection and a table in which the accepting side finds what the connecting side offers.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use weft_sys::calls::fs::unlink;
use weft_sys::calls::io::Errno;
use weft_sys::calls::process::geteuid;
use weft_sys::{SharedMemory, SlotState};

use crate::flow::Flow;
use crate::layout::{
    self, BITMAP, BUCKETS, BUCKETS_COUNT, COMMON_LEN, SLOT_LEN, SLOT_SMALL_LEN, WAYS, alarm_at,
    big_ring_at, entry_at, slot_at,
};
use crate::limits::{ALARMS_MAX, BIG_RING_LEN, CONNECTIONS_MAX, FILL_LEN, VERSION};
use crate::live_peers::LivePeers;
use crate::pipes::Pipes;
use crate::reason::Reason;
use crate::slot_file::{Format, OpenError, SlotFile};
use crate::tuple::{Tuple, from_halves, halves};

/// The file's format; each slot belongs to one connection.
static FORMAT: Format = Format {
    name: "weft-sockets",
    version: VERSION,
    common_len: COMMON_LEN,
    bitmap: BITMAP,
    slots: CONNECTIONS_MAX,
    slot_len: SLOT_LEN,
};

/// The shared file, mapped into this process.
#[derive(Debug)]
pub struct Registry {
    file: SlotFile,
    user: u32,
    /// The second of the last sweep for slots of dead processes.
    pub(crate) swept: AtomicU64,
    /// The second of the last sweep for offers of dead processes.
    pub(crate) offers_swept: AtomicU64,
    /// For each side of each slot, the process whose memory may be read as its sender's
    /// ([`crate::pullers`]).
    pub(crate) pullers: Vec<AtomicU64>,
    /// Pipes of other processes, by alarm.
    pub(crate) pipes: Pipes,
    pub(crate) live_peers: LivePeers,
}

impl Registry {
    /// Opens this process's registry in `directory`, and creates it if there is none.
    ///
    /// # Errors
    /// An error of the file system; `EPERM` if a file of another user has the name.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        SlotFile::open(directory, &FORMAT).map(Self::of)
    }

    /// The registries of this user in `directory`, read-only.
    #[must_use]
    pub fn existing(directory: &Path) -> Vec<Self> {
        SlotFile::existing(directory, &FORMAT).map(Self::of).collect()
    }

    fn of(file: SlotFile) -> Self {
        let count = if file.is_used() { CONNECTIONS_MAX } else { 0 };
        Self {
            file,
            user: geteuid().as_raw(),
            swept: AtomicU64::new(0),
            offers_swept: AtomicU64::new(0),
            pullers: (0..2 * count).map(|_| AtomicU64::new(0)).collect(),
            pipes: Pipes::new(),
            live_peers: LivePeers::new(),
        }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the registry belongs to this process's namespaces, so that process numbers and
    /// addresses in it mean the same here.
    pub(crate) fn is_own(&self) -> bool {
        self.file.is_own()
    }

    /// The user who owns the registry.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Ends this process's use of the registry. The last user removes the file's name.
    pub fn leave(&self) {
        self.file.leave(|| {
            let made = |&index: &usize| self.alarm(index).made.load(Ordering::Relaxed) != 0;
            for index in (0..ALARMS_MAX).filter(made) {
                let _ = unlink(self.pipe_path(index)); // The pipe may not have been created.
            }
        });
    }

    /// The path of an alarm's pipe.
    pub(crate) fn pipe_path(&self, index: usize) -> PathBuf {
        let mut path = self.path().as_os_str().to_owned();
        path.push(format!(".alarm-{index}"));
        path.into()
    }

    /// Counts a child, born by `fork`, as a user of the registry.
    pub fn enter(&self) {
        self.file.enter();
    }

    /// Reserves a free slot. `None` if all are taken.
    pub(crate) fn reserve(&self) -> Option<usize> {
        self.file.bitmap().take()
    }

    /// Fills the directory entry of a reserved slot, and returns the slot with its generation.
    /// `None` if there is no memory; the slot is free again then.
    pub(crate) fn prepare(&self, slot: usize, tuple: &Tuple) -> Option<(usize, u32)> {
        if self.open_slot(slot).is_err() {
            self.file.bitmap().give(slot);
            return None;
        }
        let generation = self.state(slot).prepare();
        let entry = self.entry(slot);
        let halves = halves(tuple.connector).into_iter().chain(halves(tuple.acceptor));
        for (word, half) in entry.addresses.iter().zip(halves) {
            word.store(half, Ordering::Relaxed);
        }
        entry.ports.store(tuple.ports, Ordering::Relaxed);
        entry.namespace.store(tuple.namespace(), Ordering::Relaxed);
        entry.fallback.store(0, Ordering::Relaxed);
        entry.transport.store(0, Ordering::Relaxed);
        Some((slot, generation))
    }

    fn state(&self, slot: usize) -> SlotState<'_> {
        SlotState::on(&self.entry(slot).state)
    }

    /// Publishes a prepared slot to observers, but not to the table of offers.
    pub(crate) fn show(&self, slot: usize, generation: u32, transport: u32) {
        self.entry(slot).transport.store(transport, Ordering::Relaxed);
        self.state(slot).publish(generation);
    }

    /// The carrier of a slot's connection.
    pub(crate) fn transport(&self, slot: usize) -> u32 {
        self.entry(slot).transport.load(Ordering::Relaxed)
    }

    /// Publishes a prepared slot in the table of offers. `false` if the table has no room.
    pub(crate) fn publish(&self, slot: usize, generation: u32, tuple: &Tuple) -> bool {
        self.state(slot).publish(generation);
        let words = || self.bucket(tuple);
        for word in words() {
            // The system has one connection with these addresses, so another offer for them is
            // stale.
            if let Some((stale, name)) = found(word)
                && self.tuple_of(stale) == *tuple
            {
                self.take_from_table(word, name);
            }
        }
        let (mut words, name) = (words(), name(slot, generation));
        let in_table = &self.counters().in_table;
        in_table.fetch_add(1, Ordering::AcqRel);
        let has_room = words.any(|word| {
            word.compare_exchange(0, name, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if !has_room {
            in_table.fetch_sub(1, Ordering::AcqRel);
        }
        has_room
    }

    /// Whether any connection is offered. It takes no tuple, which would cost system calls to find.
    #[must_use]
    pub fn has_offers(&self) -> bool {
        self.counters().in_table.load(Ordering::Acquire) != 0
    }

    /// How many offers there have been so far; `None` if none is open. A caller that finds none for
    /// its addresses after it has got this number need not look again while the number stays.
    #[must_use]
    pub fn offers(&self) -> Option<u64> {
        self.has_offers().then(|| self.counters().offered.load(Ordering::Acquire))
    }

    /// Withdraws the offers of slots that are `dead`.
    pub(crate) fn withdraw_offers(&self, dead: impl Fn(usize) -> bool) {
        let words = (0..BUCKETS_COUNT * WAYS).map(|word| self.word(BUCKETS + 4 * word));
        for word in words {
            if let Some((slot, name)) = found(word)
                && dead(slot)
            {
                self.take_from_table(word, name);
            }
        }
    }

    /// Removes a name from a word of the table. `false` if it is not there any more.
    fn take_from_table(&self, word: &AtomicU32, name: u32) -> bool {
        let taken = word.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if taken {
            self.counters().in_table.fetch_sub(1, Ordering::AcqRel);
        }
        taken
    }

    /// Takes the offer of a connection out of the table, and returns its slot and generation. Only
    /// one process gets it. The name includes the generation, so it is the offer that was checked.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<(usize, u32)> {
        let mut words = self.bucket(tuple);
        let (slot, generation) = words.find_map(|word| {
            let (slot, name_found) = found(word)?;
            let generation = self.live_generation(slot)?;
            let ours = name(slot, generation) == name_found && self.tuple_of(slot) == *tuple;
            (ours && self.take_from_table(word, name_found)).then_some((slot, generation))
        })?;
        self.open_slot(slot).ok()?;
        Some((slot, generation))
    }

    /// Releases a slot that no process of this generation uses any more, and adds what the
    /// connection has moved to the totals. Of several callers only the first does it, and a late
    /// one does nothing.
    pub(crate) fn release(&self, slot: usize, generation: u32) {
        self.release_unless(slot, generation, || false);
    }

    /// Releases a slot unless a process `holds` it. A process that becomes a holder first counts
    /// itself and then checks that the slot is live, so that one of the two sees the other.
    pub(crate) fn release_unless(&self, slot: usize, generation: u32, holds: impl Fn() -> bool) {
        if !self.state(slot).release(generation) {
            return;
        }
        fence(Ordering::SeqCst);
        if holds() {
            return self.state(slot).publish(generation);
        }
        if self.is_accessible(slot) {
            self.add_to_totals(slot);
        }
        let tuple = self.tuple_of(slot);
        for word in self.bucket(&tuple) {
            self.take_from_table(word, name(slot, generation));
        }
        for direction in 0..2 {
            // The first piece of memory stays for the next connection.
            let filled = self.filled(slot, direction);
            let len = filled.load(Ordering::Relaxed) as usize;
            if len > FILL_LEN {
                filled.store(FILL_LEN as u32, Ordering::Relaxed);
                let rest = len.min(BIG_RING_LEN) - FILL_LEN;
                self.file.empty_range(big_ring_at(slot, direction) + FILL_LEN, rest);
            }
        }
        self.state(slot).free(generation);
        self.file.bitmap().give(slot);
    }

    /// The flow control of a slot's connection.
    pub(crate) fn flow(&self, slot: usize) -> Flow {
        Flow::of(self.entry(slot).flow.load(Ordering::Relaxed))
    }

    /// Records why a slot's connection has fallen back to TCP. `false` if a reason is recorded
    /// already.
    pub(crate) fn note_fallback(&self, slot: usize, why: Reason) -> bool {
        let word = &self.entry(slot).fallback;
        word.compare_exchange(0, why as u32 + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Why a slot's connection has fallen back to TCP, if it has.
    pub(crate) fn fallback(&self, slot: usize) -> Option<Reason> {
        let stored = self.entry(slot).fallback.load(Ordering::Relaxed);
        Reason::ALL.get(stored.checked_sub(1)? as usize).copied()
    }

    /// How many bytes of a direction's big ring have memory.
    pub(crate) fn filled(&self, slot: usize, direction: usize) -> &AtomicU32 {
        &self.entry(slot).filled[direction]
    }

    /// Gives the big ring memory up to beyond `offset`, and returns the length that has memory. It
    /// is less if there is no memory to be had. Only the writer of the direction calls it.
    #[cold]
    pub(crate) fn fill(&self, slot: usize, direction: usize, offset: usize) -> usize {
        let filled = self.filled(slot, direction);
        // Round to whole pieces, since another process may have written any value.
        let mut len = filled.load(Ordering::Relaxed) as usize / FILL_LEN * FILL_LEN;
        while len <= offset && len < BIG_RING_LEN {
            let start = big_ring_at(slot, direction) + len;
            if self.file.fill_range(start, FILL_LEN).is_err() {
                break;
            }
            len += FILL_LEN;
            filled.store(len as u32, Ordering::Relaxed);
        }
        len.min(BIG_RING_LEN)
    }

    /// Makes a slot's words accessible in this process.
    pub(crate) fn open_slot(&self, slot: usize) -> Result<(), Errno> {
        const OPEN: u32 = 1;
        self.file.open_slot(slot, OPEN, SLOT_SMALL_LEN)
    }

    /// Releases the address space of slots that this process has not used. It can use no others
    /// later.
    pub fn shrink(&'static self) {
        self.file.shrink();
    }

    /// The live slots, with their generations.
    pub(crate) fn live(&self) -> impl Iterator<Item = (usize, u32)> {
        self.file.bitmap().taken().filter_map(|slot| Some((slot, self.live_generation(slot)?)))
    }

    /// How many slots are in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.file.bitmap().count()
    }

    /// Whether this process may read a slot's words.
    pub(crate) fn is_accessible(&self, slot: usize) -> bool {
        !self.file.is_used() || self.open_slot(slot).is_ok()
    }

    pub(crate) fn generation(&self, slot: usize) -> u32 {
        self.state(slot).generation()
    }

    /// The generation of a slot in use.
    pub(crate) fn live_generation(&self, slot: usize) -> Option<u32> {
        self.state(slot).live()
    }

    pub(crate) fn tuple_of(&self, slot: usize) -> Tuple {
        let entry = self.entry(slot);
        let half = |index: usize| entry.addresses[index].load(Ordering::Relaxed);
        Tuple {
            connector: from_halves([half(0), half(1)]),
            acceptor: from_halves([half(2), half(3)]),
            ports: entry.ports.load(Ordering::Relaxed),
            namespace: entry.namespace.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        self.file.memory()
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory().word32(offset)
    }

    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        self.memory().word64(offset)
    }

    /// The counters of the whole registry.
    pub(crate) fn counters(&self) -> &layout::Counters {
        self.memory().structure(0)
    }

    /// The directory entry of a slot.
    pub(crate) fn entry(&self, slot: usize) -> &layout::Entry {
        self.memory().structure(entry_at(slot))
    }

    /// The words of a slot.
    pub(crate) fn page(&self, slot: usize) -> &layout::Page {
        self.memory().structure(slot_at(slot))
    }

    /// The words of an alarm.
    pub(crate) fn alarm(&self, index: usize) -> &layout::AlarmEntry {
        self.memory().structure(alarm_at(index))
    }

    fn bucket(&self, tuple: &Tuple) -> impl Iterator<Item = &AtomicU32> {
        let bucket = tuple.hash() as usize % BUCKETS_COUNT;
        (0..WAYS).map(move |way| self.word(BUCKETS + 4 * (bucket * WAYS + way)))
    }
}

/// Bits of a table name that hold the slot's number plus one.
const SLOT_BITS: u32 = 13;
const _: () = assert!(CONNECTIONS_MAX < 1 << SLOT_BITS);

/// The name of a slot of a generation in the table. It differs from that of another generation.
fn name(slot: usize, generation: u32) -> u32 {
    generation << SLOT_BITS | u32::try_from(slot + 1).unwrap_or(0)
}

/// The slot that a word of the table names, and the name.
fn found(word: &AtomicU32) -> Option<(usize, u32)> {
    let name = word.load(Ordering::Acquire);
    let slot = (name & ((1 << SLOT_BITS) - 1)).checked_sub(1)? as usize;
    (slot < CONNECTIONS_MAX).then_some((slot, name))
}

/// Whether both ends of a connection are on this host, as far as its addresses show.
#[must_use]
pub fn is_local(own: SocketAddr, peer: SocketAddr) -> bool {
    let loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    own.ip().to_canonical() == peer.ip().to_canonical()
        || (loopback(own.ip()) && loopback(peer.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Linux;
    use crate::sweep::take_slot;

    fn tuple(port: u16) -> Tuple {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Tuple::new(address(port), address(80))
    }

    #[test]
    fn offer_is_found_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = (Registry::open(dir.path()), Registry::open(dir.path()));
        let (ours, theirs) = (ours.expect("a registry"), theirs.expect("the same"));
        let (slot, generation) = take_slot::<Linux>(&ours, &tuple(1)).expect("room");
        assert!(ours.publish(slot, generation, &tuple(1)));
        assert_eq!(theirs.find(&tuple(2)), None);
        assert_eq!(theirs.find(&tuple(1).in_namespace(5)), None, "of another network");
        assert_eq!(theirs.find(&tuple(1)), Some((slot, generation)));
        assert_eq!(theirs.find(&tuple(1)), None, "one side accepts");
        assert_eq!(theirs.live().collect::<Vec<_>>(), [(slot, generation)]);
        theirs.release(slot, generation);
        assert_eq!((ours.in_use(), ours.live().count()), (0, 0));
        ours.leave();
        assert!(ours.path().exists(), "somebody uses it");
        theirs.leave();
        assert!(!ours.path().exists());
    }

    #[test]
    fn stale_offer_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let [dead, live] = [(); 2].map(|()| {
            let (slot, generation) = take_slot::<Linux>(&registry, &tuple(1)).expect("room");
            assert!(registry.publish(slot, generation, &tuple(1)));
            (slot, generation)
        });
        assert_ne!(dead, live);
        assert_eq!(registry.find(&tuple(1)), Some(live));
    }

    #[test]
    fn late_release_does_not_free_the_slot_of_the_next_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        let take = |port| {
            let (slot, generation) = take_slot::<Linux>(&registry, &tuple(port)).expect("room");
            assert!(registry.publish(slot, generation, &tuple(port)));
            (slot, generation)
        };
        let (slot, first) = take(1);
        registry.release(slot, first);
        let (again, second) = take(2);
        assert_eq!(again, slot);
        registry.release(slot, first);
        assert_eq!(registry.live_generation(slot), Some(second));
        assert_eq!(registry.find(&tuple(2)), Some((slot, second)));
    }

    #[test]
    fn full_registry_reserves_no_slot() {
        let dir = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(dir.path()).expect("a registry");
        for _ in 0..CONNECTIONS_MAX {
            registry.file.bitmap().take().expect("room");
        }
        assert_eq!(registry.file.bitmap().take(), None);
        registry.file.bitmap().give(77);
        assert_eq!(registry.file.bitmap().take(), Some(77));
    }
}
