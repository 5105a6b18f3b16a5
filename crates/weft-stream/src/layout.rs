//! Layout of the shared file. A file of zeros is a valid, empty registry.
//!
//! Words that different processes write at the same time are 128 bytes apart, because the CPU
//! fetches cache lines in pairs.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use weft_sys::shared_layout;

use crate::limits::{
    ALARMS_MAX, BIG_RING_LEN, CONNECTIONS_MAX, FALLBACKS_MAX, FILL_LEN, GRANTS_MAX, HOLDERS_MAX,
    PIECES_MAX, SMALL_RING_LEN, SRC_AVAILS_MAX,
};
use crate::reason::Reason;

pub(crate) const PAGE: usize = 4_096;
pub(crate) const LINES: usize = 128;

/// Marks a position that has not been decided yet.
pub(crate) const NONE: u64 = u64::MAX;

shared_layout! {
    /// The first word of each file of slots.
    pub(crate) struct Users[8] {
        /// Number of processes that use the file.
        0: count: AtomicU64,
    }
}

shared_layout! {
    /// Counters of the whole registry ([`crate::snapshot::Totals`]), at its start.
    pub(crate) struct Counters[384] {
        0: users: Users,
        8: offered: AtomicU64,
        16: joined: AtomicU64,
        /// Bytes and messages that connections, now ended, moved through memory.
        24: bytes: AtomicU64,
        32: messages: AtomicU64,
        /// Those of `bytes` that were pulled, and so copied only once.
        40: pulled: AtomicU64,
        /// Words of the hash table in use, as an upper bound: killed processes leave theirs
        /// counted.
        48: in_table: AtomicU64,
        56: _gap: [AtomicU32; 18],
        /// One counter for each [`crate::Reason`].
        128: fallbacks: [AtomicU64; FALLBACKS_MAX],
    }
}

/// Buckets of the hash table of offers, and words of a bucket.
pub(crate) const BUCKETS_COUNT: usize = 4_096;
pub(crate) const WAYS: usize = 16;

shared_layout! {
    /// The part before the slots, which is accessible from the start.
    pub(crate) struct Common[823_296] {
        0: counters: Counters,
        384: _gap: [AtomicU64; 80],
        /// One bit for each slot that is taken.
        1_024: bitmap: [AtomicU64; CONNECTIONS_MAX / 64],
        1_536: _gap_2: [AtomicU64; 320],
        /// The hash table of offers. Each word is a slot's number plus one.
        4_096: buckets: [[AtomicU32; WAYS]; BUCKETS_COUNT],
        266_240: directory: [Entry; CONNECTIONS_MAX],
        790_528: alarms: [AlarmEntry; ALARMS_MAX],
    }
}

pub(crate) const BITMAP: usize = offset_of!(Common, bitmap);
pub(crate) const BUCKETS: usize = offset_of!(Common, buckets);
pub(crate) const COMMON_LEN: usize = size_of::<Common>();

shared_layout! {
    /// The shared words of an alarm.
    pub(crate) struct AlarmEntry[128] {
        /// The process that owns the alarm; 0 if it is free.
        0: owner: AtomicU32,
        4: _gap: [AtomicU32; 1],
        /// See [`weft_sys::Alarm`].
        8: word: AtomicU64,
        /// The inode of the pipe that wakes the owner; 0 if there is none ([`crate::pipes`]).
        16: pipe: AtomicU64,
        /// Whether a pipe has been created for the alarm.
        24: made: AtomicU64,
        32: _rest: [AtomicU32; 24],
    }
}

shared_layout! {
    /// A slot's entry in the directory.
    pub(crate) struct Entry[128] {
        /// Whether a connection uses the slot, and how many have used it: [`weft_sys::SlotState`].
        0: state: AtomicU64,
        /// The addresses of the connector and of the acceptor, 16 bytes each.
        8: addresses: [AtomicU64; 4],
        /// The connector's port in the upper half, the acceptor's in the lower.
        40: ports: AtomicU32,
        44: _gap: [AtomicU32; 1],
        /// How many bytes of each direction's big ring have memory.
        48: filled: [AtomicU32; 2],
        /// The connection's flow control ([`crate::flow::Flow`]).
        56: flow: AtomicU32,
        /// The carrier: 0 for memory, 1 for verbs.
        60: transport: AtomicU32,
        /// Why the connection has fallen back to TCP: 0, or the [`crate::Reason`]'s number plus
        /// one.
        64: fallback: AtomicU32,
        68: _gap_2: [AtomicU32; 1],
        /// The connection's network namespace (`SO_NETNS_COOKIE`).
        72: namespace: AtomicU64,
        80: _rest: [AtomicU32; 12],
    }
}

