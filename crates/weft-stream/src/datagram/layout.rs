//! Where everything lies in the file of inboxes. Zeros are a valid, empty one.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use weft_sys::shared_layout;

use crate::layout::{LINES, PAGE};
use crate::limits::INBOXES_MAX;

/// The version of the layout, which is in the name of the file.
pub(crate) const VERSION: u32 = 3;
/// Bytes of an inbox: what the kernel gives a socket by default (`net.core.rmem_default`), rounded
/// up.
pub(crate) const RING_LEN: usize = 256 << 10;
/// Ports that there are.
const PORTS: usize = 1 << 16;

shared_layout! {
    /// What is before the slots.
    pub(crate) struct Common[COMMON_LEN] {
        0: users: AtomicU64,
        /// Counters of inboxes that are no more.
        8: datagrams: AtomicU64,
        16: bytes: AtomicU64,
        24: dropped: AtomicU64,
        32: by_kernel: AtomicU64,
        40: _gap: [AtomicU64; 3],
        /// Held while a socket gets or gives up its inbox: it has one, whichever of its processes
        /// asks first.
        64: lock: AtomicU32,
        68: _gap_2: [AtomicU32; 239],
        /// One bit for each slot: taken or not.
        1_024: bitmap: [AtomicU64; INBOXES_MAX / 64],
        1_152: _gap_3: [AtomicU64; 368],
        /// For each port, a word that changes when the receivers there may have changed. Zero: no
        /// socket with an inbox ever had the port.
        4_096: ports: [AtomicU32; PORTS],
        266_240: directory: [Entry; INBOXES_MAX],
    }
}
/// What is accessible from the start.
pub(crate) const COMMON_LEN: usize = PAGE + 4 * PORTS + INBOXES_MAX * size_of::<Entry>();
pub(crate) const BITMAP: usize = offset_of!(Common, bitmap);

shared_layout! {
    /// A slot's line in the directory.
    pub(crate) struct Entry[LINES] {
        /// Whether a socket has the slot, and how many have had it: [`weft_sys::SlotState`].
        0: state: AtomicU64,
        8: port: AtomicU32,
        /// Processes that have the socket.
        12: refs: AtomicU32,
        16: cookie: AtomicU64,
        /// How many bytes may wait.
        24: limit: AtomicU32,
        /// The socket may share its address with others.
        28: shared: AtomicU32,
        32: pid: AtomicU32,
        /// It is the kernel's for good.
        36: left: AtomicU32,
        40: _rest: [AtomicU32; 22],
    }
}

shared_layout! {
    /// The words of a slot, at the beginning of its first page. The ring begins with the second.
    pub(crate) struct Words[2 * LINES] {
        // The senders'.
        /// The upper 48 bits: how much has been put, in units of [`UNIT`]. The lower 16: the
        /// window, see [`crate::datagram::Inbox`].
        0: head: AtomicU64,
        8: lock: AtomicU32,
        12: _gap: [AtomicU32; 1],
        16: datagrams: AtomicU64 = 0,
        24: bytes: AtomicU64 = 0,
        32: dropped: AtomicU64 = 0,
        40: by_kernel: AtomicU64 = 0,
        48: _gap_2: [AtomicU32; 20],
        // The receiver's.
        /// How much has been taken, in the same units.
        128: tail: AtomicU64,
        136: reader_lock: AtomicU32 = 0,
        140: futex_wait: AtomicU32 = 0,
        144: _rest: [AtomicU32; 28],
    }
}

/// Records begin at multiples of this.
pub(crate) const UNIT: usize = 8;
/// A record: length and port, the sender's address in 16 bytes, then the datagram.
pub(crate) const HEADER_LEN: usize = 24;

pub(crate) const SLOT_LEN: usize = PAGE + RING_LEN;

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn ring_at(slot: usize) -> usize {
    slot_at(slot) + PAGE
}

const _: () = {
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(size_of::<Words>() <= PAGE);
    assert!(RING_LEN.is_power_of_two() && RING_LEN.is_multiple_of(UNIT));
    assert!(HEADER_LEN.is_multiple_of(UNIT));
};
