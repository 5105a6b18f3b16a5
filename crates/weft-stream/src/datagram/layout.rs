//! Layout of the inbox file. A file of zeros is a valid, empty one.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use weft_sys::shared_layout;

use crate::layout::{LINES, PAGE, Users};
use crate::limits::INBOXES_MAX;

/// Version of the layout. It is a part of the file's name.
pub(crate) const VERSION: u32 = 3;
/// Length of an inbox in bytes: the kernel's default for a socket (`net.core.rmem_default`),
/// rounded up.
pub(crate) const RING_LEN: usize = 256 << 10;
/// Number of ports.
const PORTS: usize = 1 << 16;

shared_layout! {
    /// The part before the slots.
    pub(crate) struct Common[PAGE + 4 * PORTS + INBOXES_MAX * size_of::<Entry>()] {
        0: users: Users,
        /// Totals of inboxes that are gone.
        8: datagrams: AtomicU64,
        16: bytes: AtomicU64,
        24: dropped: AtomicU64,
        32: by_kernel: AtomicU64,
        40: _gap: [AtomicU64; 3],
        /// Held while a socket gets or gives up its inbox, so that it has only one, however many of
        /// its processes ask.
        64: lock: AtomicU32,
        68: _gap_2: [AtomicU32; 239],
        /// One bit for each slot that is taken.
        1_024: bitmap: [AtomicU64; INBOXES_MAX / 64],
        1_152: _gap_3: [AtomicU64; 368],
        /// For each port, a word that changes when its receivers may have changed. Zero means that
        /// no socket with an inbox has ever had the port.
        4_096: ports: [AtomicU32; PORTS],
        266_240: directory: [Entry; INBOXES_MAX],
    }
}
/// Length of the part that is accessible from the start.
pub(crate) const COMMON_LEN: usize = size_of::<Common>();
pub(crate) const BITMAP: usize = offset_of!(Common, bitmap);

shared_layout! {
    /// A slot's entry in the directory.
    pub(crate) struct Entry[LINES] {
        /// Whether a socket uses the slot, and how many have used it: [`weft_sys::SlotState`].
        0: state: AtomicU64,
        8: port: AtomicU32,
        /// Number of processes that have the socket.
        12: refs: AtomicU32,
        16: cookie: AtomicU64,
        /// Number of bytes that may wait.
        24: limit: AtomicU32,
        /// The socket may share its address with others.
        28: shared: AtomicU32,
        32: pid: AtomicU32,
        /// The socket's datagrams are left to the kernel for good.
        36: left: AtomicU32,
        40: _rest: [AtomicU32; 22],
    }
}

shared_layout! {
    /// The words of a slot.
    pub(crate) struct Words[2 * LINES] {
        // Words of the senders.
        /// Upper 48 bits: how much has been put, in units of [`UNIT`]. Lower 16 bits: the window,
        /// see [`crate::datagram::Inbox`].
        0: head: AtomicU64,
        8: lock: AtomicU32,
        12: _gap: [AtomicU32; 1],
        16: datagrams: AtomicU64 = 0,
        24: bytes: AtomicU64 = 0,
        32: dropped: AtomicU64 = 0,
        40: by_kernel: AtomicU64 = 0,
        48: _gap_2: [AtomicU32; 20],
        // Words of the receiver.
        /// How much has been taken, in units of [`UNIT`].
        128: tail: AtomicU64,
        136: reader_lock: AtomicU32 = 0,
        140: futex_wait: AtomicU32 = 0,
        144: _rest: [AtomicU32; 28],
    }
}

/// Records start at multiples of this.
pub(crate) const UNIT: usize = 8;
/// Length of a record's header: length, port, and the sender's address in 16 bytes. The datagram
/// follows.
pub(crate) const HEADER_LEN: usize = 24;

shared_layout! {
    /// A slot: a page of words, then the ring, which is accessed by copies.
    struct Slot[PAGE + RING_LEN] {
        0: words: Words,
        256: _gap: [AtomicU64; 480],
        4_096: ring: [AtomicU64; RING_LEN / 8],
    }
}

pub(crate) const SLOT_LEN: usize = size_of::<Slot>();

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn ring_at(slot: usize) -> usize {
    slot_at(slot) + offset_of!(Slot, ring)
}

const _: () = {
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(RING_LEN.is_power_of_two() && RING_LEN.is_multiple_of(UNIT));
    assert!(HEADER_LEN.is_multiple_of(UNIT));
};