shared_layout! {
    /// A slot: a page of words, then four rings, which are accessed by copies.
    struct Slot[4_231_168] {
        0: page: Page,
        4_096: small_rings: [[AtomicU64; SMALL_RING_LEN / 8]; 2],
        36_864: big_rings: [[AtomicU64; BIG_RING_LEN / 8]; 2],
    }
}

/// Length of a slot.
pub(crate) const SLOT_LEN: usize = size_of::<Slot>();
/// Length of the part of a slot that has memory from the start.
pub(crate) const SLOT_SMALL_LEN: usize = offset_of!(Slot, big_rings);

/// Length in bytes of a program's name.
pub(crate) const PROGRAM_LEN: usize = 16;

shared_layout! {
    /// The words of one side of a connection.
    pub(crate) struct Side[256] {
        0: joined: AtomicU32 = 0,
        /// Number of `holders`, plus one if there are `uncounted` ones.
        4: refs: AtomicU32,
        8: pid: AtomicU32 = 0,
        12: shut_write: AtomicU32 = 0,
        16: shut_read: AtomicU32 = 0,
        /// The peer has gone for good. Sends are passed to the kernel, which refuses them.
        20: gone: AtomicU32 = 0,
        /// The kernel's number for the socket (`SO_COOKIE`).
        24: cookie: AtomicU64 = 0,
        32: program: [AtomicU64; PROGRAM_LEN / 8] = 0,
        /// Whether the program has been given the error of the peer's reset.
        48: reset_reported: AtomicU32 = 0,
        /// `TCP_NODELAY` and `TCP_CORK` as the program set them ([`crate::Delays`]). The kernel's
        /// socket has neither, so that it never delays a wakeup.
        52: delays: AtomicU32 = 0,
        /// The program wants one-sided operations ([`GrantEntry`]).
        56: extended: AtomicU32 = 0,
        /// Processes that `holders` does not name may hold the socket.
        60: uncounted: AtomicU32,
        /// The descriptor that `pid` had when it made its end. A search for the socket starts
        /// there.
        64: fd: AtomicU32 = 0,
        68: _gap: [AtomicU32; 15],
        /// Threads that sleep in the kernel until something comes.
        128: sleepers: AtomicU32 = 0,
        /// A wakeup has been sent, and the sleeper has not drained it.
        132: wakeup: AtomicU32 = 0,
        /// A writer sleeps until there is room: 1 in a futex wait, 2 in the kernel's poll.
        136: space_wanted: AtomicU32 = 0,
        /// A reader sleeps on this word until something comes.
        140: futex_wait: AtomicU32 = 0,
        /// The last holder of this side is about to close the socket.
        144: parted: AtomicU32 = 0,
        148: _gap_2: [AtomicU32; 1],
        /// The tag of that sleep ([`weft_sys::Tag`]).
        152: tag: AtomicU64 = 0,
        /// The processes that hold the socket: [`crate::holders`].
        160: holders: [AtomicU32; HOLDERS_MAX],
    }
}

