//! The source's end of a session.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::Arrivals;
use super::fault::{Ending, Fault, Misuse};
use super::life::Life;
use super::records::{Records, RecordsFull};
use super::states::{SourceEvent, SourceState};
use crate::limits::BUFFERS_MAX;
use crate::wire::{Body, Cancel, Complete, Credit, Credits, Message, Notice};

/// What a [`Source`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct SourceSetup {
    /// The session's number.
    pub session: u32,
    /// How many blocks the caller has; they are numbered from 0 on.
    pub blocks: u32,
    /// Bytes of payload of a block, at most.
    pub block_size: u32,
    /// Whether the sink sees arrivals.
    pub arrivals: Arrivals,
    /// How many writes of this session a channel is given at a time. The blocks behind them go to
    /// the channel that is done first.
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
    /// Bytes of its payload.
    pub len: u32,
    /// Where it goes.
    pub credit: Credit,
}

/// What has become of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It is done. Where the sink does not see arrivals, the block is in the sink's memory.
    Sent,
    /// The channel has failed, and not a byte of the block has left.
    NotSent,
    /// The channel has failed, and it is not known how much of the block has left.
    Failed,
}

/// A block that is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The block.
    pub block: u32,
    /// The sequence number that it had.
    pub seq: u64,
    /// Whether it has arrived. It has not if the session was cancelled.
    pub has_arrived: bool,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: SourceState,
    seq: u64,
    len: u32,
    channel: u16,
    /// The credit that it holds, from the write on until it has arrived.
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
    /// Bytes given to it that are neither acknowledged nor given back.
    bytes: u64,
    /// Blocks that the transport has.
    writes: u32,
    /// Nothing is written on it any more.
    is_lost: bool,
    /// The sink has closed its end.
    is_fenced: bool,
    /// When it was last given a block.
    last: u64,
}

/// The source's end of a session: blocks in, writes out. [The module](super) says how to use it.
#[derive(Debug)]
pub struct Source {
    setup: SourceSetup,
    blocks: Vec<Block>,
    /// All blocks that have not arrived, by sequence number.
    window: BTreeMap<u64, u32>,
    /// Those of them that have been given back, with their credits.
    bound: BTreeSet<u64>,
    /// The next sequence number to write for the first time.
    next_write: u64,
    /// How many have been submitted, and their bytes.
    submitted: Complete,
    /// One above the highest sequence number that was submitted.
    submitted_until: u64,
    /// Credits that no block has.
    credits: VecDeque<Credit>,
    /// Buffers of all credits, with or without a block.
    granted: HashSet<u32>,
    is_request_outstanding: bool,
    channels: BTreeMap<u16, Channel>,
    /// Channels that are no more.
    closed: BTreeSet<u16>,
    /// Channels whose loss the sink is to learn.
    losses: BTreeSet<u16>,
    to_close: VecDeque<u16>,
    notices: VecDeque<Notice>,
    free: VecDeque<Freed>,
    /// Blocks that the transport has.
    writing: u32,
    writes: u64,
    records: Records,
    is_finishing: bool,
    is_complete_sent: bool,
    /// The sink has all of it.
    is_complete: bool,
    life: Life,
}

impl Source {
    /// A session without blocks, channels and credits.
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

