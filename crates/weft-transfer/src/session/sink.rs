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

/// What a source has to know to write into a buffer; zeros where the sink reads blocks itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// Its address, or its offset in shared memory.
    pub address: u64,
    /// The key that allows to write there.
    pub key: u32,
}

/// What a [`Sink`] is made of.
#[derive(Clone, Debug)]
pub struct SinkSetup {
    /// The session's number.
    pub session: u32,
    /// The buffers of its pool, which are numbered from 0 on: one at least, and at most
    /// `BUFFERS_MAX`.
    pub buffers: Vec<RemoteBuffer>,
    /// Bytes of payload of a block, at most.
    pub block_size: u32,
    /// Whether the sink sees arrivals.
    pub arrivals: Arrivals,
    /// How many buffers are granted before the source asks for any.
    pub first_grant: u32,
}

/// A block whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its sequence number.
    pub seq: u64,
    /// The buffer that it is in.
    pub buffer: u32,
    /// The generation of the grant that it has used.
    pub generation: u32,
    /// Bytes of payload. Where the source writes into memory, compare all four with the header.
    pub len: u32,
}

/// Why a block is not taken. Read and drop its payload: the data channel goes on with the block
/// behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockRefused {
    /// The session is over, or ends.
    #[error("the session is over")]
    Over,
    /// The channel is not up at this end.
    #[error("channel {0} is closed")]
    Channel(u16),
    /// The source is at fault, and the session is cancelled.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// How many buffers are in each state. Together they are the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    /// Nobody uses them.
    pub free: u32,
    /// The source has credits for them.
    pub granted: u32,
    /// Blocks are being read into them.
    pub arriving: u32,
    /// Blocks wait there for their turn.
    pub arrived: u32,
    /// The caller has them.
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

/// The sink's end of a session: arrivals in, blocks in order out. [The module](super) says how to
/// use it.
#[derive(Debug)]
pub struct Sink {
    session: u32,
    block_size: u32,
    arrivals: Arrivals,
    buffers: Vec<Buffer>,
    /// Buffers that nobody uses.
    free: Vec<u32>,
    /// Blocks that are being read, by sequence number.
    arriving: BTreeMap<u64, u32>,
    /// Blocks that wait for their turn.
    waiting: BTreeMap<u64, u32>,
    /// The next one whose turn it is.
    next: u64,
    arrived: Arrived,
    /// One above the highest sequence number that has been seen.
    seen_until: u64,
    /// Bytes of the blocks that have arrived.
    bytes: u64,
    counts: SinkCounts,
    /// Grants that the source is entitled to, once buffers are free.
    owed: u32,
    is_requested: bool,
    channels: BTreeSet<u16>,
    /// Channels that are no more.
    closed: BTreeSet<u16>,
    /// Channels whose end the source is to learn, behind what has arrived there.
    losses: BTreeSet<u16>,
    to_close: VecDeque<u16>,
    /// Channels that are to be closed here and are not yet.
    closing: BTreeSet<u16>,
    records: Records,
    /// What the source says that there is.
    total: Option<Complete>,
    is_finishing: bool,
    life: Life,
}

impl Sink {
    /// A session of which nothing has arrived.
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

