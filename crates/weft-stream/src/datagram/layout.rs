//! Where everything lies in the file of inboxes. Zeros are a valid, empty one.

use crate::layout::{LINES, PAGE};

/// The version of the layout, which is in the name of the file.
pub(crate) const VERSION: u32 = 2;
/// Sockets of one user that receive through memory at a time. Those beyond stay with the kernel.
pub(crate) const INBOXES_MAX: usize = 1_024;
/// Bytes of an inbox: what the kernel gives a socket by default (`net.core.rmem_default`), rounded
/// up.
pub(crate) const RING_LEN: usize = 256 << 10;

/// Counters of the whole file, of inboxes that are no more.
pub(crate) mod totals {
    pub(crate) const USERS: usize = 0;
    pub(crate) const DATAGRAMS: usize = 8;
    pub(crate) const BYTES: usize = 16;
    pub(crate) const DROPPED: usize = 24;
    pub(crate) const BY_KERNEL: usize = 32;
}

/// Held while a socket gets or gives up its inbox: it has one, whichever process of its asks first.
pub(crate) const LOCK: usize = 64;
/// One bit for each slot: taken or not.
pub(crate) const BITMAP: usize = 1_024;
/// For each port, a word that changes whenever who receives there may have changed. Zero: nobody
/// ever has.
pub(crate) const PORTS: usize = PAGE;
/// What each slot is: [`entry`].
pub(crate) const DIRECTORY: usize = PORTS + 4 * 65_536;
/// What is accessible from the start.
pub(crate) const COMMON_LEN: usize = DIRECTORY + INBOXES_MAX * LINES;

/// A slot's line in the directory.
pub(crate) mod entry {
    /// 0: free; 1: a socket's.
    pub(crate) const STATE: usize = 0;
    /// Counts the sockets that have had the slot.
    pub(crate) const GENERATION: usize = 4;
    pub(crate) const PORT: usize = 8;
    /// Processes that have the socket.
    pub(crate) const REFS: usize = 12;
    pub(crate) const COOKIE: usize = 16;
    /// How many bytes may wait.
    pub(crate) const LIMIT: usize = 24;
    /// The socket may share its address with others.
    pub(crate) const SHARED: usize = 28;
    pub(crate) const PID: usize = 32;
    /// It is the kernel's for good.
    pub(crate) const LEFT: usize = 36;
}

/// A slot: a page of words, then the ring.
pub(crate) mod words {
    // The senders'.
    /// The upper 48 bits: how much has been put, in units of [`super::UNIT`]. The lower 16: the
    /// window, see [`crate::datagram::Inbox`].
    pub(crate) const HEAD: usize = 0;
    pub(crate) const LOCK: usize = 8;
    pub(crate) const DATAGRAMS: usize = 16;
    pub(crate) const BYTES: usize = 24;
    pub(crate) const DROPPED: usize = 32;
    pub(crate) const BY_KERNEL: usize = 40;
    // The receiver's.
    /// How much has been taken, in the same units.
    pub(crate) const TAIL: usize = 128;
    pub(crate) const READER_LOCK: usize = 136;
    pub(crate) const DOZE: usize = 140;
}

/// Records begin at multiples of this.
pub(crate) const UNIT: usize = 8;
/// A record: length and port, the sender's address in 16 bytes, then the datagram.
pub(crate) const HEADER_LEN: usize = 24;

pub(crate) const SLOT_LEN: usize = PAGE + RING_LEN;
pub(crate) const FILE_LEN: usize = COMMON_LEN + INBOXES_MAX * SLOT_LEN;

pub(crate) const fn entry_at(slot: usize) -> usize {
    DIRECTORY + slot * LINES
}

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn ring_at(slot: usize) -> usize {
    slot_at(slot) + PAGE
}

const _: () = {
    assert!(BITMAP + INBOXES_MAX / 8 <= PAGE, "the bitmap ends with the first page");
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(RING_LEN.is_power_of_two() && RING_LEN.is_multiple_of(UNIT));
    assert!(HEADER_LEN.is_multiple_of(UNIT));
};