shared_layout! {
    /// The words of one direction.
    pub(crate) struct Direction[256] {
        // Words of the producer. The first line has those that a waiting consumer reads again and
        // again, and nothing else that the producer writes: each write takes the line from the
        // consumer.
        /// Bytes put into the rings so far.
        0: head: AtomicU64 = 0,
        /// Number of bytes that go over TCP before the rings are used.
        8: shm_start_seq: AtomicU64 = NONE,
        /// The position from which the big ring is used.
        16: grown_at: AtomicU64 = NONE,
        /// The position from which TCP is used again.
        24: tcp_resume_seq: AtomicU64 = NONE,
        /// SrcAvails posted so far.
        32: posted: AtomicU64 = 0,
        /// When the oldest of the unread bytes were put ([`weft_sys::time_stamp`]).
        40: arrived_at: AtomicU64 = 0,
        /// Deferred sends are being copied into the ring.
        48: reclaiming: AtomicU32 = 0,
        /// Unread bytes are being put back into the kernel's queue.
        52: returning: AtomicU32 = 0,
        /// Withdrawals of sources begun and ended so far. Odd: bytes that the consumer has seen in
        /// a source are on their way into the ring.
        56: withdrawals: AtomicU32 = 0,
        60: _gap: [AtomicU32; 1],
        // The second line has words that only the producer uses, or that are seldom read.
        64: lock: AtomicU32 = 0,
        68: _gap_2: [AtomicU32; 1],
        72: tcp_sent: AtomicU64 = 0,
        80: wakeups: AtomicU64 = 0,
        88: messages: AtomicU64 = 0,
        96: stalls: AtomicU64 = 0,
        /// Under credit-based flow control: buffers filled so far.
        104: filled: AtomicU64 = 0,
        /// Sums over all stalls: bytes unread at the time, and bytes of memory allotted.
        112: stalled_used: AtomicU64 = 0,
        120: stalled_allotted: AtomicU64 = 0,
        // Words of the consumer.
        /// Bytes taken out of the rings so far.
        128: tail: AtomicU64 = 0,
        136: tcp_read: AtomicU64 = 0,
        144: wakeups_taken: AtomicU64 = 0,
        152: reader_lock: AtomicU32 = 0,
        156: _gap_3: [AtomicU32; 1],
        /// Under credit-based flow control: bytes read of the oldest buffer.
        160: read_of_buffer: AtomicU64 = 0,
        /// Under credit-based flow control: buffers emptied so far, and how many of them the
        /// consumer has returned to the producer.
        168: emptied: AtomicU64 = 0,
        176: acknowledged: AtomicU64 = 0,
        /// SrcAvails that the consumer has found to be over.
        184: sources_taken: AtomicU64 = 0,
        /// Bytes that the consumer has pulled out of sources.
        192: pulled: AtomicU64 = 0,
        /// The consumer may not read the producer's memory.
        200: refused: AtomicU32 = 0,
        /// The last edge that an epoll instance has reported to the consumer
        /// ([`crate::ReportedEdge`]): the events asked for (0: none reported), and what had come by
        /// then, and through what.
        204: edge_asked: AtomicU32 = 0,
        208: edge_come: AtomicU64 = 0,
        216: edge_ends: AtomicU32 = 0,
        220: _gap_4: [AtomicU32; 1],
        224: edge_received: AtomicU64 = NONE,
        232: edge_instance: AtomicU64 = 0,
        /// Bytes that TCP has delivered to the consumer a second time: they were in memory, or were
        /// taken out of the kernel's queue and sent again.
        240: resent: AtomicU64 = 0,
        248: _rest: [AtomicU32; 2],
    }
}

shared_layout! {
    /// A message that the sender has named instead of copying it: see [`crate::source`].
    pub(crate) struct SrcAvailEntry[128] {
        /// Whether the source is open, where its bytes lie, its number, and how many bytes have
        /// been pulled.
        0: state: AtomicU64,
        /// The process in whose memory the message lies.
        8: pid: AtomicU32,
        12: pieces_count: AtomicU32,
        /// The address of that process's proof, and the proof's value.
        16: proof_at: AtomicU64,
        24: proof: AtomicU64,
        /// Address and length of each piece.
        32: pieces: [[AtomicU64; 2]; PIECES_MAX],
        /// The address of a copy of all pieces. It is valid once `state` says that they have moved
        /// there.
        96: copy: AtomicU64,
        104: _rest: [AtomicU32; 6],
    }
}

shared_layout! {
    /// One memory registration that a side grants to its peer.
    pub(crate) struct GrantEntry[64] {
        /// 0 if free, 1 while being filled in, else the secret that the peer must know.
        0: state: AtomicU64 = 0,
        /// Operations of the peer under way.
        8: users: AtomicU32 = 0,
        /// The process that owns the segment, and the segment's descriptor and inode there.
        12: pid: AtomicU32,
        16: fd: AtomicU32,
        20: rights: AtomicU32,
        24: inode: AtomicU64,
        /// The granted part of the segment, in bytes.
        32: offset: AtomicU64,
        40: len: AtomicU64,
        48: _rest: [AtomicU32; 4],
    }
}

shared_layout! {
    /// The first page of a slot. In each pair, the connector's part comes first.
    pub(crate) struct Page[PAGE] {
        0: sides: [Side; 2],
        512: directions: [Direction; 2],
        1024: grants: [[GrantEntry; GRANTS_MAX]; 2],
        2048: sources: [[SrcAvailEntry; SRC_AVAILS_MAX]; 2],
    }
}

pub(crate) const fn alarm_at(index: usize) -> usize {
    offset_of!(Common, alarms) + index * size_of::<AlarmEntry>()
}

pub(crate) const fn entry_at(slot: usize) -> usize {
    offset_of!(Common, directory) + slot * size_of::<Entry>()
}

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn small_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + offset_of!(Slot, small_rings) + direction * SMALL_RING_LEN
}

pub(crate) const fn big_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + offset_of!(Slot, big_rings) + direction * BIG_RING_LEN
}

const _: () = {
    assert!(Reason::ALL.len() <= FALLBACKS_MAX);
    assert!(size_of::<Entry>() == LINES && size_of::<AlarmEntry>() == LINES);
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(SMALL_RING_LEN.is_power_of_two() && BIG_RING_LEN.is_power_of_two());
    assert!(BIG_RING_LEN.is_multiple_of(FILL_LEN) && FILL_LEN.is_multiple_of(PAGE));
};
