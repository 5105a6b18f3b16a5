//! The sink's end of a session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Arrivals;
use super::acks::Arrived;
use super::fault::{Ending, Fault, Misuse};
use super::life::Life;
use super::records::{Records, RecordsFull};
use super::states::{SinkEvent, SinkState};
use crate::limits::GRANTS_MAX;
use crate::wire::{BlockHeader, Body, Cancel, Complete, Credit, Credits, Message, Notice};

/// The data that a source needs to write into a buffer; zeros if the sink reads blocks itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The buffer's address, or its offset in shared memory.
    pub address: u64,
    /// The key that permits remote writes.
    pub key: u32,
}

/// The parameters of a [`Sink`].
#[derive(Clone, Debug)]
pub struct SinkSetup {
    /// The session's number.
    pub session: u32,
    /// The buffers of the pool, numbered from 0 on: at least one, at most `BUFFERS_MAX`.
    pub buffers: Vec<RemoteBuffer>,
    /// The largest payload of a block in bytes.
    pub block_size: u32,
    /// Whether the sink sees arrivals.
    pub arrivals: Arrivals,
    /// The number of buffers that the sink grants before the source asks for any.
    pub first_grant: u32,
}

/// The next block in the order of sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its sequence number.
    pub seq: u64,
    /// The buffer that holds it.
    pub buffer: u32,
    /// The generation of the grant that it used.
    pub generation: u32,
    /// Bytes of payload. If the source writes into memory, compare all four fields with the block's
    /// header.
    pub len: u32,
}

/// Why the sink refuses a block. Read and discard its payload; the next block follows on the data
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockRefused {
    /// The session is over or ending.
    #[error("the session is over")]
    Over,
    /// The channel is not up at this end.
    #[error("channel {0} is closed")]
    Channel(u16),
    /// The block breaks the protocol, and the session is cancelled.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// The number of buffers in each state. Their sum is the size of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Unused buffers.
    pub free: u32,
    /// Buffers for which the source has credits.
    pub granted: u32,
    /// Buffers into which blocks are being read.
    pub arriving: u32,
    /// Buffers with blocks that wait for earlier ones.
    pub arrived: u32,
    /// Buffers that the caller uses.
    pub draining: u32,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    state: SinkState,
    generation: u32,
    seq: u64,
    len: u32,
    channel: u16,
    remote: RemoteBuffer,
}

/// The sink's end of a session: it takes arrivals and returns blocks in order. [The module](super)
/// explains its use.
#[derive(Debug)]
pub struct Sink {
    session: u32,
    block_size: u32,
    arrivals: Arrivals,
    buffers: Vec<Buffer>,
    /// Unused buffers.
    free: Vec<u32>,
    /// Blocks that are being read, by sequence number.
    arriving: BTreeMap<u64, u32>,
    /// Blocks that wait for earlier ones, by sequence number.
    waiting: BTreeMap<u64, u32>,
    /// The sequence number of the next block for the caller.
    next: u64,
    arrived: Arrived,
    /// One above the highest sequence number that has arrived.
    seen_until: u64,
    /// Bytes of the blocks that have arrived.
    bytes: u64,
    counts: SinkCounts,
    /// Requested grants that wait for free buffers.
    owed: u32,
    is_requested: bool,
    channels: BTreeSet<u16>,
    /// Channels that are closed for good.
    closed: BTreeSet<u16>,
    /// Closed channels to report to the source, after the acknowledgements of their blocks.
    losses: BTreeSet<u16>,
    to_close: VecDeque<u16>,
    /// Channels that must be closed at this end.
    closing: BTreeSet<u16>,
    records: Records,
    /// The totals that the source has reported.
    total: Option<Complete>,
    is_finishing: bool,
    life: Life,
}

