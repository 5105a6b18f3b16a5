//! What is on its way to a peer: messages, and the datagrams that have not been acknowledged.

use std::collections::VecDeque;

use super::limits::{KEPT_MAX, READS_MAX};
use super::message::{Message, What};
use super::rate::Sent;
use super::request::Buffer;

/// A read whose response is awaited.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) id: u64,
    pub(super) read: u32,
    pub(super) into: Buffer,
    pub(super) received: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Flying,
    Lost,
    /// Acknowledged before an earlier one.
    Received,
}

/// A datagram under way: a segment of a message.
#[derive(Debug)]
pub(super) struct Flight {
    /// The message's place in the order of messages.
    pub(super) message: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) fate: Fate,
    pub(super) again: bool,
    /// Grows with each transmission.
    pub(super) order: u64,
    pub(super) sent: Sent,
}

/// What goes to a peer. Exists while anything is to be done for it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) messages: VecDeque<Message>,
    /// Place of the first of them in the order of messages.
    pub(super) first: u32,
    /// How many of them have been cut to the end.
    pub(super) cut: usize,
    /// The last is `next_seq - 1`.
    pub(super) flights: VecDeque<Flight>,
    pub(super) flying: u64,
    pub(super) lost: usize,
    pub(super) order: u64,
    /// The datagram last sent that has arrived.
    pub(super) arrived_order: u64,
    /// When datagrams that are overdue count as lost.
    pub(super) late_at: Option<u64>,
    pub(super) reads: VecDeque<PendingRead>,
    pub(super) responses: usize,
}

impl Outbox {
    pub(super) fn responses(&self) -> usize {
        self.responses
    }

    pub(super) fn read_mut(&mut self, number: u32) -> Option<&mut PendingRead> {
        self.reads.iter_mut().find(|read| read.read == number)
    }

    /// As new, but for some memory that is kept.
    pub(super) fn clear(&mut self) {
        let Self { mut messages, mut flights, mut reads, .. } = std::mem::take(self);
        messages.clear();
        flights.clear();
        reads.clear();
        messages.shrink_to(KEPT_MAX);
        flights.shrink_to(KEPT_MAX);
        *self = Self { messages, flights, reads, ..Self::default() };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.reads.is_empty()
    }

    /// Whether a segment can be cut, as far as the messages are concerned.
    pub(super) fn has_more(&self) -> bool {
        let next = self.messages.get(self.cut);
        next.is_some() && !self.next_waits()
    }

    /// Whether the next message is a read that has to wait for others to end.
    fn next_waits(&self) -> bool {
        let next = self.messages.get(self.cut);
        self.reads.len() >= READS_MAX
            && next.is_some_and(|next| matches!(next.what, What::Read { .. }))
    }

    /// Lets a response overtake reads that have to wait: the peer's may have to wait for it.
    pub(super) fn advance_response(&mut self) {
        if self.responses == 0 || !self.next_waits() {
            return;
        }
        let waiting = self.messages.iter().skip(self.cut);
        let mut kinds = waiting.map(|message| matches!(message.what, What::Response { .. }));
        if let Some(behind) = kinds.position(|is_response| is_response)
            && let Some(response) = self.messages.remove(self.cut + behind)
        {
            self.messages.insert(self.cut, response);
        }
    }

    pub(super) fn arrived(&mut self, at: usize) -> Sent {
        let flight = &mut self.flights[at];
        let fate = std::mem::replace(&mut flight.fate, Fate::Received);
        let sent = flight.sent;
        match fate {
            Fate::Flying => self.flying -= u64::from(sent.len),
            Fate::Lost => self.lost -= 1,
            Fate::Received => {}
        }
        sent
    }

    pub(super) fn lose(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        match flight.fate {
            Fate::Flying => self.flying -= u64::from(flight.sent.len),
            Fate::Lost => return,
            Fate::Received => {}
        }
        flight.fate = Fate::Lost;
        self.lost += 1;
    }
}