    /// How the session has ended; none as long as it has not, or something of the source may still
    /// reach a buffer.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.life.ending().filter(|_| self.is_memory_free())
    }

    /// How many buffers are in each state.
    #[must_use]
    pub fn counts(&self) -> SinkCounts {
        self.counts
    }

    /// What a buffer is; none if there is no such buffer.
    #[must_use]
    pub fn state(&self, buffer: u32) -> Option<SinkState> {
        self.buffers.get(buffer as usize).map(|buffer| buffer.state)
    }

    /// What the source says that there is, once it has said so.
    #[must_use]
    pub fn total(&self) -> Option<Complete> {
        self.total
    }

    /// Whether all blocks have been delivered and released: it is time to [`Sink::finish`].
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        self.total.is_some_and(|total| total.blocks == self.next) && self.counts.draining == 0
    }

    /// All blocks are where they belong. The source learns of it.
    ///
    /// # Errors
    /// If they are not all delivered and released, or the session ends already.
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

    /// Whether nothing of the source will touch the buffers any more, so that their memory can be
    /// used for something else: the session is over, or the source has said that it has closed,
    /// and the channels that the source has lost are closed here, too.
    #[must_use]
    pub fn is_memory_free(&self) -> bool {
        self.life.is_peer_closed() && self.counts.arriving == 0 && self.closing.is_empty()
    }

    /// Sends records to the layer above at the source.
    ///
    /// # Errors
    /// If the source has not taken enough of those before. Try again after the next message.
    pub fn send_records(&mut self, records: Vec<u8>) -> Result<(), RecordsFull> {
        self.records.send(records)
    }

    /// Bytes that [`Sink::send_records`] takes now.
    #[must_use]
    pub fn records_room(&self) -> usize {
        self.records.room()
    }

    /// Records from the layer above at the source.
    pub fn poll_records(&mut self) -> Option<Vec<u8>> {
        self.records.take()
    }

    /// A data channel is about to be used. Its number is a new one. Returns whether it may be: the
    /// source may have lost it before it was up here, and has been promised then that nothing of it
    /// reaches a buffer. A transport that writes into memory asks all sessions before it accepts a
    /// channel; if one refuses, the channel is closed, and down for the others.
    #[must_use]
    pub fn channel_up(&mut self, channel: u16) -> bool {
        let may_be = !self.closed.contains(&channel);
        if may_be {
            self.channels.insert(channel);
        }
        may_be
    }

    /// A data channel is closed at this end: nothing that comes on it reaches a buffer any more.
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

    /// The header of a block has come on a channel. If there is no error, the payload goes into the
    /// buffer that the header names, and then comes [`Sink::finish_arrival`],
    /// [`Sink::abort_arrival`] or [`Sink::channel_down`].
    ///
    /// # Errors
    /// If the block is not to be taken.
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

    /// A whole block is in its buffer.
    ///
    /// # Errors
    /// If none was being read into it on that channel: the channel is down meanwhile. The block
    /// does not count then.
    pub fn finish_arrival(&mut self, channel: u16, buffer: u32) -> Result<(), Misuse> {
        self.check_arriving(channel, buffer)?;
        self.step(buffer, SinkEvent::Finish);
        self.reclaim();
        self.check_total().map_err(|_| Misuse::Over)
    }

    /// A block that was being read into a buffer does not come wholly. The buffer remains granted.
    ///
    /// # Errors
    /// If none was being read into it on that channel.
    pub fn abort_arrival(&mut self, channel: u16, buffer: u32) -> Result<(), Misuse> {
        self.check_arriving(channel, buffer)?;
        self.step(buffer, SinkEvent::ChannelLost);
        self.reclaim();
        Ok(())
    }

    /// A message of the source.
    ///
    /// # Errors
    /// If the source must not say that. The session is cancelled then.
    pub fn handle_control(&mut self, body: Body) -> Result<(), Fault> {
        // After its own end the sink may still get what has crossed with it.
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

    /// The block whose turn it is, if it is there.
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

    /// The caller does not need the block in a buffer any more.
    ///
    /// # Errors
    /// If the caller does not have it.
    pub fn release(&mut self, buffer: u32) -> Result<(), Misuse> {
        let slot = self.buffers.get(buffer as usize).ok_or(Misuse::Number(buffer))?;
        if slot.state != SinkState::Draining {
            return Err(Misuse::State(buffer));
        }
        self.step(buffer, SinkEvent::Release);
        Ok(())
    }

    /// Whether a block whose turn it is is there, or none will come any more.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        let next = self.waiting.first_key_value();
        next.is_some_and(|(seq, _)| *seq == self.next) || self.is_delivered()
    }

    /// Whether there is a message for the source.
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

    /// The next message for the source.
    pub fn poll_control(&mut self) -> Option<Message> {
        let has_control = self.has_control();
        let body = self.next_body();
        debug_assert_eq!(body.is_some(), has_control);
        let body = body?;
        Some(Message::of(self.session, body))
    }

    /// A data channel that has to be closed. Report it by [`Sink::channel_down`] when nothing that
    /// comes on it reaches a buffer any more.
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

    /// How many buffers can be granted now.
    fn grants(&self) -> u32 {
        // A source that has sent everything needs no more credits.
        let is_all = self.total.is_some_and(|total| total.blocks == self.arrived.cumulative());
        let owed = self.owed.max(u32::from(self.is_requested));
        if is_all { 0 } else { owed.min(self.counts.free) }
    }

    /// Whether there are arrivals that the source does not know of.
    fn acknowledges(&self) -> bool {
        self.arrivals == Arrivals::Seen && self.arrived.is_unreported()
    }

    /// Grants, and acknowledgements.
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

    /// Whether a block may be in a buffer.
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
        // Blocks are written in order, each with a credit that it keeps until it has arrived.
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

    /// Once all blocks have arrived, they have as many bytes as the source has said.
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

    /// The source has lost a channel.
    fn handle_loss(&mut self, channel: u16) {
        if self.channels.contains(&channel) {
            if self.closing.insert(channel) {
                self.to_close.push_back(channel);
            }
        } else if self.closed.insert(channel) {
            // It has never been up here, and will not be.
            self.losses.insert(channel);
        }
    }

    /// Takes back the buffers that nothing writes into any more.
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

    /// Changes the state of a buffer, and all that depends on it. Events that the state does not
    /// have do nothing: those that a peer causes have been looked at before.
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
                // It is new: `check` has said so.
                let _ = self.arrived.insert(seq);
            }
            _ => {}
        }
    }
}
