//! The memory that an end shows to its peer on another host, and where everything lies in it.
//!
//! Each end has such a window of its own, of the same layout. It is shared with children, because
//! they share the connection.
//!
//! | part | peer may | holds |
//! | --- | --- | --- |
//! | local | nothing | locks and positions of this end and its relatives |
//! | told | nothing | what this end says of itself |
//! | heard, ring | write | what the peer says of itself, and its bytes |
//! | copy | nothing | bytes on their way to the peer's ring |

use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use weft_sys::SharedMemory;

const PAGE: usize = 4_096;
/// Bytes of a direction's ring; few in the simulation, where it is to be full often.
pub const RING_LEN: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };

/// What this end says of itself: [`Said`].
pub const TOLD: usize = PAGE;
/// What the peer says of itself, for it to write; its ring follows.
pub const HEARD: usize = 2 * PAGE;
/// Where the peer's bytes arrive.
pub const RING: usize = HEARD + PAGE;
/// The bytes that are sent, at the positions that they have in the peer's ring.
pub const COPY: usize = RING + RING_LEN;
/// All.
pub const LEN: usize = COPY + RING_LEN;
/// What the peer may say, in bytes.
pub const HEARD_LEN: usize = PAGE;

/// What an end says of itself: 64-bit words, each written by nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Said {
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

/// Whether the peer, which has written `len` bytes at `offset` of what it may say, wants to go back
/// to TCP.
#[must_use]
pub fn is_wish(offset: usize, len: usize) -> bool {
    let place = 8 * Said::Leaves as usize;
    offset < place + 8 && place < offset.saturating_add(len)
}

/// Bits of [`Said::State`].
pub mod state {
    /// Sends no more.
    pub const SHUT_WRITE: u64 = 1;
    /// Has closed the socket.
    pub const CLOSED: u64 = 2;
    /// Reads no more.
    pub const SHUT_READ: u64 = 4;
}

/// What the program knows of a reset, which is told once.
pub(super) mod reset {
    /// There has been none.
    pub(in super::super) const NONE: u32 = 0;
    pub(in super::super) const TOLD: u32 = 1;
    /// What found it had no way to say so.
    pub(in super::super) const UNTOLD: u32 = 2;
}

/// Words of the local part that are 32 bits wide.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Small {
    TxLock = 0,
    RxLock = 1,
    ShutRead = 2,
    ShutWrite = 3,
    Gone = 4,
    /// [`reset`].
    ResetTold = 5,
    Sleepers = 6,
    /// It has been told to go back to TCP.
    Leaves = 7,
    /// Processes that have the socket open beside this one, as far as they say so.
    Refs = 8,
}

/// Words of the local part that are 64 bits wide.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Wide {
    TcpSent = 0,
    TcpRead = 1,
    /// The tail that the peer was told last.
    ToldTail = 2,
}
const WIDE: usize = 1_024;

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

    /// What this end says.
    #[must_use]
    pub fn told(&self, word: Said) -> &AtomicU64 {
        self.0.word64(TOLD + 8 * word as usize)
    }

    /// What the peer says, as far as that has come.
    #[must_use]
    pub fn heard(&self, word: Said) -> &AtomicU64 {
        self.0.word64(HEARD + 8 * word as usize)
    }

    pub(super) fn small(&self, word: Small) -> &AtomicU32 {
        self.0.word32(4 * word as usize)
    }

    pub(super) fn wide(&self, word: Wide) -> &AtomicU64 {
        self.0.word64(WIDE + 8 * word as usize)
    }
}
