//! The words of a slot: what both ends of a connection, and their relatives, know of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_sys::{Doze, Waits};

use crate::layout::{direction, direction_at, side, side_at};
use crate::registry::Registry;

/// A position that has not been decided yet.
pub(crate) const NONE: u64 = u64::MAX;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Called `connect(2)`.
    Connector = 0,
    /// Called `accept(2)`.
    Acceptor = 1,
}

impl Role {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// How far a side has agreed.
pub(crate) mod joined {
    /// The connector: its offer stands. The acceptor: nobody has come yet.
    pub(crate) const NO: u32 = 0;
    /// The acceptor looks at the rings.
    pub(crate) const JOINED: u32 = 1;
    /// The connector has seen that, and looks at them, too.
    pub(crate) const CONFIRMED: u32 = 2;
}

/// One side's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) joined: &'static AtomicU32,
    /// How many hold the socket, as far as is known ([`crate::holders`]).
    pub(crate) refs: &'static AtomicU32,
    pub(crate) pid: &'static AtomicU32,
    /// A descriptor of that process's for the socket, at first.
    pub(crate) fd: &'static AtomicU32,
    pub(crate) shut_write: &'static AtomicU32,
    pub(crate) shut_read: &'static AtomicU32,
    pub(crate) gone: &'static AtomicU32,
    pub(crate) reset_told: &'static AtomicU32,
    pub(crate) delays: &'static AtomicU32,
    pub(crate) extended: &'static AtomicU32,
    /// The kernel's number for the socket (`SO_COOKIE`).
    pub(crate) cookie: &'static AtomicU64,
    pub(crate) program: [&'static AtomicU64; 2],
    pub(crate) sleepers: &'static AtomicU32,
    pub(crate) tag: &'static AtomicU64,
    pub(crate) bell: &'static AtomicU32,
    pub(crate) space_wanted: &'static AtomicU32,
    pub(crate) doze: &'static AtomicU32,
    pub(crate) parted: &'static AtomicU32,
}

impl Side {
    pub(crate) fn of(registry: &'static Registry, slot: usize, role: Role) -> Self {
        let at = side_at(slot, role as usize);
        let word = |offset| registry.word(at + offset);
        let word64 = |offset| registry.word64(at + offset);
        Self {
            joined: word(side::JOINED),
            refs: word(side::REFS),
            pid: word(side::PID),
            fd: word(side::FD),
            shut_write: word(side::SHUT_WRITE),
            shut_read: word(side::SHUT_READ),
            gone: word(side::GONE),
            reset_told: word(side::RESET_TOLD),
            delays: word(side::DELAYS),
            extended: word(side::EXTENDED),
            cookie: word64(side::COOKIE),
            program: [word64(side::PROGRAM), word64(side::PROGRAM + 8)],
            sleepers: word(side::SLEEPERS),
            tag: word64(side::TAG),
            bell: word(side::BELL),
            space_wanted: word(side::SPACE_WANTED),
            doze: word(side::DOZE),
            parted: word(side::PARTED),
        }
    }

    /// The words by which its threads wait.
    #[inline]
    pub(crate) fn waits(&self) -> Waits<'static> {
        Waits {
            sleepers: self.sleepers,
            tag: self.tag,
            bell: self.bell,
            doze: Doze::on(self.doze),
            wanted: self.space_wanted,
        }
    }

