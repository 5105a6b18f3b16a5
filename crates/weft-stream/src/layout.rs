//! Where everything lies in the shared file. Zeros are a valid, empty registry.
//!
//! Words that different processes write at the same time are 128 bytes apart: the CPU fetches
//! pairs of cache lines.

use crate::limits::{
    ALARMS_MAX, BIG_RING_LEN, CONNECTIONS_MAX, FILL_LEN, GRANTS_MAX, HOLDERS_MAX, SMALL_RING_LEN,
};
use crate::reason::Reason;

pub(crate) const PAGE: usize = 4_096;
pub(crate) const LINES: usize = 128;

/// Counters of the whole registry ([`crate::snapshot::Totals`]).
pub(crate) mod totals {
    pub(crate) const USERS: usize = 0;
    pub(crate) const OFFERED: usize = 8;
    pub(crate) const JOINED: usize = 16;
    /// Bytes and messages that ended connections moved through memory.
    pub(crate) const BYTES: usize = 24;
    pub(crate) const MESSAGES: usize = 32;
    /// Bytes of those that were not copied twice.
    pub(crate) const PULLED: usize = 40;
    /// One counter for each [`crate::Reason`].
    pub(crate) const FALLBACKS: usize = 128;
    pub(crate) const FALLBACKS_MAX: usize = 32;
}

/// One bit for each slot: taken or not.
pub(crate) const BITMAP: usize = 1_024;
/// The hash table of offers: buckets of sixteen 32-bit words, each a slot's number plus one.
pub(crate) const BUCKETS: usize = PAGE;
pub(crate) const BUCKETS_COUNT: usize = 4_096;
pub(crate) const WAYS: usize = 16;
/// What each slot is: [`entry`].
pub(crate) const DIRECTORY: usize = BUCKETS + BUCKETS_COUNT * WAYS * 4;
/// Alarms: [`alarm`].
const ALARMS: usize = DIRECTORY + CONNECTIONS_MAX * LINES;
/// What is accessible from the start.
pub(crate) const COMMON_LEN: usize = ALARMS + ALARMS_MAX * LINES;

/// The words of an alarm, at [`alarm_at`].
pub(crate) mod alarm {
    /// The process that has it; 0: nobody.
    pub(crate) const OWNER: usize = 0;
    /// See [`weft_sys::Alarm`].
    pub(crate) const WORD: usize = 8;
    /// The inode of the pipe by which it is rung; 0: none ([`crate::pipes`]).
    pub(crate) const PIPE: usize = 16;
    /// Whether a pipe has been made for it.
    pub(crate) const MADE: usize = 24;
}

pub(crate) const fn alarm_at(index: usize) -> usize {
    ALARMS + index * LINES
}

/// A slot's line in the directory.
pub(crate) mod entry {
    /// Whether a connection has the slot, and how many have had it: [`weft_sys::SlotState`].
    pub(crate) const STATE: usize = 0;
    /// Two addresses of 16 bytes: the connector's and the acceptor's.
    pub(crate) const ADDRESSES: usize = 8;
    /// The connector's port in the upper half, the acceptor's in the lower.
    pub(crate) const PORTS: usize = 40;
    /// Two words: how many bytes of each direction's big ring have memory.
    pub(crate) const FILLED: usize = 48;
    /// The connection's flow control ([`crate::flow::Flow`]).
    pub(crate) const FLOW: usize = 56;
    /// Why it has gone back to TCP: 0, or one more than the number of a [`crate::Reason`].
    pub(crate) const LEFT: usize = 64;
    /// What carries it: 0 memory, 1 verbs.
    pub(crate) const TRANSPORT: usize = 60;
    /// The kernel's number for the network namespace of the connection (`SO_NETNS_COOKIE`).
    pub(crate) const NAMESPACE: usize = 72;
}

/// A slot: a page of words, then four rings.
pub(crate) const SLOT_LEN: usize = PAGE + 2 * SMALL_RING_LEN + 2 * BIG_RING_LEN;
/// What of it is there from the start.
pub(crate) const SLOT_SMALL_LEN: usize = PAGE + 2 * SMALL_RING_LEN;
pub(crate) const FILE_LEN: usize = COMMON_LEN + CONNECTIONS_MAX * SLOT_LEN;

