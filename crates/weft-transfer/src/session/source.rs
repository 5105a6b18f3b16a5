//! The source's end of a session.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::Arrivals;
use super::fault::{Ending, Fault, Misuse};
use super::life::Life;
use super::records::{Records, RecordsFull};
use super::states::{SourceEvent, SourceState};
use crate::limits::BUFFERS_MAX;
use crate::wire::{Body, Cancel, Complete, Credit, Credits, Message, Notice};

/// The parameters of a [`Source`].
#[derive(Clone, Copy, Debug)]
pub struct SourceSetup {
    /// The session's number.
    pub session: u32,
    /// The number of the caller's blocks, which are numbered from 0 on.
    pub blocks: u32,
    /// The largest payload of a block in bytes.
    pub block_size: u32,
    /// Whether the sink sees arrivals.
    pub arrivals: Arrivals,
    /// The most writes of this session that a channel has at a time. Later blocks go to the channel
    /// that finishes first.
    pub writes_max: u32,
}

/// A block to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The data channel to use.
    pub channel: u16,
    /// The caller's number of the block.
    pub block: u32,
    /// Its sequence number, for the header.
    pub seq: u64,
    /// Bytes of payload.
    pub len: u32,
    /// The credit for the sink's buffer.
    pub credit: Credit,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The write is complete. If the sink does not see arrivals, the block is in the sink's memory.
    Sent,
    /// The channel has failed before any byte of the block was sent.
    NotSent,
    /// The channel has failed, and an unknown part of the block was sent.
    Failed,
}

/// A block that is returned to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The block.
    pub block: u32,
    /// Its sequence number.
    pub seq: u64,
    /// Whether the block has arrived. It may not have if the session was cancelled.
    pub has_arrived: bool,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: SourceState,
    seq: u64,
    len: u32,
    channel: u16,
    /// The block's credit, from its first write until it has arrived.
    credit: Option<Credit>,
    has_arrived: bool,
}

impl Block {
    fn in_state(state: SourceState, seq: u64, len: u32) -> Self {
        Self { state, seq, len, channel: 0, credit: None, has_arrived: false }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    /// Bytes written on the channel that are neither acknowledged nor returned by the transport.
    bytes: u64,
    /// The number of blocks that the transport is writing on it.
    writes: u32,
    /// The channel is lost: no block is written on it any more.
    is_lost: bool,
    /// The sink has confirmed that it closed its end of the lost channel.
    is_fenced: bool,
    /// The write counter at the channel's last write.
    last: u64,
}

/// The source's end of a session: it takes blocks and returns writes. [The module](super) explains
/// its use.
#[derive(Debug)]
pub struct Source {
    setup: SourceSetup,
    blocks: Vec<Block>,
    /// All blocks that have not arrived, by sequence number.
    window: BTreeMap<u64, u32>,
    /// Those of `window` that must be written again, with the credits that they hold.
    bound: BTreeSet<u64>,
    /// The next sequence number to write for the first time.
    next_write: u64,
    /// The number of submitted blocks and their bytes.
    submitted: Complete,
    /// One above the highest submitted sequence number.
    submitted_until: u64,
    /// Credits that no block uses.
    credits: VecDeque<Credit>,
    /// The buffers of all credits, used or unused.
    granted: HashSet<u32>,
    is_request_outstanding: bool,
    channels: BTreeMap<u16, Channel>,
    /// Channels that are closed for good.
    closed: BTreeSet<u16>,
    /// Lost channels to report to the sink.
    losses: BTreeSet<u16>,
    to_close: VecDeque<u16>,
    notices: VecDeque<Notice>,
    free: VecDeque<Freed>,
    /// The number of blocks that the transport is writing.
    writing: u32,
    writes: u64,
    records: Records,
    is_finishing: bool,
    is_complete_sent: bool,
    /// The sink has reported that it has all blocks.
    is_complete: bool,
    life: Life,
}

impl Source {
    /// Creates a session without blocks, channels or credits.
    #[must_use]
    pub fn new(setup: SourceSetup) -> Self {
        Self {
            blocks: vec![Block::in_state(SourceState::Free, 0, 0); setup.blocks as usize],
            setup,
            window: BTreeMap::new(),
            bound: BTreeSet::new(),
            next_write: 0,
            submitted: Complete::default(),
            submitted_until: 0,
            credits: VecDeque::new(),
            granted: HashSet::new(),
            is_request_outstanding: false,
            channels: BTreeMap::new(),
            closed: BTreeSet::new(),
            losses: BTreeSet::new(),
            to_close: VecDeque::new(),
            notices: VecDeque::new(),
            free: VecDeque::new(),
            writing: 0,
            writes: 0,
            records: Records::default(),
            is_finishing: false,
            is_complete_sent: false,
            is_complete: false,
            life: Life::new(),
        }
    }

