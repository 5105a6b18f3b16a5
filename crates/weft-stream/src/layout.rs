//! Where everything lies in the shared file. Zeros are a valid, empty registry.
//!
//! Words that different processes write at the same time are 128 bytes apart: the CPU fetches
//! pairs of cache lines.

use std::sync::atomic::{AtomicU32, AtomicU64};

use weft_sys::shared_layout;

use crate::limits::{
    ALARMS_MAX, BIG_RING_LEN, CONNECTIONS_MAX, FALLBACKS_MAX, FILL_LEN, GRANTS_MAX, HOLDERS_MAX,
    PIECES_MAX, SMALL_RING_LEN, SOURCES_MAX,
};
use crate::reason::Reason;

pub(crate) const PAGE: usize = 4_096;
pub(crate) const LINES: usize = 128;

/// A position that has not been decided yet.
pub(crate) const NONE: u64 = u64::MAX;

shared_layout! {
    /// Counters of the whole registry ([`crate::snapshot::Totals`]), at its beginning.
    pub(crate) struct Counters[384] {
        0: users: AtomicU64,
        8: offered: AtomicU64,
        16: joined: AtomicU64,
        /// Bytes and messages that ended connections moved through memory.
        24: bytes: AtomicU64,
        32: messages: AtomicU64,
        /// Bytes of those that were not copied twice.
        40: pulled: AtomicU64,
        /// Words of the hash table that are in use, or more, by those of killed processes.
        48: in_table: AtomicU64,
        56: _gap: [AtomicU32; 18],
        /// One counter for each [`crate::Reason`].
        128: fallbacks: [AtomicU64; FALLBACKS_MAX],
    }
}

/// One bit for each slot: taken or not.
pub(crate) const BITMAP: usize = 1_024;
/// The hash table of offers: buckets of sixteen 32-bit words, each a slot's number plus one.
pub(crate) const BUCKETS: usize = PAGE;
pub(crate) const BUCKETS_COUNT: usize = 4_096;
pub(crate) const WAYS: usize = 16;
/// What each slot is: an [`Entry`].
const DIRECTORY: usize = BUCKETS + BUCKETS_COUNT * WAYS * 4;
/// Each one an [`AlarmEntry`].
const ALARMS: usize = DIRECTORY + CONNECTIONS_MAX * size_of::<Entry>();
/// What is accessible from the start.
pub(crate) const COMMON_LEN: usize = ALARMS + ALARMS_MAX * size_of::<AlarmEntry>();

shared_layout! {
    /// An alarm.
    pub(crate) struct AlarmEntry[128] {
        /// The process that has it; 0: nobody.
        0: owner: AtomicU32,
        4: _gap: [AtomicU32; 1],
        /// See [`weft_sys::Alarm`].
        8: word: AtomicU64,
        /// The inode of the pipe by which it is rung; 0: none ([`crate::pipes`]).
        16: pipe: AtomicU64,
        /// Whether a pipe has been made for it.
        24: made: AtomicU64,
        32: _rest: [AtomicU32; 24],
    }
}

shared_layout! {
    /// A slot's line in the directory.
    pub(crate) struct Entry[128] {
        /// Whether a connection has the slot, and how many have had it: [`weft_sys::SlotState`].
        0: state: AtomicU64,
        /// Two addresses of 16 bytes: the connector's and the acceptor's.
        8: addresses: [AtomicU64; 4],
        /// The connector's port in the upper half, the acceptor's in the lower.
        40: ports: AtomicU32,
        44: _gap: [AtomicU32; 1],
        /// How many bytes of each direction's big ring have memory.
        48: filled: [AtomicU32; 2],
        /// The connection's flow control ([`crate::flow::Flow`]).
        56: flow: AtomicU32,
        /// What carries it: 0 memory, 1 verbs.
        60: transport: AtomicU32,
        /// Why it has gone back to TCP: 0, or one more than the number of a [`crate::Reason`].
        64: left: AtomicU32,
        68: _gap_2: [AtomicU32; 1],
        /// The kernel's number for the network namespace of the connection (`SO_NETNS_COOKIE`).
        72: namespace: AtomicU64,
        80: _rest: [AtomicU32; 12],
    }
}

/// A slot: a page of words, then four rings.
pub(crate) const SLOT_LEN: usize = PAGE + 2 * SMALL_RING_LEN + 2 * BIG_RING_LEN;
/// What of it is there from the start.
pub(crate) const SLOT_SMALL_LEN: usize = PAGE + 2 * SMALL_RING_LEN;

