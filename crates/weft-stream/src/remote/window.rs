//! The memory that an end shows to its peer on another host, and where everything lies in it.
//!
//! Each end has such a window of its own, of the same layout. It is shared with children, because
//! they share the connection.
//!
//! | part | peer may | holds |
//! | --- | --- | --- |
//! | local | nothing | locks and positions of this end, for all processes that share it |
//! | local state | nothing | what this end publishes |
//! | peer state, ring | write | what the peer publishes, and its bytes |
//! | copy | nothing | bytes on their way to the peer's ring |

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use weft_sys::{SharedMemory, shared_layout};

const PAGE: usize = 4_096;
/// Words of 64 bits that an end may publish: a page of them.
const STATE_WORDS: usize = PAGE / size_of::<AtomicU64>();

shared_layout! {
    /// A window, up to its ring and its copy.
    struct Words[3 * PAGE] {
        0: local: Local,
        /// What this end publishes: [`StateWord`].
        4_096: own: [AtomicU64; STATE_WORDS],
        /// What the peer publishes, for it to write; its ring follows.
        8_192: peer: [AtomicU64; STATE_WORDS],
    }
}

shared_layout! {
    /// The words of this end, for all processes that share it.
    pub(super) struct Local[PAGE] {
        0: tx_lock: AtomicU32,
        4: rx_lock: AtomicU32,
        8: shut_read: AtomicU32,
        12: shut_write: AtomicU32,
        16: gone: AtomicU32,
        /// [`reset`].
        20: reset: AtomicU32,
        24: sleepers: AtomicU32,
        /// It is to go back to TCP.
        28: leaves: AtomicU32,
        /// Processes that have the socket open beside this one, as far as they say so.
        32: refs: AtomicU32,
        36: _gap: [AtomicU32; 247],
        1_024: tcp_sent: AtomicU64,
        1_032: tcp_read: AtomicU64,
        /// The tail that was reported to the peer last.
        1_040: reported_tail: AtomicU64,
        1_048: _rest: [AtomicU64; 381],
    }
}

/// What the peer publishes, for it to write; its ring follows.
pub const PEER_STATE: usize = offset_of!(Words, peer);
/// The length of the peer's state, in bytes.
pub const PEER_STATE_LEN: usize = STATE_WORDS * size_of::<AtomicU64>();
/// Where the peer's bytes arrive.
pub const RING: usize = size_of::<Words>();
/// Bytes of a direction's ring; few in the simulation, where it is to be full often.
pub const RING_LEN: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };
/// The bytes that are sent, at the positions that they have in the peer's ring.
pub const COPY: usize = RING + RING_LEN;
/// All.
pub const LEN: usize = COPY + RING_LEN;

const _: () = assert!(PEER_STATE + PEER_STATE_LEN == RING && RING.is_multiple_of(PAGE));

/// What an end publishes: 64-bit words, each written by that end alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StateWord {
    /// Bytes put into the peer's ring so far.
    Head = 0,
    /// Bytes taken out of the own ring so far.
    Tail = 1,
    /// Bytes that go over TCP before the ring is used, plus one; 0: not decided.
    Switch = 2,
    /// Bytes put into the peer's ring behind which the stream goes on over TCP, plus one; 0: not
    /// decided.
    Back = 3,
    /// [`state`].
    State = 4,
    /// 1: both directions are to go back to TCP.
    Leaves = 5,
}

/// Whether the peer, which has written `len` bytes at `offset` of its state, wants to go back
/// to TCP.
#[must_use]
pub fn is_wish(offset: usize, len: usize) -> bool {
    let place = 8 * StateWord::Leaves as usize;
    offset < place + 8 && place < offset.saturating_add(len)
}

/// Bits of [`StateWord::State`].
pub mod state {
    /// Sends no more.
    pub const SHUT_WRITE: u64 = 1;
    /// Has closed the socket.
    pub const CLOSED: u64 = 2;
    /// Reads no more.
    pub const SHUT_READ: u64 = 4;
}

/// What the program knows of a reset, which is reported once.
pub(super) mod reset {
    /// There has been none.
    pub(in crate::remote) const NONE: u32 = 0;
    pub(in crate::remote) const REPORTED: u32 = 1;
    /// The call that found it had no way to report it.
    pub(in crate::remote) const UNREPORTED: u32 = 2;
}

/// Whether a word of yes or no says yes.
pub(super) fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// The memory of one end.
#[derive(Debug)]
pub struct Window(SharedMemory);

impl Window {
    /// A window of zeros.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM` and the like.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(SharedMemory::create(LEN)?.0))
    }

    /// Where it begins.
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

    /// A word of the peer's state, as far as that has come.
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