    /// As at the start of a connection.
    pub(crate) fn reset(&self) {
        let words = [
            self.joined,
            self.pid,
            self.fd,
            self.shut_write,
            self.shut_read,
            self.gone,
            self.reset_told,
            self.delays,
            self.extended,
            self.sleepers,
            self.bell,
            self.space_wanted,
            self.doze,
            self.parted,
        ];
        words.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.cookie.store(0, Ordering::Relaxed);
        self.tag.store(0, Ordering::Relaxed);
        self.program.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// One direction's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    /// Bytes put into the rings so far.
    pub(crate) head: &'static AtomicU64,
    /// How many bytes go over TCP before the rings are used.
    pub(crate) switch_at: &'static AtomicU64,
    /// The position from which on the big ring is used.
    pub(crate) grown_at: &'static AtomicU64,
    /// The position after which TCP is used again.
    pub(crate) back_at: &'static AtomicU64,
    pub(crate) tcp_sent: &'static AtomicU64,
    pub(crate) bells: &'static AtomicU64,
    pub(crate) lock: &'static AtomicU32,
    pub(crate) messages: &'static AtomicU64,
    pub(crate) stalls: &'static AtomicU64,
    /// When the oldest of the unread bytes were put.
    pub(crate) arrived_at: &'static AtomicU64,
    /// Under flow control by credits: buffers filled so far.
    pub(crate) filled: &'static AtomicU64,
    pub(crate) stalled_used: &'static AtomicU64,
    pub(crate) stalled_allotted: &'static AtomicU64,
    pub(crate) posted: &'static AtomicU64,
    pub(crate) reclaiming: &'static AtomicU32,
    /// Unread bytes are on their way back into the kernel's queue.
    pub(crate) returning: &'static AtomicU32,
    /// Bytes taken out of the rings so far.
    pub(crate) tail: &'static AtomicU64,
    pub(crate) tcp_read: &'static AtomicU64,
    pub(crate) bells_taken: &'static AtomicU64,
    pub(crate) reader_lock: &'static AtomicU32,
    /// Under flow control by credits: bytes read of the oldest buffer.
    pub(crate) read_of_buffer: &'static AtomicU64,
    /// Likewise: buffers emptied so far.
    pub(crate) emptied: &'static AtomicU64,
    /// How many of those the producer has been told of.
    pub(crate) acknowledged: &'static AtomicU64,
    pub(crate) sources_taken: &'static AtomicU64,
    pub(crate) pulled: &'static AtomicU64,
    pub(crate) refused: &'static AtomicU32,
}

impl Direction {
    /// The direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> Self {
        let at = direction_at(slot, from as usize);
        let word = |offset| registry.word(at + offset);
        let word64 = |offset| registry.word64(at + offset);
        Self {
            head: word64(direction::HEAD),
            switch_at: word64(direction::SWITCH_AT),
            grown_at: word64(direction::GROWN_AT),
            back_at: word64(direction::BACK_AT),
            tcp_sent: word64(direction::TCP_SENT),
            bells: word64(direction::BELLS),
            lock: word(direction::LOCK),
            messages: word64(direction::MESSAGES),
            stalls: word64(direction::STALLS),
            arrived_at: word64(direction::ARRIVED_AT),
            filled: word64(direction::FILLED),
            stalled_used: word64(direction::STALLED_USED),
            stalled_allotted: word64(direction::STALLED_ALLOTTED),
            posted: word64(direction::POSTED),
            reclaiming: word(direction::RECLAIMING),
            returning: word(direction::RETURNING),
            tail: word64(direction::TAIL),
            tcp_read: word64(direction::TCP_READ),
            bells_taken: word64(direction::BELLS_TAKEN),
            reader_lock: word(direction::READER_LOCK),
            read_of_buffer: word64(direction::READ_OF_BUFFER),
            emptied: word64(direction::EMPTIED),
            acknowledged: word64(direction::ACKNOWLEDGED),
            sources_taken: word64(direction::SOURCES_TAKEN),
            pulled: word64(direction::PULLED),
            refused: word(direction::REFUSED),
        }
    }

    /// As at the start of a connection.
    pub(crate) fn reset(&self) {
        for word in [self.switch_at, self.grown_at, self.back_at] {
            word.store(NONE, Ordering::Relaxed);
        }
        let counters = [
            self.head,
            self.tcp_sent,
            self.bells,
            self.messages,
            self.stalls,
            self.arrived_at,
            self.posted,
            self.sources_taken,
            self.pulled,
            self.filled,
            self.stalled_used,
            self.stalled_allotted,
            self.tail,
            self.tcp_read,
            self.bells_taken,
            self.read_of_buffer,
            self.emptied,
            self.acknowledged,
        ];
        counters.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.refused.store(0, Ordering::Relaxed);
        self.reclaiming.store(0, Ordering::Relaxed);
        self.returning.store(0, Ordering::Relaxed);
        self.lock.store(0, Ordering::Relaxed);
        self.reader_lock.store(0, Ordering::Relaxed);
    }
}