/// The words of one side, at [`side_at`].
pub(crate) mod side {
    pub(crate) const JOINED: usize = 0;
    /// How many of [`HOLDERS`] there are, and one more if there are [`UNCOUNTED`] ones.
    pub(crate) const REFS: usize = 4;
    pub(crate) const PID: usize = 8;
    pub(crate) const SHUT_WRITE: usize = 12;
    pub(crate) const SHUT_READ: usize = 16;
    /// The peer has gone for good: what is sent is the kernel's to refuse.
    pub(crate) const GONE: usize = 20;
    pub(crate) const COOKIE: usize = 24;
    pub(crate) const PROGRAM: usize = 32;
    pub(crate) const PROGRAM_LEN: usize = 16;
    /// The program has been told that the peer reset the connection.
    pub(crate) const RESET_TOLD: usize = 48;
    /// `TCP_NODELAY` and `TCP_CORK` as the program set them ([`crate::Delays`]); the kernel, which
    /// carries bells, never keeps any back.
    pub(crate) const DELAYS: usize = 52;
    /// The program wants one-sided operations: [`super::grant`].
    pub(crate) const EXTENDED: usize = 56;
    /// Others than [`HOLDERS`] may hold the socket.
    pub(crate) const UNCOUNTED: usize = 60;
    /// The descriptor that [`PID`] had when it made its end: where to look for it first.
    pub(crate) const FD: usize = 64;
    /// Threads that sleep in the kernel until something comes.
    pub(crate) const SLEEPERS: usize = 128;
    /// Which sleep that is ([`weft_sys::Tag`]).
    pub(crate) const TAG: usize = 152;
    /// A bell is on its way, or has come and nobody has taken it.
    pub(crate) const BELL: usize = 132;
    /// The last of this side is about to close the socket.
    pub(crate) const PARTED: usize = 144;
    /// Somebody sleeps on this word until something comes.
    pub(crate) const DOZE: usize = 140;
    /// Somebody sleeps until there is room: 1 by a futex, 2 in the kernel's poll.
    pub(crate) const SPACE_WANTED: usize = 136;
    /// Who holds the socket: [`crate::holders`].
    pub(crate) const HOLDERS: usize = 160;
    pub(crate) const LEN: usize = 256;
}

/// The words of one direction, at [`direction_at`].
pub(crate) mod direction {
    // The producer's. In the first line what the consumer reads again and again while it waits,
    // and hence nothing else that the producer writes: each write has to get the line back.
    pub(crate) const HEAD: usize = 0;
    pub(crate) const SWITCH_AT: usize = 8;
    pub(crate) const GROWN_AT: usize = 16;
    pub(crate) const BACK_AT: usize = 24;
    /// Sources posted so far.
    pub(crate) const POSTED: usize = 32;
    /// When the oldest of the unread bytes were put ([`weft_sys::time_stamp`]).
    pub(crate) const ARRIVED_AT: usize = 40;
    /// What was promised is on its way into the ring.
    pub(crate) const RECLAIMING: usize = 48;
    /// Unread bytes are on their way back into the kernel's queue.
    pub(crate) const RETURNING: usize = 52;
    // In the second what it has for itself, or what is seldom asked for.
    pub(crate) const LOCK: usize = 64;
    pub(crate) const TCP_SENT: usize = 72;
    pub(crate) const BELLS: usize = 80;
    pub(crate) const MESSAGES: usize = 88;
    pub(crate) const STALLS: usize = 96;
    /// Under flow control by credits: buffers filled so far.
    pub(crate) const FILLED: usize = 104;
    /// Summed over all stalls: bytes unread then, and bytes that there is memory for.
    pub(crate) const STALLED_USED: usize = 112;
    pub(crate) const STALLED_ALLOTTED: usize = 120;
    // The consumer's.
    pub(crate) const TAIL: usize = 128;
    pub(crate) const TCP_READ: usize = 136;
    pub(crate) const BELLS_TAKEN: usize = 144;
    pub(crate) const READER_LOCK: usize = 152;
    /// Under flow control by credits: how far the oldest buffer has been read.
    pub(crate) const READ_OF_BUFFER: usize = 160;
    /// Likewise: buffers emptied so far, and how many of them the producer has been told of.
    pub(crate) const EMPTIED: usize = 168;
    pub(crate) const ACKNOWLEDGED: usize = 176;
    /// Sources that are over, as far as the consumer has looked.
    pub(crate) const SOURCES_TAKEN: usize = 184;
    /// Bytes that it has pulled out of sources.
    pub(crate) const PULLED: usize = 192;
    /// It may not read the producer's memory.
    pub(crate) const REFUSED: usize = 200;
    pub(crate) const LEN: usize = 256;
}

