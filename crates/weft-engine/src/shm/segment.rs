//! The shared segment of a connection: for each direction a ring of slots, a bulk area, and the
//! words by which the two sides report their progress. There are two [`Direction`]s: from the side
//! that offered the segment, and to it.

use std::fmt;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_sys::{Consumer, Producer, SharedMemory, SharedSlot, SharedSlots, shared_layout};

use crate::Result;
use crate::limits::{BULK_CAPACITY, GRANTS_MAX, RING_SLOTS};
use crate::reactor::Polled;

shared_layout! {
    /// The words of one direction. Slots follow on the same page, so that a connection with little
    /// traffic touches only one page.
    struct Words[1024] {
        // Written by the consumer.
        /// The number of slots that it has emptied, and of messages that it has placed, modulo
        /// 2^32. Both are read at once ([`Progress`]).
        0: emptied: AtomicU32,
        4: placed: AtomicU32,
        /// Whether it can read the producer's memory: [`PULLS`].
        8: pulls: AtomicU32,
        12: _gap: [AtomicU32; 29],
        // Written by the producer, in a cache line pair of its own.
        /// The consumer's key that the producer uses now; 0 for none.
        128: key_in_use: AtomicU32,
        132: _gap_2: [AtomicU32; 31],
        /// The consumer's keys that the producer may use.
        256: grants: [AtomicU64; GRANTS_MAX],
        768: _rest: [AtomicU32; 64],
    }
}

shared_layout! {
    /// One direction: whole pages.
    struct Direction[282_624] {
        0: words: Words,
        1_024: slots: [SharedSlot; RING_SLOTS as usize],
        /// Accessed by copies.
        17_408: bulk: [AtomicU64; BULK_CAPACITY / 8],
        279_552: _rest: [AtomicU64; 384],
    }
}

const EMPTIED_AT: usize = offset_of!(Direction, words.emptied);
const SLOTS_AT: usize = offset_of!(Direction, slots);
const BULK_AT: usize = offset_of!(Direction, bulk);
const DIRECTION_LEN: usize = size_of::<Direction>();
const SEGMENT_LEN: usize = size_of::<[Direction; 2]>();
const _: () = {
    assert!(DIRECTION_LEN.is_multiple_of(4_096));
    // `RingPort::progress` reads both words at once.
    assert!(offset_of!(Direction, words.placed) == EMPTIED_AT + 4 && EMPTIED_AT.is_multiple_of(8));
};

/// Value of `pulls` if the consumer can read the producer's memory.
const PULLS: u32 = 1;

/// One side's view of a segment.
#[derive(Debug)]
pub(crate) struct Rings {
    memory: Arc<SharedMemory>,
    pub(crate) tx: Producer<SharedSlots>,
    pub(crate) rx: Arc<Consumer<SharedSlots>>,
    tx_base: usize,
    rx_base: usize,
}

impl Rings {
    /// Creates a segment, on the offering side.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and similar.
    pub(super) fn create() -> Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(SEGMENT_LEN)?;
        Ok((Self::new(memory, 0, DIRECTION_LEN), fd))
    }

    /// Opens a segment that a peer has offered.
    ///
    /// # Errors
    /// `EINVAL` for a descriptor that is not a sealed segment.
    pub(super) fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        let memory = SharedMemory::open(fd, SEGMENT_LEN, true)?;
        Ok(Self::new(memory, DIRECTION_LEN, 0))
    }

    fn new(memory: SharedMemory, tx_base: usize, rx_base: usize) -> Self {
        let memory = Arc::new(memory);
        let slots = |base: usize| {
            SharedSlots::new(Arc::clone(&memory), base + SLOTS_AT, base + EMPTIED_AT, RING_SLOTS)
        };
        let (tx, rx) = (Producer::new(slots(tx_base)), Arc::new(Consumer::new(slots(rx_base))));
        Self { tx, rx, tx_base, rx_base, memory }
    }

    /// The shared memory.
    pub(crate) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Offset of our bulk area in the memory.
    pub(crate) fn tx_bulk(&self) -> usize {
        self.tx_base + BULK_AT
    }

    /// Offset of the peer's bulk area in the memory.
    pub(crate) fn rx_bulk(&self) -> usize {
        self.rx_base + BULK_AT
    }

    /// Publishes how many of the peer's messages have been placed.
    #[inline]
    pub(crate) fn publish_placed_count(&self, placed: u32) {
        words(&self.memory, self.rx_base).placed.store(placed, Ordering::Release);
    }

    /// Whether the peer can read this process's memory.
    pub(crate) fn peer_pulls(&self) -> bool {
        words(&self.memory, self.tx_base).pulls.load(Ordering::Relaxed) == PULLS
    }

    /// Publishes that we can read the peer's memory.
    pub(crate) fn publish_pull_support(&self) {
        words(&self.memory, self.rx_base).pulls.store(PULLS, Ordering::Relaxed);
    }

    /// The grants of our keys, and the peer's use of them.
    pub(super) fn own_grants(&self) -> GrantWords {
        GrantWords { memory: Arc::clone(&self.memory), base: self.rx_base }
    }

    /// The grants of the peer's keys, and our use of them.
    pub(super) fn peer_grants(&self) -> GrantWords {
        GrantWords { memory: Arc::clone(&self.memory), base: self.tx_base }
    }

    /// Creates what the reactor polls.
    pub(crate) fn port(&self, owner: Arc<dyn RingOwner>) -> RingPort {
        RingPort {
            rx: Arc::clone(&self.rx),
            memory: Arc::clone(&self.memory),
            progress_at: self.tx_base + EMPTIED_AT,
            listens: AtomicBool::new(true),
            awaits: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            owner,
        }
    }
}

