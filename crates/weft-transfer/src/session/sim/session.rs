//! One simulated session: a source, a sink, and the programs that use them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fastrand::Rng;

use super::super::{
    Arrivals, Ending, Freed, Ready, RemoteBuffer, Sink, SinkSetup, Source, SourceSetup, Write,
};

pub(super) type Check = Result<(), String>;

/// Bytes of payload of a block.
pub(super) const BLOCK_SIZE: u32 = 1_000;
/// The content of a block or buffer that holds no valid data.
pub(super) const NOTHING: u64 = u64::MAX;
/// Flag in the content of a buffer whose block the sink's program has opened in place.
const OPENED: u64 = 1 << 63;

/// The parameters of a simulated session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) blocks: u64,
    pub(super) source_pool: u32,
    pub(super) sink_pool: u32,
    pub(super) first_grant: u32,
    pub(super) writes_max: u32,
    /// The time that the programs take to fill a block, and to use one.
    pub(super) load: u64,
    pub(super) drain: u64,
    /// The number of messages of records that each end sends.
    pub(super) records: [u32; 2],
    /// Which end cancels the session, and when.
    pub(super) cancel: Option<(bool, u64)>,
}

impl Plan {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let speed = |rng: &mut Rng| [0, 5, 50, 400][rng.usize(..4)];
        let records = |rng: &mut Rng| if rng.bool() { rng.u32(..40) } else { 0 };
        Self {
            blocks: if rng.u8(..8) == 0 { 0 } else { rng.u64(1..80) },
            source_pool: rng.u32(1..20),
            sink_pool: rng.u32(1..16),
            first_grant: rng.u32(..4),
            writes_max: rng.u32(1..5),
            load: speed(rng),
            drain: speed(rng),
            records: [records(rng), records(rng)],
            cancel: (rng.u8(..4) == 0).then(|| (rng.bool(), rng.u64(..6_000))),
        }
    }
}

/// A session and the state of its programs.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u32,
    pub(super) plan: Plan,
    arrivals: Arrivals,
    pub(super) source: Option<Source>,
    pub(super) sink: Option<Sink>,
    /// The contents of the source's blocks.
    pub(super) blocks: Vec<u64>,
    pub(super) idle_blocks: Vec<u32>,
    /// Sequence numbers in the order in which the source's program fills blocks.
    pub(super) to_load: VecDeque<u64>,
    /// The contents of the sink's buffers.
    pub(super) buffers: Vec<u64>,
    /// The sequence number that uses a grant, by buffer and generation.
    uses: BTreeMap<(u32, u32), u64>,
    pub(super) arrived: BTreeSet<u64>,
    pub(super) delivered: u64,
    pub(super) draining: BTreeMap<u32, u64>,
    pub(super) freed: u64,
    records_sent: [u32; 2],
    records_received: [u32; 2],
}

impl Session {
    pub(super) fn new(rng: &mut Rng, number: u32, arrivals: Arrivals) -> Self {
        let plan = Plan::new(rng);
        let mut to_load: Vec<u64> = (0..plan.blocks).collect();
        // Swap neighbours, as far as the pool can hold the blocks between.
        if plan.source_pool > 2 {
            for at in (1..to_load.len()).step_by(2) {
                if rng.bool() {
                    to_load.swap(at - 1, at);
                }
            }
        }
        Self {
            number,
            plan,
            arrivals,
            source: None,
            sink: None,
            blocks: vec![NOTHING; plan.source_pool as usize],
            idle_blocks: (0..plan.source_pool).collect(),
            to_load: to_load.into(),
            buffers: vec![NOTHING; plan.sink_pool as usize],
            uses: BTreeMap::new(),
            arrived: BTreeSet::new(),
            delivered: 0,
            draining: BTreeMap::new(),
            freed: 0,
            records_sent: [0; 2],
            records_received: [0; 2],
        }
    }

    pub(super) fn open_source(&mut self) {
        self.source = Some(Source::new(SourceSetup {
            session: self.number,
            blocks: self.plan.source_pool,
            block_size: BLOCK_SIZE,
            arrivals: self.arrivals,
            writes_max: self.plan.writes_max,
        }));
    }

    pub(super) fn open_sink(&mut self) {
        let remote = |index: u32| RemoteBuffer { address: u64::from(index) << 20, key: index };
        self.sink = Some(Sink::new(SinkSetup {
            session: self.number,
            buffers: (0..self.plan.sink_pool).map(remote).collect(),
            block_size: BLOCK_SIZE,
            arrivals: self.arrivals,
            first_grant: self.plan.first_grant,
        }));
    }

    /// Reports a channel up to an end. Returns false if that end refuses it.
    pub(super) fn channel_up(&mut self, is_sink: bool, channel: u16) -> bool {
        match (is_sink, &mut self.source, &mut self.sink) {
            (false, Some(source), _) => source.channel_up(channel),
            (true, _, Some(sink)) => sink.channel_up(channel),
            _ => true,
        }
    }

    /// Returns the content of a block.
    pub(super) fn content(&self, seq: u64) -> u64 {
        u64::from(self.number) << 32 | seq
    }

    /// Returns the length of a block. The last one is shorter.
    pub(super) fn len(&self, seq: u64) -> u32 {
        if seq + 1 == self.plan.blocks { 7 } else { BLOCK_SIZE }
    }

    /// Checks a write that the source starts.
    pub(super) fn check_write(&mut self, write: &Write) -> Check {
        let grant = (write.credit.buffer, write.credit.generation);
        let seq = *self.uses.entry(grant).or_insert(write.seq);
        if seq != write.seq {
            return Err(format!("{grant:?} is used by block {seq} and block {}", write.seq));
        }
        if write.len != self.len(write.seq) {
            return Err(format!("block {} has {} bytes", write.seq, write.len));
        }
        Ok(())
    }