/// Bytes of a program's name.
pub(crate) const PROGRAM_LEN: usize = 16;

shared_layout! {
    /// The words of one side.
    pub(crate) struct Side[256] {
        0: joined: AtomicU32 = 0,
        /// How many of `holders` there are, and one more if there are `uncounted` ones.
        4: refs: AtomicU32,
        8: pid: AtomicU32 = 0,
        12: shut_write: AtomicU32 = 0,
        16: shut_read: AtomicU32 = 0,
        /// The peer has gone for good: what is sent is the kernel's to refuse.
        20: gone: AtomicU32 = 0,
        /// The kernel's number for the socket (`SO_COOKIE`).
        24: cookie: AtomicU64 = 0,
        32: program: [AtomicU64; PROGRAM_LEN / 8] = 0,
        /// It has been reported to the program that the peer reset the connection.
        48: reset_reported: AtomicU32 = 0,
        /// `TCP_NODELAY` and `TCP_CORK` as the program set them ([`crate::Delays`]); the kernel,
        /// which carries wakeups, never keeps any back.
        52: delays: AtomicU32 = 0,
        /// The program wants one-sided operations: [`GrantEntry`].
        56: extended: AtomicU32 = 0,
        /// Others than `holders` may hold the socket.
        60: uncounted: AtomicU32,
        /// The descriptor that `pid` had when it made its end: where to look for it first.
        64: fd: AtomicU32 = 0,
        68: _gap: [AtomicU32; 15],
        /// Threads that sleep in the kernel until something comes.
        128: sleepers: AtomicU32 = 0,
        /// A wakeup is on its way, or has come and nobody has drained it.
        132: wakeup: AtomicU32 = 0,
        /// Somebody sleeps until there is room: 1 by a futex, 2 in the kernel's poll.
        136: space_wanted: AtomicU32 = 0,
        /// Somebody sleeps on this word until something comes.
        140: futex_wait: AtomicU32 = 0,
        /// The last of this side is about to close the socket.
        144: parted: AtomicU32 = 0,
        148: _gap_2: [AtomicU32; 1],
        /// Which sleep that is ([`weft_sys::Tag`]).
        152: tag: AtomicU64 = 0,
        /// Who holds the socket: [`crate::holders`].
        160: holders: [AtomicU32; HOLDERS_MAX],
    }
}

shared_layout! {
    /// The words of one direction.
    pub(crate) struct Direction[256] {
        // The producer's. In the first line what the consumer reads again and again while it waits,
        // and hence nothing else that the producer writes: each write has to get the line back.
        /// Bytes put into the rings so far.
        0: head: AtomicU64 = 0,
        /// How many bytes go over TCP before the rings are used.
        8: switch_at: AtomicU64 = NONE,
        /// The position from which on the big ring is used.
        16: grown_at: AtomicU64 = NONE,
        /// The position after which TCP is used again.
        24: back_at: AtomicU64 = NONE,
        /// Sources posted so far.
        32: posted: AtomicU64 = 0,
        /// When the oldest of the unread bytes were put ([`weft_sys::time_stamp`]).
        40: arrived_at: AtomicU64 = 0,
        /// What was deferred is on its way into the ring.
        48: reclaiming: AtomicU32 = 0,
        /// Unread bytes are on their way back into the kernel's queue.
        52: returning: AtomicU32 = 0,
        56: _gap: [AtomicU32; 2],
        // In the second what it has for itself, or what is seldom asked for.
        64: lock: AtomicU32 = 0,
        68: _gap_2: [AtomicU32; 1],
        72: tcp_sent: AtomicU64 = 0,
        80: wakeups: AtomicU64 = 0,
        88: messages: AtomicU64 = 0,
        96: stalls: AtomicU64 = 0,
        /// Under flow control by credits: buffers filled so far.
        104: filled: AtomicU64 = 0,
        /// Summed over all stalls: bytes unread then, and bytes that there is memory for.
        112: stalled_used: AtomicU64 = 0,
        120: stalled_allotted: AtomicU64 = 0,
        // The consumer's.
        /// Bytes taken out of the rings so far.
        128: tail: AtomicU64 = 0,
        136: tcp_read: AtomicU64 = 0,
        144: wakeups_taken: AtomicU64 = 0,
        152: reader_lock: AtomicU32 = 0,
        156: _gap_3: [AtomicU32; 1],
        /// Under flow control by credits: how far the oldest buffer has been read.
        160: read_of_buffer: AtomicU64 = 0,
        /// Likewise: buffers emptied so far, and how many of them have been reported to the
        /// producer.
        168: emptied: AtomicU64 = 0,
        176: acknowledged: AtomicU64 = 0,
        /// Sources that are over, as far as the consumer has looked.
        184: sources_taken: AtomicU64 = 0,
        /// Bytes that it has pulled out of sources.
        192: pulled: AtomicU64 = 0,
        /// It may not read the producer's memory.
        200: refused: AtomicU32 = 0,
        /// The last edge that an epoll instance has reported of what the consumer may read: what it
        /// was asked for (0: none was reported), and what there was ([`crate::ReportedEdge`]).
        204: edge_asked: AtomicU32 = 0,
        208: edge_come: AtomicU64 = 0,
        216: edge_ends: AtomicU32 = 0,
        220: _gap_4: [AtomicU32; 1],
        224: edge_received: AtomicU64 = NONE,
        232: edge_instance: AtomicU64 = 0,
        /// Bytes that TCP has brought to the consumer though they had come before: they were in
        /// memory, or have been taken out of the kernel's queue and sent again.
        240: resent: AtomicU64 = 0,
        248: _rest: [AtomicU32; 2],
    }
}