/// Sources of a direction: see [`crate::source`]. They lie behind the words in a slot's page.
pub(crate) mod source {
    /// Whether it is open, where its bytes lie, which source it is, and how many have been pulled.
    pub(crate) const STATE: usize = 0;
    /// The process whose memory it is.
    pub(crate) const PID: usize = 8;
    pub(crate) const PIECES: usize = 12;
    /// Where that process has its proof, and what it is.
    pub(crate) const PROOF_AT: usize = 16;
    pub(crate) const PROOF: usize = 24;
    /// Address and length of each piece.
    pub(crate) const PIECE: usize = 32;
    pub(crate) const PIECES_MAX: usize = 4;
    /// The address of a copy of all pieces, which counts once they have been moved there.
    pub(crate) const COPY: usize = PIECE + PIECES_MAX * 16;
    pub(crate) const LEN: usize = 128;
}
const SOURCES: usize = PAGE / 2;
/// Sources of a direction that may be open at a time.
pub(crate) const SOURCES_MAX: usize = (PAGE - SOURCES) / 2 / source::LEN;

pub(crate) const fn source_at(slot: usize, direction: usize, index: usize) -> usize {
    slot_at(slot) + SOURCES + (direction * SOURCES_MAX + index) * source::LEN
}

/// What a side lets its peer do with its memory, [`grants_at`]: a line for each registration.
pub(crate) mod grant {
    /// 0: free; 1: being filled in; else the secret that the peer must know.
    pub(crate) const STATE: usize = 0;
    /// Operations of peers that are under way.
    pub(crate) const USERS: usize = 8;
    /// Whose segment it is, and the segment's descriptor and inode there.
    pub(crate) const PID: usize = 12;
    pub(crate) const FD: usize = 16;
    pub(crate) const RIGHTS: usize = 20;
    pub(crate) const INODE: usize = 24;
    /// The part of the segment, in bytes.
    pub(crate) const OFFSET: usize = 32;
    pub(crate) const LENGTH: usize = 40;
    pub(crate) const LEN: usize = 64;
}
/// The grants of both sides lie between the words and the sources.
const GRANTS: usize = PAGE / 4;

pub(crate) const fn entry_at(slot: usize) -> usize {
    DIRECTORY + slot * LINES
}

pub(crate) const fn slot_at(slot: usize) -> usize {
    COMMON_LEN + slot * SLOT_LEN
}

pub(crate) const fn side_at(slot: usize, side: usize) -> usize {
    slot_at(slot) + side * side::LEN
}

pub(crate) const fn direction_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + 2 * side::LEN + direction * direction::LEN
}

pub(crate) const fn grants_at(slot: usize, side: usize) -> usize {
    slot_at(slot) + GRANTS + side * GRANTS_MAX * grant::LEN
}

pub(crate) const fn small_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + PAGE + direction * SMALL_RING_LEN
}

pub(crate) const fn big_ring_at(slot: usize, direction: usize) -> usize {
    slot_at(slot) + SLOT_SMALL_LEN + direction * BIG_RING_LEN
}

const _: () = {
    assert!(BITMAP + CONNECTIONS_MAX / 8 <= PAGE, "the bitmap ends with the first page");
    assert!(Reason::ALL.len() <= totals::FALLBACKS_MAX);
    assert!(totals::FALLBACKS + totals::FALLBACKS_MAX * 8 <= BITMAP);
    assert!(side::HOLDERS + 4 * HOLDERS_MAX <= side::LEN);
    assert!(COMMON_LEN.is_multiple_of(PAGE) && SLOT_LEN.is_multiple_of(PAGE));
    assert!(2 * side::LEN + 2 * direction::LEN <= GRANTS);
    assert!(GRANTS + 2 * GRANTS_MAX * grant::LEN <= SOURCES);
    assert!(source::COPY + 8 <= source::LEN);
    assert!(SMALL_RING_LEN.is_power_of_two() && BIG_RING_LEN.is_power_of_two());
    assert!(BIG_RING_LEN.is_multiple_of(FILL_LEN) && FILL_LEN.is_multiple_of(PAGE));
};
