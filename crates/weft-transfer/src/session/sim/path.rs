//! Data channels of the simulation: when what arrives, and what does not.

use fastrand::Rng;

use super::super::Write;
use crate::wire::{BlockFlags, BlockHeader};

/// A data channel. Each end opens and closes it at times of its own.
#[derive(Debug)]
pub(super) struct Channel {
    /// Whether the source, and the sink, have it open.
    pub(super) is_open: [bool; 2],
    /// The same for what has broken there, even before it was open.
    pub(super) is_dead: [bool; 2],
    /// When the sink will have it open.
    pub(super) sink_up: u64,
    /// Nothing arrives after this time.
    pub(super) cut: u64,
    delay: u64,
    /// Time that a unit of payload takes.
    slowness: u64,
    /// When the last block has left.
    free_at: u64,
    /// When the last block has arrived.
    arrived_at: u64,
}

/// When the things of a write happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The header is there.
    pub(super) begin: u64,
    /// The last byte is there.
    pub(super) finish: u64,
    /// The source's transport is done with it.
    pub(super) done: u64,
}

impl Channel {
    pub(super) fn new(rng: &mut Rng, sink_up: u64) -> Self {
        Self {
            is_open: [false; 2],
            is_dead: [false; 2],
            sink_up,
            cut: u64::MAX,
            delay: rng.u64(1..200),
            slowness: rng.u64(0..4),
            free_at: 0,
            arrived_at: 0,
        }
    }

    /// A block is given to it. `is_seen`: the source's kernel is done with it when it has left;
    /// otherwise it is done when the source has learnt that it is placed.
    pub(super) fn times(&mut self, rng: &mut Rng, now: u64, len: u32, is_seen: bool) -> Times {
        let start = now.max(self.free_at);
        let takes = 1 + self.slowness * u64::from(len) / 100;
        self.free_at = start + takes;
        let begin = (start + self.delay).max(self.sink_up + 1).max(self.arrived_at + 1);
        let finish = begin + takes + rng.u64(0..5);
        self.arrived_at = finish;
        // A thread of the source may be late in saying so, after the acknowledgement even.
        let late = if rng.u8(..4) == 0 { rng.u64(..1_500) } else { 0 };
        let done = if is_seen { start + rng.u64(0..=takes) } else { finish + self.delay } + late;
        Times { begin, finish, done }
    }
}

/// A write that is under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) session: usize,
    pub(super) write: Write,
    /// What the block had when it was given to the channel.
    pub(super) content: u64,
    pub(super) times: Times,
    /// The transport has not reported it yet.
    pub(super) is_pending: bool,
    /// The sink reads it.
    pub(super) is_arriving: bool,
    /// It was given back unsent.
    pub(super) is_withdrawn: bool,
    pub(super) is_placed: bool,
}

/// The header of a block that a session writes, without a seal or a table of records.
pub(super) fn header(session: u32, write: &Write) -> BlockHeader {
    BlockHeader {
        session,
        flags: BlockFlags::default(),
        seq: write.seq,
        nonce: 0,
        len: write.len,
        table_len: 0,
        buffer: write.credit.buffer,
        generation: write.credit.generation,
    }
}