shared_layout! {
    /// A source of a direction: see [`crate::source`].
    pub(crate) struct SourceEntry[128] {
        /// Whether it is open, where its bytes lie, which source it is, and how many have been
        /// pulled.
        0: state: AtomicU64,
        /// The process whose memory it is.
        8: pid: AtomicU32,
        12: pieces_count: AtomicU32,
        /// Where that process has its proof, and what it is.
        16: proof_at: AtomicU64,
        24: proof: AtomicU64,
        /// Address and length of each piece.
        32: pieces: [[AtomicU64; 2]; PIECES_MAX],
        /// The address of a copy of all pieces, which counts once they have been moved there.
        96: copy: AtomicU64,
        104: _rest: [AtomicU32; 6],
    }
}

shared_layout! {
    /// What a side lets its peer do with its memory: one registration.
    pub(crate) struct GrantEntry[64] {
        /// 0: free; 1: being filled in; else the secret that the peer must know.
        0: state: AtomicU64 = 0,
        /// Operations of peers that are under way.
        8: users: AtomicU32 = 0,
        /// Whose segment it is, and the segment's descriptor and inode there.
        12: pid: AtomicU32,
        16: fd: AtomicU32,
        20: rights: AtomicU32,
        24: inode: AtomicU64,
        /// The part of the segment, in bytes.
        32: offset: AtomicU64,
        40: len: AtomicU64,
        48: _rest: [AtomicU32; 4],
    }
}

shared_layout! {
    /// The words of a slot. Of a pair, the connector's come first.
    pub(crate) struct Page[PAGE] {
        0: sides: [Side; 2],
        512: directions: [Direction; 2],
        1024: grants: [[GrantEntry; GRANTS_MAX]; 2],
        2048: sources: [[SourceEntry; SOURCES_MAX]; 2],
    }
}

pub(crate) const fn alarm_at(index: usize) -> usize {
    ALARMS + index * size_of::<AlarmEntry>()
}

pub(crate) const fn entry_at(slot: usize) -> usize {
    DIRECTORY + slot * size_of::<Entry>()
}

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn small_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + PAGE + direction * SMALL_RING_LEN
}

pub(crate) const fn big_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + SLOT_SMALL_LEN + direction * BIG_RING_LEN
}

const _: () = {
    assert!(BITMAP + CONNECTIONS_MAX / 8 <= PAGE, "the bitmap ends with the first page");
    assert!(Reason::ALL.len() <= FALLBACKS_MAX);
    assert!(size_of::<Counters>() <= BITMAP);
    assert!(size_of::<Entry>() == LINES && size_of::<AlarmEntry>() == LINES);
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(SMALL_RING_LEN.is_power_of_two() && BIG_RING_LEN.is_power_of_two());
    assert!(BIG_RING_LEN.is_multiple_of(FILL_LEN) && FILL_LEN.is_multiple_of(PAGE));
};