    /// Checks a block that the sink delivers to its program.
    pub(super) fn check_ready(&mut self, ready: Ready) -> Check {
        let Ready { seq, buffer, len, .. } = ready;
        if seq != self.delivered {
            return Err(format!("block {seq} is out of order: {} is next", self.delivered));
        }
        self.delivered += 1;
        let holds = self.buffers[buffer as usize];
        if holds != self.content(seq) || len != self.len(seq) {
            return Err(format!("buffer {buffer} holds {holds:x}, not block {seq}"));
        }
        self.buffers[buffer as usize] = OPENED | seq;
        self.draining.insert(buffer, seq);
        Ok(())
    }

    /// Checks a block that the sink's program has used.
    pub(super) fn check_release(&mut self, buffer: u32) -> Check {
        let seq = self.draining.remove(&buffer).expect("it is used once");
        let holds = std::mem::replace(&mut self.buffers[buffer as usize], NOTHING);
        if holds != OPENED | seq {
            return Err(format!("buffer {buffer} holds {holds:x} when block {seq} has been used"));
        }
        Ok(())
    }

    /// Checks a block that the source returns.
    pub(super) fn check_freed(&mut self, freed: Freed) -> Check {
        let Freed { block, seq, has_arrived } = freed;
        if has_arrived && !self.arrived.contains(&seq) {
            return Err(format!("block {seq} is free and has not arrived"));
        }
        self.blocks[block as usize] = NOTHING;
        self.idle_blocks.push(block);
        self.freed += 1;
        Ok(())
    }

    /// Checks the invariants that hold at all times.
    pub(super) fn check(&self) -> Check {
        let Some(sink) = &self.sink else { return Ok(()) };
        let counts = sink.counts();
        let sum = counts.free + counts.granted + counts.arriving + counts.arrived + counts.draining;
        if sum != self.plan.sink_pool || counts.draining as usize != self.draining.len() {
            return Err(format!("{counts:?} of a pool of {}", self.plan.sink_pool));
        }
        let Some(source) = &self.source else { return Ok(()) };
        if source.granted() > self.plan.sink_pool as usize {
            return Err(format!("the source has {} credits", source.granted()));
        }
        Ok(())
    }

    /// Sends and receives records as far as possible. Returns whether there was progress.
    pub(super) fn exchange_records(&mut self) -> Result<bool, String> {
        let mut is_progress = false;
        for side in 0..2 {
            let len = |index: u32| 1 + (index as usize * 7_919) % 60_000;
            loop {
                let index = self.records_sent[side];
                if index == self.plan.records[side] {
                    break;
                }
                let records = vec![(index % 251) as u8; len(index)];
                let sent = match (side, &mut self.source, &mut self.sink) {
                    (0, Some(source), _) => source.send_records(records).is_ok(),
                    (1, _, Some(sink)) => sink.send_records(records).is_ok(),
                    _ => false,
                };
                if !sent {
                    break;
                }
                is_progress = true;
                self.records_sent[side] += 1;
            }
            loop {
                let received = match (side, &mut self.source, &mut self.sink) {
                    (0, _, Some(sink)) => sink.poll_records(),
                    (1, Some(source), _) => source.poll_records(),
                    _ => None,
                };
                let Some(records) = received else { break };
                is_progress = true;
                let index = self.records_received[side];
                self.records_received[side] += 1;
                if records.len() != len(index) || records[0] != (index % 251) as u8 {
                    return Err(format!("records {index} are {} bytes", records.len()));
                }
            }
        }
        Ok(is_progress)
    }

    /// Finishes the source and the sink once they have no more work.
    pub(super) fn finish(&mut self) {
        let [of_source, of_sink] =
            [0, 1].map(|side| self.records_sent[side] == self.plan.records[side]);
        if let Some(source) = &mut self.source
            && of_source
            && self.to_load.is_empty()
        {
            // It fails if the source was finished before, or if the session is ending.
            let _ = source.finish();
        }
        if let Some(sink) = &mut self.sink
            && of_sink
            && sink.is_delivered()
        {
            let _ = sink.finish();
        }
    }

    /// Checks that the endings of both ends are consistent.
    pub(super) fn check_end(&self) -> Check {
        let (Some(source), Some(sink)) = (&self.source, &self.sink) else {
            return Err(format!("session {} waits for ever to be opened", self.number));
        };
        let (Some(of_source), Some(of_sink)) = (source.ending(), sink.ending()) else {
            return Err(format!("session {} waits for ever: {source:?}\n{sink:?}", self.number));
        };
        let is_complete = |ending: &Ending| *ending == Ending::Complete;
        // A sink that has finished does not see a later cancellation by the source.
        let is_late = is_complete(of_sink)
            && self.plan.cancel.is_some()
            && matches!(of_source, Ending::Cancelled(_));
        if (is_complete(of_source) != is_complete(of_sink) && !is_late)
            || (self.plan.cancel.is_none() && !is_complete(of_sink))
        {
            return Err(format!("the ends are {of_source:?} and {of_sink:?}"));
        }
        let counts = sink.counts();
        if counts.free != self.plan.sink_pool || !sink.is_memory_free() {
            return Err(format!("at the end there are {counts:?}"));
        }
        if self.idle_blocks.len() != self.blocks.len() {
            return Err(format!("{} blocks are free at the end", self.idle_blocks.len()));
        }
        if is_complete(of_source)
            && (self.delivered != self.plan.blocks || self.records_received != self.plan.records)
        {
            return Err(format!("{} blocks of {}", self.delivered, self.plan.blocks));
        }
        Ok(())
    }
}
