//! Outgoing messages to a peer, and the datagrams that have not been acknowledged.

use std::collections::VecDeque;

use super::limits::{KEPT_MAX, READS_MAX};
use super::message::{Message, MessageKind};
use super::rate::Sent;
use super::request::Buffer;

/// A read or an atomic that waits for its response.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) id: u64,
    pub(super) read: u32,
    pub(super) into: Buffer,
    pub(super) received: u32,
    pub(super) is_atomic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    InFlight,
    Lost,
    /// Acknowledged before an earlier one.
    Received,
}

/// A datagram that was sent: a segment of a message.
#[derive(Debug)]
pub(super) struct Flight {
    /// The message's number.
    pub(super) message: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) state: FlightState,
    pub(super) again: bool,
    /// Grows with each transmission.
    pub(super) order: u64,
    pub(super) sent: Sent,
}

/// Everything that is being sent to a peer. It exists only while there is something.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) messages: VecDeque<Message>,
    /// Number of the first message.
    pub(super) first: u32,
    /// Number of messages that have been segmented completely.
    pub(super) cut: usize,
    /// The sequence of the last one is `next_seq - 1`.
    pub(super) flights: VecDeque<Flight>,
    pub(super) in_flight: u64,
    pub(super) lost: usize,
    pub(super) order: u64,
    /// The transmission order of the latest datagram that has arrived.
    pub(super) arrived_order: u64,
    /// When overdue datagrams count as lost.
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

    /// Resets it to the initial state, but keeps some memory.
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

    /// Whether another segment can be made, as far as the messages are concerned.
    pub(super) fn has_more(&self) -> bool {
        let next = self.messages.get(self.cut);
        next.is_some() && !self.next_waits()
    }

    /// Whether the next message is a read, or an atomic, that must wait for others to end.
    fn next_waits(&self) -> bool {
        let next = self.messages.get(self.cut);
        self.reads.len() >= READS_MAX && next.is_some_and(|next| next.kind.asks().is_some())
    }

    /// Moves a response before reads that have to wait, because the peer's reads may have to wait
    /// for it.
    pub(super) fn advance_response(&mut self) {
        if self.responses == 0 || !self.next_waits() {
            return;
        }
        let waiting = self.messages.iter().skip(self.cut);
        let mut kinds = waiting.map(|message| matches!(message.kind, MessageKind::Response { .. }));
        if let Some(behind) = kinds.position(|is_response| is_response)
            && let Some(response) = self.messages.remove(self.cut + behind)
        {
            self.messages.insert(self.cut, response);
        }
    }

    pub(super) fn arrived(&mut self, at: usize) -> Sent {
        let flight = &mut self.flights[at];
        let before = std::mem::replace(&mut flight.state, FlightState::Received);
        let sent = flight.sent;
        match before {
            FlightState::InFlight => self.in_flight -= u64::from(sent.len),
            FlightState::Lost => self.lost -= 1,
            FlightState::Received => {}
        }
        sent
    }

    pub(super) fn lose(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        match flight.state {
            FlightState::InFlight => self.in_flight -= u64::from(flight.sent.len),
            FlightState::Lost => return,
            FlightState::Received => {}
        }
        flight.state = FlightState::Lost;
        self.lost += 1;
    }
}
