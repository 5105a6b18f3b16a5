//! The simulation's data channels, which decide whether and when blocks arrive.

use fastrand::Rng;

use super::super::Write;
use crate::wire::{BlockFlags, BlockHeader};

/// A data channel. Each end opens and closes it independently.
#[derive(Debug)]
pub(super) struct Channel {
    /// Whether the channel is open at the source and at the sink.
    pub(super) is_open: [bool; 2],
    /// Whether the channel has broken at the source and at the sink, possibly before it was open.
    pub(super) is_dead: [bool; 2],
    /// When the sink will open it.
    pub(super) sink_up: u64,
    /// Nothing arrives after this time.
    pub(super) cut: u64,
    delay: u64,
    /// Time for a unit of payload.
    slowness: u64,
    /// When the last block was sent.
    free_at: u64,
    /// When the last block arrived.
    arrived_at: u64,
}

/// The times of the events of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The header arrives.
    pub(super) begin: u64,
    /// The last byte arrives.
    pub(super) finish: u64,
    /// The source's transport completes the write.
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

    /// Starts a block, and returns its times. If the sink sees arrivals (`is_seen`), the write
    /// completes when the block has been sent, otherwise when the source learns that it has
    /// arrived.
    pub(super) fn times(&mut self, rng: &mut Rng, now: u64, len: u32, is_seen: bool) -> Times {
        let start = now.max(self.free_at);
        let takes = 1 + self.slowness * u64::from(len) / 100;
        self.free_at = start + takes;
        let begin = (start + self.delay).max(self.sink_up + 1).max(self.arrived_at + 1);
        let finish = begin + takes + rng.u64(0..5);
        self.arrived_at = finish;
        // A thread of the source may report the completion late, even after the acknowledgement.
        let late = if rng.u8(..4) == 0 { rng.u64(..1_500) } else { 0 };
        let done = if is_seen { start + rng.u64(0..=takes) } else { finish + self.delay } + late;
        Times { begin, finish, done }
    }
}

/// A write in progress.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) session: usize,
    pub(super) write: Write,
    /// The content of the block at the start of the write.
    pub(super) content: u64,
    pub(super) times: Times,
    /// The transport has not reported the write yet.
    pub(super) is_pending: bool,
    /// The sink is reading the block.
    pub(super) is_arriving: bool,
    /// The transport has returned the block unsent.
    pub(super) is_withdrawn: bool,
    pub(super) is_placed: bool,
}

/// Returns the header of a write's block, neither sealed nor with a record table.
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