    /// The session's number.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.setup.session
    }

    /// How the session has ended; `None` before that. [`Source::poll_free`] may still return
    /// blocks.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.life.ending()
    }

    /// The state of a block; `None` if there is no such block.
    #[must_use]
    pub fn state(&self, block: u32) -> Option<SourceState> {
        self.blocks.get(block as usize).map(|block| block.state)
    }

    /// The number of credits that no block uses.
    #[must_use]
    pub fn credits(&self) -> usize {
        self.credits.len()
    }

    /// The number of all credits, used or unused. Blocks use theirs until the source knows that
    /// they have arrived.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.granted.len()
    }

    /// The number of submitted blocks that are not known to have arrived.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.window.len()
    }

    /// The number of data channels on which blocks can be written.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels.values().filter(|channel| !channel.is_lost).count()
    }

    /// Submits a full block. Blocks may be submitted in any order, but no sequence number may be
    /// left out: the source writes them in order.
    ///
    /// # Errors
    /// If the caller does not own the block, the number is used, or the session is ending.
    pub fn submit(&mut self, seq: u64, block: u32, len: u32) -> Result<(), Misuse> {
        if !self.life.is_running() || self.is_finishing {
            return Err(Misuse::Over);
        }
        let slot = self.blocks.get_mut(block as usize).ok_or(Misuse::Number(block))?;
        if len > self.setup.block_size {
            return Err(Misuse::Length(len));
        }
        if seq < self.next_write || seq == u64::MAX || self.window.contains_key(&seq) {
            return Err(Misuse::Sequence(seq));
        }
        let state = slot.state.after(SourceEvent::Submit).ok_or(Misuse::State(block))?;
        *slot = Block::in_state(state, seq, len);
        self.window.insert(seq, block);
        self.submitted.blocks += 1;
        self.submitted.bytes += u64::from(len);
        self.submitted_until = self.submitted_until.max(seq + 1);
        Ok(())
    }

    /// Declares that no more blocks will be submitted.
    ///
    /// # Errors
    /// If a sequence number was left out, or the session is already ending.
    pub fn finish(&mut self) -> Result<(), Misuse> {
        if !self.life.is_running() || self.is_finishing {
            return Err(Misuse::Over);
        }
        if self.submitted.blocks != self.submitted_until {
            return Err(Misuse::Incomplete);
        }
        self.is_finishing = true;
        Ok(())
    }

    /// Cancels the session. [`Source::poll_free`] returns the blocks, those of the transport after
    /// their writes.
    pub fn cancel(&mut self, cancel: Cancel) {
        self.life.cancel(cancel);
        self.abandon();
    }

    /// Sends records to the layer above the sink.
    ///
    /// # Errors
    /// If the window is full. Try again after the next message.
    pub fn send_records(&mut self, records: Vec<u8>) -> Result<(), RecordsFull> {
        self.records.send(records)
    }

    /// The number of bytes that [`Source::send_records`] accepts now.
    #[must_use]
    pub fn records_room(&self) -> usize {
        self.records.room()
    }

    /// Returns records from the layer above the sink.
    pub fn poll_records(&mut self) -> Option<Vec<u8>> {
        self.records.take()
    }

    /// Adds a data channel with a new number. Returns false if the sink has already lost the
    /// channel. The caller then closes it and reports it down to the other sessions.
    #[must_use]
    pub fn channel_up(&mut self, channel: u16) -> bool {
        let may_be = !self.closed.contains(&channel);
        if may_be {
            self.channels.entry(channel).or_default();
        }
        may_be
    }

    /// Reports that a data channel is closed at this end, after a failure or by
    /// [`Source::poll_close`]. The caller still reports the writes that the transport has.
    pub fn channel_down(&mut self, channel: u16) {
        if !self.closed.contains(&channel) {
            self.lose(channel);
        }
    }

    /// Reports the result of a write.
    ///
    /// # Errors
    /// If the transport was not writing the block.
    pub fn handle_written(&mut self, block: u32, result: WriteResult) -> Result<(), Misuse> {
        use SourceState::{Releasing, Writing};
        let slot = *self.blocks.get(block as usize).ok_or(Misuse::Number(block))?;
        if !matches!(slot.state, Writing | Releasing) {
            return Err(Misuse::State(block));
        }
        self.writing -= 1;
        if let Some(channel) = self.channels.get_mut(&slot.channel) {
            channel.writes -= 1;
        }
        if result != WriteResult::Sent {
            self.lose(slot.channel);
            if !self.closed.contains(&slot.channel) {
                self.to_close.push_back(slot.channel);
            }
        }
        let event = match result {
            _ if slot.state == Releasing => SourceEvent::Done,
            WriteResult::NotSent => SourceEvent::NotSent,
            WriteResult::Failed => SourceEvent::Failed,
            WriteResult::Sent if self.setup.arrivals == Arrivals::Seen => SourceEvent::Sent,
            WriteResult::Sent => SourceEvent::Placed,
        };
        self.step(block, event);
        let is_gone = self.channels.get(&slot.channel).is_none_or(|channel| channel.is_lost);
        if event == SourceEvent::Sent && is_gone {
            self.step(block, SourceEvent::ChannelLost);
        }
        let is_fenced = self.channels.get(&slot.channel).is_none_or(|channel| channel.is_fenced);
        if self.blocks[block as usize].state == SourceState::Lost && is_fenced {
            self.step(block, SourceEvent::Fence);
        }
        self.forget(slot.channel);
        self.settle();
        Ok(())
    }

    /// Handles a message of the sink.
    ///
    /// # Errors
    /// If the message breaks the protocol. The session is cancelled then.
    pub fn handle_control(&mut self, body: Body) -> Result<(), Fault> {
        if self.life.is_over() {
            return Ok(());
        }
        let result = match body {
            Body::Cancel(cancel) => {
                self.life.handle_cancel(cancel);
                self.abandon();
                Ok(())
            }
            Body::Closed => self.life.handle_closed(),
            Body::Complete(complete) => self.handle_complete(complete),
            // The message has crossed with the end of the session and is ignored.
            _ if !self.life.is_running() => Ok(()),
            Body::Credits(credits) => self.handle_credits(credits),
            Body::ChannelLost(channel) => {
                self.fence(channel);
                Ok(())
            }
            Body::Records(records) => self.records.handle_records(records),
            Body::RecordsTaken(taken) => self.records.handle_taken(taken),
            other => Err(Fault::Message(other.kind())),
        };
        if let Err(fault) = result {
            self.cancel(fault.cancel());
        }
        self.settle();
        result
    }

    /// Returns the next block to write, if there are a block, a credit for it and a channel.
    pub fn poll_write(&mut self) -> Option<Write> {
        if !self.life.is_running() {
            return None;
        }
        let channel = self.choose_channel()?;
        let (seq, block) = match self.bound.first() {
            Some(&seq) => (seq, *self.window.get(&seq)?),
            None => (self.next_write, *self.window.get(&self.next_write)?),
        };
        let slot = &mut self.blocks[block as usize];
        let credit = match slot.credit {
            Some(credit) => credit,
            None => self.credits.pop_front()?,
        };
        (slot.credit, slot.channel) = (Some(credit), channel);
        let len = slot.len;
        if !self.bound.remove(&seq) {
            self.next_write += 1;
        }
        self.step(block, SourceEvent::Write);
        self.writing += 1;
        self.writes += 1;
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.writes += 1;
            channel.bytes += u64::from(len);
            channel.last = self.writes;
        }
        Some(Write { channel, block, seq, len, credit })
    }

    /// Whether a message for the sink waits to be sent.
    #[must_use]
    pub fn has_control(&self) -> bool {
        if !self.life.is_over() && !self.losses.is_empty() {
            return true;
        }
        if !self.life.is_running() {
            return self.life.has_message(self.writing == 0);
        }
        !self.notices.is_empty()
            || self.asks_for_credits()
            || self.records.has_message()
            || (self.is_finishing && !self.is_complete_sent)
    }

    /// Returns the next message for the sink.
    pub fn poll_control(&mut self) -> Option<Message> {
        let has_control = self.has_control();
        let body = self.next_body();
        debug_assert_eq!(body.is_some(), has_control);
        let body = body?;
        Some(Message::of(self.setup.session, body))
    }

    /// Returns the next block that is free for the caller.
    pub fn poll_free(&mut self) -> Option<Freed> {
        self.free.pop_front()
    }

    /// Returns a data channel to close. Call [`Source::channel_down`] afterwards.
    pub fn poll_close(&mut self) -> Option<u16> {
        self.to_close.pop_front()
    }

    fn next_body(&mut self) -> Option<Body> {
        // A cancelled session reports lost channels, too, before it reports that it is closed: data
        // written on a lost channel may still reach the sink's memory.
        if !self.life.is_over()
            && let Some(channel) = self.losses.pop_first()
        {
            return Some(Body::ChannelLost(channel));
        }
        if !self.life.is_running() {
            return self.life.poll(self.writing == 0);
        }
        if let Some(notice) = self.notices.pop_front() {
            return Some(Body::Notice(notice));
        }
        if self.asks_for_credits() {
            self.is_request_outstanding = true;
            return Some(Body::CreditRequest);
        }
        if let Some(body) = self.records.poll() {
            return Some(body);
        }
        // The totals follow all queued records and notices.
        if self.is_finishing && !self.is_complete_sent {
            self.is_complete_sent = true;
            return Some(Body::Complete(self.submitted));
        }
        None
    }

    /// Whether the source must request credits now.
    fn asks_for_credits(&self) -> bool {
        self.credits.is_empty() && !self.is_request_outstanding && self.needs_credits()
    }

    /// Whether a block needs a credit, or may soon need one.
    fn needs_credits(&self) -> bool {
        !self.is_finishing || self.next_write < self.submitted_until
    }

    fn handle_credits(&mut self, credits: Credits) -> Result<(), Fault> {
        if self.setup.arrivals == Arrivals::NotSeen
            && (credits.cumulative != 0 || !credits.ranges.is_empty())
        {
            return Err(Fault::Acknowledged(credits.cumulative));
        }
        if credits.cumulative > self.next_write {
            return Err(Fault::Acknowledged(credits.cumulative));
        }
        while let Some((&seq, &block)) = self.window.first_key_value()
            && seq < credits.cumulative
        {
            self.acknowledge(seq, block)?;
        }
        for range in credits.ranges {
            if range.until > self.next_write {
                return Err(Fault::Acknowledged(range.until - 1));
            }
            for seq in range.from..range.until {
                let block = *self.window.get(&seq).ok_or(Fault::Acknowledged(seq))?;
                self.acknowledge(seq, block)?;
            }
        }
        for credit in credits.credits {
            self.is_request_outstanding = false;
            if self.granted.len() >= BUFFERS_MAX as usize {
                return Err(Fault::Credits);
            }
            if !self.granted.insert(credit.buffer) {
                return Err(Fault::GrantedTwice(credit.buffer));
            }
            self.credits.push_back(credit);
        }
        Ok(())
    }

    fn acknowledge(&mut self, seq: u64, block: u32) -> Result<(), Fault> {
        if self.blocks[block as usize].state.after(SourceEvent::Acknowledge).is_none() {
            return Err(Fault::Acknowledged(seq));
        }
        self.step(block, SourceEvent::Acknowledge);
        Ok(())
    }

    fn handle_complete(&mut self, complete: Complete) -> Result<(), Fault> {
        if !self.is_complete_sent || complete != self.submitted {
            return Err(Fault::Totals(complete.blocks));
        }
        if !self.life.is_running() {
            // The sink finished before it received this end's cancellation.
            return self.life.handle_closed();
        }
        if !self.window.is_empty() {
            return Err(Fault::Totals(complete.blocks));
        }
        self.is_complete = true;
        Ok(())
    }

    /// Completes the session once the transport has finished all writes, too.
    fn settle(&mut self) {
        if self.is_complete && self.writing == 0 {
            self.life.complete();
        }
    }

    /// Returns the channel with the fewest outstanding bytes; among several, the least recently
    /// used one.
    fn choose_channel(&self) -> Option<u16> {
        let usable = self
            .channels
            .iter()
            .filter(|(_, channel)| !channel.is_lost && channel.writes < self.setup.writes_max);
        usable.min_by_key(|(_, channel)| (channel.bytes, channel.last)).map(|(number, _)| *number)
    }

    /// Marks a channel as lost at this end.
    fn lose(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.is_lost {
            return;
        }
        channel.is_lost = true;
        self.losses.insert(number);
        self.step_all(number, SourceState::Written, SourceEvent::ChannelLost);
    }

    /// Handles the sink's confirmation that it closed its end of a channel. It has acknowledged all
    /// blocks that arrived there.
    fn fence(&mut self, number: u16) {
        if !self.closed.insert(number) {
            return;
        }
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.is_fenced = true;
        if !channel.is_lost {
            channel.is_lost = true;
            self.to_close.push_back(number);
            self.step_all(number, SourceState::Written, SourceEvent::ChannelLost);
        }
        self.losses.remove(&number);
        self.step_all(number, SourceState::Lost, SourceEvent::Fence);
        self.forget(number);
    }

    /// Removes a closed channel that has no writes left.
    fn forget(&mut self, number: u16) {
        if self
            .channels
            .get(&number)
            .is_some_and(|channel| channel.is_fenced && channel.writes == 0)
        {
            self.channels.remove(&number);
        }
    }

    /// Applies an event to all blocks of a channel that are in one state.
    fn step_all(&mut self, channel: u16, state: SourceState, event: SourceEvent) {
        let is_meant = |block: &Block| block.state == state && block.channel == channel;
        let blocks: Vec<u32> = self
            .window
            .values()
            .copied()
            .filter(|block| is_meant(&self.blocks[*block as usize]))
            .collect();
        for block in blocks {
            self.step(block, event);
        }
    }

    /// Frees all blocks at the end of the session.
    fn abandon(&mut self) {
        let blocks: Vec<u32> = self.window.values().copied().collect();
        for block in blocks {
            self.step(block, SourceEvent::Abandon);
        }
        self.bound.clear();
        self.credits.clear();
        self.granted.clear();
        self.notices.clear();
    }

    /// Changes the state of a block and the data that depend on it. An event that is not allowed in
    /// the state has no effect; the callers have checked those that a peer causes.
    fn step(&mut self, block: u32, event: SourceEvent) {
        let slot = &mut self.blocks[block as usize];
        let Some(state) = slot.state.after(event) else { return };
        let (from, seq, len) = (slot.state, slot.seq, u64::from(slot.len));
        slot.state = state;
        // A block counts towards its channel's load until it is acknowledged, given back or lost.
        let is_loading = matches!(from, SourceState::Writing | SourceState::Written)
            && !matches!(state, SourceState::Writing | SourceState::Written);
        if is_loading && let Some(channel) = self.channels.get_mut(&slot.channel) {
            channel.bytes = channel.bytes.saturating_sub(len);
        }
        match event {
            SourceEvent::Acknowledge | SourceEvent::Placed => {
                if let Some(credit) = slot.credit.take() {
                    self.granted.remove(&credit.buffer);
                    if event == SourceEvent::Placed {
                        let Credit { buffer, generation, .. } = credit;
                        let len = slot.len;
                        self.notices.push_back(Notice { seq, buffer, generation, len });
                    }
                }
                slot.has_arrived = true;
                self.window.remove(&seq);
            }
            SourceEvent::Abandon => {
                slot.credit = None;
                self.window.remove(&seq);
            }
            SourceEvent::NotSent | SourceEvent::Fence => {
                self.bound.insert(seq);
            }
            _ => {}
        }
        if state == SourceState::Free {
            let has_arrived = slot.has_arrived;
            self.free.push_back(Freed { block, seq, has_arrived });
        }
    }
}
