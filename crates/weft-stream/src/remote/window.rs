//! The memory of an end that its peer on another host can write to, and its layout.
//!
//! Each end has its own window, and all have the same layout. Children share it, because they share
//! the connection.
//!
//! | part | peer may | holds |
//! | --- | --- | --- |
//! | local | nothing | locks and positions of this end, for all processes that share it |
//! | local state | nothing | what this end publishes |
//! | peer state, ring | write | what the peer publishes, and its bytes |
//! | copy | nothing | bytes on their way to the peer's ring |

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_sys::calls::io::Errno;
use weft_sys::{SharedMemory, shared_layout};

const PAGE: usize = 4_096;
/// Number of 64-bit words that an end may publish: a page of them.
const STATE_WORDS: usize = PAGE / size_of::<AtomicU64>();

shared_layout! {
    /// A window, up to its ring and copy.
    struct Words[3 * PAGE] {
        0: local: Local,
        /// The words that this end publishes: [`StateWord`].
        4_096: own: [AtomicU64; STATE_WORDS],
        /// The words that the peer publishes, by writing here. The ring follows.
        8_192: peer: [AtomicU64; STATE_WORDS],
    }
}

shared_layout! {
    /// The words of this end that all processes which share it use.
    pub(super) struct Local[PAGE] {
        0: tx_lock: AtomicU32,
        4: rx_lock: AtomicU32,
        8: shut_read: AtomicU32,
        12: shut_write: AtomicU32,
        16: gone: AtomicU32,
        /// A value of [`reset`].
        20: reset: AtomicU32,
        24: sleepers: AtomicU32,
        /// The connection is to fall back to TCP.
        28: falls_back: AtomicU32,
        /// Number of other processes known to have the socket open.
        32: refs: AtomicU32,
        36: _gap: [AtomicU32; 247],
        1_024: tcp_sent: AtomicU64,
        1_032: tcp_read: AtomicU64,
        /// The tail that was last published to the peer.
        1_040: reported_tail: AtomicU64,
        1_048: _rest: [AtomicU64; 381],
    }
}

/// Offset of the words that the peer publishes, by writing here.
pub const PEER_STATE: usize = offset_of!(Words, peer);
/// Length of the peer's state in bytes.
pub const PEER_STATE_LEN: usize = STATE_WORDS * size_of::<AtomicU64>();
/// Offset of the ring, where the peer's bytes arrive.
pub const RING: usize = size_of::<Words>();
/// Length of a direction's ring in bytes. It is short in the simulation, so that it is often full.
pub const RING_LEN: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };
/// Offset of the bytes being sent, at their positions in the peer's ring.
pub const COPY: usize = RING + RING_LEN;
/// Length of a window in bytes.
pub const LEN: usize = COPY + RING_LEN;

const _: () = assert!(PEER_STATE + PEER_STATE_LEN == RING && RING.is_multiple_of(PAGE));

/// Words that an end publishes, of 64 bits. Only that end writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StateWord {
    /// Bytes put into the peer's ring so far.
    Head = 0,
    /// Bytes taken out of this end's ring so far.
    Tail = 1,
    /// Bytes that go over TCP before the ring is used, plus one; 0 if not decided.
    Switch = 2,
    /// Bytes in the peer's ring behind which the stream continues over TCP, plus one; 0 if not
    /// decided.
    Back = 3,
    /// Bits of [`state`].
    State = 4,
    /// 1 if both directions are to fall back to TCP.
    Leaves = 5,
}

/// Whether a write of `len` bytes at `offset` of the peer's state contains the peer's request to
/// fall back to TCP.
#[must_use]
pub fn is_fallback_request(offset: usize, len: usize) -> bool {
    let place = 8 * StateWord::Leaves as usize;
    offset < place + 8 && place < offset.saturating_add(len)
}

/// Bits of [`StateWord::State`].
pub mod state {
    /// The end sends no more.
    pub const SHUT_WRITE: u64 = 1;
    /// The end has closed the socket.
    pub const CLOSED: u64 = 2;
    /// The end reads no more.
    pub const SHUT_READ: u64 = 4;
    /// The end has the wire, and reads what comes over it. The peer may leave TCP only then: until
    /// the end has decided it may still stay on TCP, and never look into its ring.
    pub const BEGUN: u64 = 8;
}

/// Values of the word that tracks a reset, which is reported to the program once.
pub(super) mod reset {
    /// There has been no reset.
    pub(in crate::remote) const NONE: u32 = 0;
    pub(in crate::remote) const REPORTED: u32 = 1;
    /// The call that found the reset could not report it.
    pub(in crate::remote) const UNREPORTED: u32 = 2;
}

/// Whether a boolean word is set.
pub(super) fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// The memory of one end.
#[derive(Debug)]
pub struct Window(SharedMemory);

impl Window {
    /// Creates a window of zeros.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and similar errors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(SharedMemory::create(LEN)?.0))
    }

    /// The window's address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.0.addr()
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.0
    }

    /// A word of this end's state.
    #[must_use]
    pub fn local_state(&self, word: StateWord) -> &AtomicU64 {
        &self.words().own[word as usize]
    }

    /// A word of the peer's state, as far as it has arrived.
    #[must_use]
    pub fn peer_state(&self, word: StateWord) -> &AtomicU64 {
        &self.words().peer[word as usize]
    }

    pub(super) fn local(&self) -> &Local {
        &self.words().local
    }

    fn words(&self) -> &Words {
        self.0.structure(0)
    }
}