impl Sink {
    /// Creates a session into which no block has arrived.
    #[must_use]
    pub fn new(setup: SinkSetup) -> Self {
        let count = u32::try_from(setup.buffers.len()).unwrap_or(u32::MAX);
        let buffer = |remote| Buffer {
            state: SinkState::Free,
            generation: 0,
            seq: 0,
            len: 0,
            channel: 0,
            remote,
        };
        Self {
            session: setup.session,
            block_size: setup.block_size,
            arrivals: setup.arrivals,
            buffers: setup.buffers.into_iter().map(buffer).collect(),
            free: (0..count).rev().collect(),
            arriving: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            arrived: Arrived::default(),
            seen_until: 0,
            bytes: 0,
            counts: SinkCounts { free: count, ..SinkCounts::default() },
            owed: setup.first_grant.min(count),
            is_requested: false,
            channels: BTreeSet::new(),
            closed: BTreeSet::new(),
            losses: BTreeSet::new(),
            to_close: VecDeque::new(),
            closing: BTreeSet::new(),
            records: Records::default(),
            total: None,
            is_finishing: false,
            life: Life::new(),
        }
    }

    /// The session's number.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.session
    }

    /// How the session has ended. It is `None` until then, and as long as a write of the source may
    /// still reach a buffer.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.life.ending().filter(|_| self.is_memory_free())
    }

    /// The number of buffers in each state.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        self.counts
    }

    /// The state of a buffer; `None` if there is no such buffer.
    #[must_use]
    pub fn state(&self, buffer: u32) -> Option<SinkState> {
        self.buffers.get(buffer as usize).map(|buffer| buffer.state)
    }

    /// The totals that the source has reported; `None` before that.
    #[must_use]
    pub fn total(&self) -> Option<Complete> {
        self.total
    }

    /// Whether all blocks have been delivered and released, so that [`Sink::finish`] may be called.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        self.total.is_some_and(|total| total.blocks == self.next) && self.counts.draining == 0
    }

    /// Reports to the source that all blocks have been processed.
    ///
    /// # Errors
    /// If blocks are not delivered and released, or the session is already ending.
    pub fn finish(&mut self) -> Result<(), Misuse> {
        if !self.life.is_running() || self.is_finishing {
            return Err(Misuse::Over);
        }
        if !self.is_delivered() {
            return Err(Misuse::Incomplete);
        }
        self.is_finishing = true;
        self.reclaim();
        Ok(())
    }

    /// Ends the session before it is complete.
    pub fn cancel(&mut self, cancel: Cancel) {
        self.life.cancel(cancel);
        self.losses.clear();
    }

    /// Whether the source can no longer write into the buffers, so that their memory can be reused:
    /// the session is over, or the source has reported that it is closed and this end has closed
    /// the channels that the source lost.
    #[must_use]
    pub fn is_memory_free(&self) -> bool {
        self.life.is_peer_closed() && self.counts.arriving == 0 && self.closing.is_empty()
    }

    /// Sends records to the layer above the source.
    ///
    /// # Errors
    /// If the window is full. Try again after the next message.
    pub fn send_records(&mut self, records: Vec<u8>) -> Result<(), RecordsFull> {
        self.records.send(records)
    }

    /// The number of bytes that [`Sink::send_records`] accepts now.
    #[must_use]
    pub fn records_room(&self) -> usize {
        self.records.room()
    }

    /// Returns records from the layer above the source.
    pub fn poll_records(&mut self) -> Option<Vec<u8>> {
        self.records.take()
    }

    /// The number of data channels on which blocks can come.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Adds a data channel with a new number. Returns false if the source has already lost the
    /// channel: this end has then confirmed that nothing on it reaches a buffer. A transport that
    /// writes into memory asks all sessions before it accepts a channel. If one refuses, the
    /// transport closes the channel and reports it down to the others.
    #[must_use]
    pub fn channel_up(&mut self, channel: u16) -> bool {
        let may_be = !self.closed.contains(&channel);
        if may_be {
            self.channels.insert(channel);
        }
        may_be
    }

    /// Reports that a data channel is closed at this end, so that nothing on it reaches a buffer
    /// any more.
    pub fn channel_down(&mut self, channel: u16) {
        let on_it = |buffer: &&u32| self.buffers[**buffer as usize].channel == channel;
        let cut: Vec<u32> = self.arriving.values().filter(on_it).copied().collect();
        for buffer in cut {
            self.step(buffer, SinkEvent::ChannelLost);
        }
        self.channels.remove(&channel);
        self.closing.remove(&channel);
        if self.closed.insert(channel) {
            self.losses.insert(channel);
        }
        self.reclaim();
    }

    /// Handles the header of a block on a channel. On success, the caller reads the payload into
    /// the header's buffer and then calls [`Sink::finish_arrival`], [`Sink::abort_arrival`] or
    /// [`Sink::channel_down`].
    ///
    /// # Errors
    /// If the sink refuses the block.
    pub fn begin_arrival(
        &mut self,
        channel: u16,
        header: &BlockHeader,
    ) -> Result<(), BlockRefused> {
        if !self.life.is_running() {
            return Err(BlockRefused::Over);
        }
        if !self.channels.contains(&channel) {
            return Err(BlockRefused::Channel(channel));
        }
        let BlockHeader { session, seq, buffer, generation, len, .. } = *header;
        let checked = if self.arrivals != Arrivals::Seen || session != self.session {
            Err(Fault::Session(session))
        } else {
            self.check(Notice { seq, buffer, generation, len })
        };
        if let Err(fault) = checked {
            self.cancel(fault.cancel());
            return Err(fault.into());
        }
        let slot = &mut self.buffers[buffer as usize];
        (slot.seq, slot.len, slot.channel) = (seq, len, channel);
        self.seen_until = self.seen_until.max(seq + 1);
        self.step(buffer, SinkEvent::Begin);
        Ok(())
    }

    /// Reports that a whole block is in its buffer.
    ///
    /// # Errors
    /// If the channel was not reading a block into the buffer, for instance because it is down by
    /// now. The block does not count then.
    pub fn finish_arrival(&mut self, channel: u16, buffer: u32) -> Result<(), Misuse> {
        self.check_arriving(channel, buffer)?;
        self.step(buffer, SinkEvent::Finish);
        self.reclaim();
        self.check_total().map_err(|_| Misuse::Over)
    }

    /// Reports that a block was not read completely. Its buffer remains granted.
    ///
    /// # Errors
    /// If the channel was not reading a block into the buffer.
    pub fn abort_arrival(&mut self, channel: u16, buffer: u32) -> Result<(), Misuse> {
        self.check_arriving(channel, buffer)?;
        self.step(buffer, SinkEvent::ChannelLost);
        self.reclaim();
        Ok(())
    }

    /// Handles a message of the source.
    ///
    /// # Errors
    /// If the message breaks the protocol. The session is cancelled then.
    pub fn handle_control(&mut self, body: Body) -> Result<(), Fault> {
        // Messages of the source may have crossed with the end of the session.
        if self.life.is_over() {
            return Ok(());
        }
        let result = match body {
            Body::Cancel(cancel) => {
                self.life.handle_cancel(cancel);
                self.losses.clear();
                Ok(())
            }
            Body::Closed => self.life.handle_closed(),
            Body::ChannelLost(channel) => {
                self.handle_loss(channel);
                Ok(())
            }
            _ if !self.life.is_running() => Ok(()),
            Body::CreditRequest => {
                self.is_requested = true;
                Ok(())
            }
            Body::Notice(notice) => self.handle_notice(notice),
            Body::Complete(complete) => self.handle_total(complete),
            Body::Records(records) => self.records.handle_records(records),
            Body::RecordsTaken(taken) => self.records.handle_taken(taken),
            other => Err(Fault::Message(other.kind())),
        };
        if let Err(fault) = result {
            self.cancel(fault.cancel());
        }
        self.reclaim();
        result
    }

    /// Returns the next block in order if it has arrived.
    pub fn poll_ready(&mut self) -> Option<Ready> {
        if !self.life.is_running() {
            return None;
        }
        let (&seq, &buffer) = self.waiting.first_key_value()?;
        if seq != self.next {
            return None;
        }
        self.step(buffer, SinkEvent::Deliver);
        let Buffer { generation, len, .. } = self.buffers[buffer as usize];
        self.next += 1;
        Some(Ready { seq, buffer, generation, len })
    }

    /// Frees the buffer of a block that the caller has processed.
    ///
    /// # Errors
    /// If the caller does not hold the buffer.
    pub fn release(&mut self, buffer: u32) -> Result<(), Misuse> {
        let slot = self.buffers.get(buffer as usize).ok_or(Misuse::Number(buffer))?;
        if slot.state != SinkState::Draining {
            return Err(Misuse::State(buffer));
        }
        self.step(buffer, SinkEvent::Release);
        Ok(())
    }

    /// Whether the next block has arrived, or no more blocks will come.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        let next = self.waiting.first_key_value();
        next.is_some_and(|(seq, _)| *seq == self.next) || self.is_delivered()
    }

    /// Whether a message for the source waits to be sent.
    #[must_use]
    pub fn has_control(&self) -> bool {
        if !self.life.is_running() {
            return self.life.has_message(self.counts.arriving == 0);
        }
        self.grants() > 0
            || self.acknowledges()
            || !self.losses.is_empty()
            || self.records.has_message()
            || (self.is_finishing && self.total.is_some())
    }

    /// Returns the next message for the source.
    pub fn poll_control(&mut self) -> Option<Message> {
        let has_control = self.has_control();
        let body = self.next_body();
        debug_assert_eq!(body.is_some(), has_control);
        let body = body?;
        Some(Message::of(self.session, body))
    }

    /// Returns a data channel to close. Call [`Sink::channel_down`] when nothing on it reaches a
    /// buffer any more.
    pub fn poll_close(&mut self) -> Option<u16> {
        self.to_close.pop_front()
    }

    fn next_body(&mut self) -> Option<Body> {
        if !self.life.is_running() {
            return self.life.poll(self.counts.arriving == 0);
        }
        if let Some(credits) = self.next_credits() {
            return Some(Body::Credits(credits));
        }
        if let Some(channel) = self.losses.pop_first() {
            return Some(Body::ChannelLost(channel));
        }
        if let Some(body) = self.records.poll() {
            return Some(body);
        }
        if self.is_finishing
            && let Some(total) = self.total
        {
            self.life.complete();
            return Some(Body::Complete(total));
        }
        None
    }

    /// The number of buffers to grant now.
    fn grants(&self) -> u32 {
        // A source that has sent everything needs no more credits.
        let is_all = self.total.is_some_and(|total| total.blocks == self.arrived.cumulative());
        let owed = self.owed.max(u32::from(self.is_requested));
        if is_all { 0 } else { owed.min(self.counts.free) }
    }

    /// Whether some arrivals are not acknowledged yet.
    fn acknowledges(&self) -> bool {
        self.arrivals == Arrivals::Seen && self.arrived.is_unreported()
    }

    /// Returns the next grants and acknowledgements, if any.
    fn next_credits(&mut self) -> Option<Credits> {
        if self.is_requested {
            self.owed = self.owed.max(1);
        }
        let (count, acknowledges) = (self.grants() as usize, self.acknowledges());
        if count == 0 && !acknowledges {
            return None;
        }
        let mut message = Credits::default();
        if acknowledges {
            (message.cumulative, message.ranges) = self.arrived.report();
        } else if self.arrivals == Arrivals::Seen {
            message.cumulative = self.arrived.cumulative();
        }
        while message.credits.len() < count.min(GRANTS_MAX)
            && let Some(buffer) = self.free.pop()
        {
            let slot = &mut self.buffers[buffer as usize];
            slot.generation = slot.generation.wrapping_add(1);
            let Buffer { generation, remote: RemoteBuffer { address, key }, .. } = *slot;
            self.step(buffer, SinkEvent::Grant);
            self.owed -= 1;
            self.is_requested = false;
            message.credits.push(Credit { buffer, generation, address, key });
        }
        Some(message)
    }

    /// Checks whether a block may be in a buffer.
    fn check(&self, block: Notice) -> Result<(), Fault> {
        let Notice { seq, buffer, generation, len } = block;
        let slot = self.buffers.get(buffer as usize).ok_or(Fault::Buffer(buffer))?;
        if slot.state != SinkState::Granted || slot.generation != generation {
            return Err(Fault::NotGranted { buffer, generation });
        }
        if len > self.block_size {
            return Err(Fault::Length(len));
        }
        if self.arrived.contains(seq) || self.arriving.contains_key(&seq) {
            return Err(Fault::Repeated(seq));
        }
        // The source writes blocks in order, and each holds a credit until it arrives, so the
        // distance is less than the pool's size.
        if seq - self.arrived.cumulative() >= self.buffers.len() as u64 {
            return Err(Fault::Ahead(seq));
        }
        match self.total {
            Some(total) if seq >= total.blocks => Err(Fault::Totals(total.blocks)),
            _ => Ok(()),
        }
    }

    fn check_arriving(&self, channel: u16, buffer: u32) -> Result<(), Misuse> {
        let slot = self.buffers.get(buffer as usize).ok_or(Misuse::Number(buffer))?;
        if slot.state != SinkState::Arriving || slot.channel != channel {
            return Err(Misuse::State(buffer));
        }
        Ok(())
    }

    fn handle_notice(&mut self, notice: Notice) -> Result<(), Fault> {
        if self.arrivals != Arrivals::NotSeen {
            return Err(Fault::Message(Body::Notice(notice).kind()));
        }
        self.check(notice)?;
        let slot = &mut self.buffers[notice.buffer as usize];
        (slot.seq, slot.len) = (notice.seq, notice.len);
        self.seen_until = self.seen_until.max(notice.seq + 1);
        self.step(notice.buffer, SinkEvent::Notice);
        self.check_total()
    }

    fn handle_total(&mut self, total: Complete) -> Result<(), Fault> {
        if self.total.is_some() || total.blocks < self.seen_until {
            return Err(Fault::Totals(total.blocks));
        }
        self.total = Some(total);
        self.check_total()
    }

    /// Checks, once all blocks have arrived, that they have as many bytes as the source has
    /// reported.
    fn check_total(&mut self) -> Result<(), Fault> {
        match self.total {
            Some(total)
                if total.blocks == self.arrived.cumulative() && total.bytes != self.bytes =>
            {
                let fault = Fault::Totals(total.blocks);
                self.cancel(fault.cancel());
                Err(fault)
            }
            _ => Ok(()),
        }
    }

    /// Handles the source's loss of a channel.
    fn handle_loss(&mut self, channel: u16) {
        if self.channels.contains(&channel) {
            if self.closing.insert(channel) {
                self.to_close.push_back(channel);
            }
        } else if self.closed.insert(channel) {
            // The channel was never up here, and `channel_up` will refuse it.
            self.losses.insert(channel);
        }
    }

    /// Frees the buffers into which nothing can be written any more.
    fn reclaim(&mut self) {
        let is_peer_done = self.life.is_peer_closed() && self.closing.is_empty();
        if !self.is_finishing && !is_peer_done {
            return;
        }
        for buffer in 0..self.buffers.len() {
            if matches!(self.buffers[buffer].state, SinkState::Granted | SinkState::Arrived) {
                self.step(u32::try_from(buffer).unwrap_or(u32::MAX), SinkEvent::Reclaim);
            }
        }
    }

    fn count(&mut self, state: SinkState) -> &mut u32 {
        match state {
            SinkState::Free => &mut self.counts.free,
            SinkState::Granted => &mut self.counts.granted,
            SinkState::Arriving => &mut self.counts.arriving,
            SinkState::Arrived => &mut self.counts.arrived,
            SinkState::Draining => &mut self.counts.draining,
        }
    }

    /// Changes the state of a buffer and the lists that depend on it. An event that is not allowed
    /// in the state has no effect; the callers have checked those that a peer causes.
    fn step(&mut self, buffer: u32, event: SinkEvent) {
        let slot = &mut self.buffers[buffer as usize];
        let Some(state) = slot.state.after(event) else { return };
        let (from, seq, len) = (slot.state, slot.seq, slot.len);
        slot.state = state;
        *self.count(from) -= 1;
        *self.count(state) += 1;
        match from {
            SinkState::Arriving => drop(self.arriving.remove(&seq)),
            SinkState::Arrived => drop(self.waiting.remove(&seq)),
            _ => {}
        }
        match state {
            SinkState::Free => self.free.push(buffer),
            SinkState::Arriving => drop(self.arriving.insert(seq, buffer)),
            SinkState::Arrived => {
                self.waiting.insert(seq, buffer);
                self.bytes += u64::from(len);
                let pool = u32::try_from(self.buffers.len()).unwrap_or(u32::MAX);
                self.owed = self.owed.saturating_add(2).min(pool);
                // `check` has refused repeated numbers, so this cannot fail.
                let _ = self.arrived.insert(seq);
            }
            _ => {}
        }
    }
}