/// The words of the direction at offset `base`.
#[inline]
fn words(memory: &SharedMemory, base: usize) -> &Words {
    memory.structure(base)
}

/// The peer's progress in processing our messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    word: u64,
    /// Number of messages placed, modulo 2^32.
    pub(crate) placed: u32,
}

/// The words that hold the grants of a target's keys, and the key that its peer uses now.
#[derive(Debug)]
pub(super) struct GrantWords {
    memory: Arc<SharedMemory>,
    base: usize,
}

impl GrantWords {
    /// Target: sets the grant (key and serial number) of a slot, or clears it.
    pub(super) fn set(&self, slot: usize, grant: Option<(u32, u32)>) {
        let word = grant.map_or(0, |(key, serial)| granted(key, serial));
        self.word(slot).store(word, Ordering::SeqCst);
    }

    /// Initiator: whether a slot still holds this grant.
    #[inline]
    pub(super) fn grants(&self, slot: usize, key: u32, serial: u32) -> bool {
        self.word(slot).load(Ordering::SeqCst) == granted(key, serial)
    }

    /// Initiator: marks a key as in use.
    #[inline]
    pub(super) fn set_in_use(&self, key: u32) {
        words(&self.memory, self.base).key_in_use.store(key, Ordering::SeqCst);
    }

    /// Initiator: clears the mark. Release ordering: the accesses to the memory come before.
    #[inline]
    pub(super) fn end_use(&self) {
        words(&self.memory, self.base).key_in_use.store(0, Ordering::Release);
    }

    /// Target: the key that the peer uses now.
    pub(super) fn in_use(&self) -> u32 {
        words(&self.memory, self.base).key_in_use.load(Ordering::SeqCst)
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        &words(&self.memory, self.base).grants[slot % GRANTS_MAX]
    }
}

/// The word of a grant. It is not 0, the word of a free slot, because a serial number is never 0.
fn granted(key: u32, serial: u32) -> u64 {
    u64::from(serial) << 32 | u64::from(key)
}

/// The owner of a connection that uses a segment.
pub(crate) trait RingOwner: Send + Sync + fmt::Debug {
    /// Called when there may be something in shared memory. The notification of the peer may be
    /// delayed to collect more, unless it is `due`.
    fn ring_ready(&self, due: bool);
}

/// What the reactor polls to find out whether a connection has something to do.
pub(crate) struct RingPort {
    rx: Arc<Consumer<SharedSlots>>,
    memory: Arc<SharedMemory>,
    progress_at: usize,
    /// Whether a message could be processed.
    listens: AtomicBool,
    /// Whether the peer's progress matters now, because messages are unacknowledged or the ring was
    /// full.
    awaits: AtomicBool,
    /// Whether an acknowledgement to the peer is due.
    owes: AtomicBool,
    /// The peer's progress when it was last processed.
    seen: AtomicU64,
    owner: Arc<dyn RingOwner>,
}

impl RingPort {
    /// Reads the peer's progress.
    pub(crate) fn progress(&self) -> Progress {
        let word = self.memory.word64(self.progress_at).load(Ordering::Acquire);
        let [.., a, b, c, d] = word.to_ne_bytes();
        Progress { word, placed: u32::from_ne_bytes([a, b, c, d]) }
    }

    /// Sets what [`Polled::is_ready`] checks from now on.
    pub(crate) fn settle(&self, listens: bool, awaits_behind: Option<Progress>, owes: bool) {
        self.listens.store(listens, Ordering::Relaxed);
        if let Some(seen) = awaits_behind {
            self.seen.store(seen.word, Ordering::Relaxed);
        }
        self.awaits.store(awaits_behind.is_some(), Ordering::Relaxed);
        self.owes.store(owes, Ordering::Relaxed);
    }

    fn has_messages(&self) -> bool {
        self.listens.load(Ordering::Relaxed) && self.rx.peek().is_some()
    }
}

impl Polled for RingPort {
    #[inline]
    fn is_ready(&self) -> bool {
        self.has_messages()
            || self.owes.load(Ordering::Relaxed)
            || self.awaits.load(Ordering::Relaxed)
                && self.progress().word != self.seen.load(Ordering::Relaxed)
    }

    fn run(&self) {
        // The acknowledgement has waited for one pass. While messages keep coming, it waits to
        // cover more of them.
        self.owner.ring_ready(self.owes.load(Ordering::Relaxed) && !self.has_messages());
    }
}

impl fmt::Debug for RingPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPort").field("awaits", &self.awaits).finish_non_exhaustive()
    }
}