    /// How the session has ended; none as long as it has not. Blocks may still have to be polled.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.life.ending()
    }

    /// What a block is; none if there is no such block.
    #[must_use]
    pub fn state(&self, block: u32) -> Option<SourceState> {
        self.blocks.get(block as usize).map(|block| block.state)
    }

    /// Credits that no block has.
    #[must_use]
    pub fn credits(&self) -> usize {
        self.credits.len()
    }

    /// All credits of the source: those that no block has, and those of blocks that have not
    /// arrived as far as it knows.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.granted.len()
    }

    /// Blocks that have been submitted and have not arrived, as far as is known.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.window.len()
    }

    /// Data channels that blocks can be written on.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels.values().filter(|channel| !channel.is_lost).count()
    }

    /// A block is full. Blocks may be submitted in any order, as long as no sequence number is left
    /// out; they are written in order.
    ///
    /// # Errors
    /// If the block is not the caller's, the number is not free, or the session ends.
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

    /// No more blocks come.
    ///
    /// # Errors
    /// If a sequence number was left out, or the session ends already.
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

    /// Ends the session before it is complete. Blocks come back by [`Source::poll_free`], those
    /// that the transport has when it is done with them.
    pub fn cancel(&mut self, cancel: Cancel) {
        self.life.cancel(cancel);
        self.abandon();
    }

    /// Sends records to the layer above at the sink.
    ///
    /// # Errors
    /// If the sink has not taken enough of those before. Try again after the next message.
    pub fn send_records(&mut self, records: Vec<u8>) -> Result<(), RecordsFull> {
        self.records.send(records)
    }

    /// Bytes that [`Source::send_records`] takes now.
    #[must_use]
    pub fn records_room(&self) -> usize {
        self.records.room()
    }

    /// Records from the layer above at the sink.
    pub fn poll_records(&mut self) -> Option<Vec<u8>> {
        self.records.take()
    }

    /// A data channel can be used. Its number is a new one. Returns whether it is of use: the sink
    /// may have lost it before it was up here. Then it is closed, and down for the other sessions.
    #[must_use]
    pub fn channel_up(&mut self, channel: u16) -> bool {
        let may_be = !self.closed.contains(&channel);
        if may_be {
            self.channels.entry(channel).or_default();
        }
        may_be
    }

    /// A data channel is closed at this end, because it has failed or [`Source::poll_close`] said
    /// so. Writes that the transport has are still to be reported.
    pub fn channel_down(&mut self, channel: u16) {
        if !self.closed.contains(&channel) {
            self.lose(channel);
        }
    }

    /// The transport is done with a write.
    ///
    /// # Errors
    /// If it does not have the block.
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

    /// A message of the sink.
    ///
    /// # Errors
    /// If the sink must not say that. The session is cancelled then.
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
            // What has crossed with the end of the session is of no use any more.
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

    /// The next block to write, if there are one, a credit for it and a channel.
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

    /// Whether there is a message for the sink.
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

    /// The next message for the sink.
    pub fn poll_control(&mut self) -> Option<Message> {
        let has_control = self.has_control();
        let body = self.next_body();
        debug_assert_eq!(body.is_some(), has_control);
        let body = body?;
        Some(Message::of(self.setup.session, body))
    }

    /// The next block that is the caller's again.
    pub fn poll_free(&mut self) -> Option<Freed> {
        self.free.pop_front()
    }

    /// A data channel that has to be closed. Report it by [`Source::channel_down`].
    pub fn poll_close(&mut self) -> Option<u16> {
        self.to_close.pop_front()
    }

    fn next_body(&mut self) -> Option<Body> {
        // Also in a session that is cancelled, and before this end says that it is closed: what was
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
        // It comes behind all records and, where there are any, all notices that are known yet.
        if self.is_finishing && !self.is_complete_sent {
            self.is_complete_sent = true;
            return Some(Body::Complete(self.submitted));
        }
        None
    }

    /// Whether it is time to ask for credits.
    fn asks_for_credits(&self) -> bool {
        self.credits.is_empty() && !self.is_request_outstanding && self.needs_credits()
    }

    /// Whether there is, or may be, a block that needs a credit.
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
            // The sink had finished before it learnt that this end has cancelled.
            return self.life.handle_closed();
        }
        if !self.window.is_empty() {
            return Err(Fault::Totals(complete.blocks));
        }
        self.is_complete = true;
        Ok(())
    }

    /// The session is complete once the transport is done with its blocks, too.
    fn settle(&mut self) {
        if self.is_complete && self.writing == 0 {
            self.life.complete();
        }
    }

    /// The channel with the fewest bytes outstanding; among equals the one that was used longest
    /// ago.
    fn choose_channel(&self) -> Option<u16> {
        let usable = self
            .channels
            .iter()
            .filter(|(_, channel)| !channel.is_lost && channel.writes < self.setup.writes_max);
        usable.min_by_key(|(_, channel)| (channel.bytes, channel.last)).map(|(number, _)| *number)
    }

    /// A channel is lost as far as this end knows.
    fn lose(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.is_lost {
            return;
        }
        channel.is_lost = true;
        self.losses.insert(number);
        self.step_all(number, SourceState::Written, SourceEvent::ChannelLost);
    }

    /// The sink has closed its end of a channel, and has acknowledged all that arrived there.
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

    /// Forgets a channel that is of no more use.
    fn forget(&mut self, number: u16) {
        if self
            .channels
            .get(&number)
            .is_some_and(|channel| channel.is_fenced && channel.writes == 0)
        {
            self.channels.remove(&number);
        }
    }

    /// All blocks of a channel in one state take a step.
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

    /// The session ends: no block is needed any more.
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

    /// Changes the state of a block, and all that depends on it. Events that the state does not
    /// have do nothing: those that a peer causes have been looked at before.
    fn step(&mut self, block: u32, event: SourceEvent) {
        let slot = &mut self.blocks[block as usize];
        let Some(state) = slot.state.after(event) else { return };
        let (from, seq, len) = (slot.state, slot.seq, u64::from(slot.len));
        slot.state = state;
        // The channel's load ends when the block is neither under way nor at the sink unconfirmed.
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
