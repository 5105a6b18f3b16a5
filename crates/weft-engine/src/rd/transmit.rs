//! Sending: which datagram is sent next to a peer, and when.

use weft_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use weft_wire::rd::{
    Acknowledgement, CRC_LEN, HEADER_LEN, Header, Kind, RdEnd, ReadFailure, Reason, WORDS_MAX, seal,
};
use weft_wire::rdmap::queue;

use super::limits::{FIRST_FLIGHT, GIVE_UP, RTO_MAX, WINDOW};
use super::memory::Memory;
use super::message::{Message, MessageKind};
use super::outbox::{Flight, FlightState, Outbox, PendingRead};
use super::peer::RdPeer;
use super::rate::Sent;
use super::request::{Data, Status};
use super::shared::EndpointState;
use super::time::{NEVER, stamp};

const _: () = assert!(RTO_MAX < GIVE_UP, "a peer is asked again before it is given up");

impl RdPeer {
    /// Produces the next datagram for the peer, if one can be sent now. Returns whether it did.
    pub(super) fn transmit(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
    ) -> bool {
        if self.transmit_data(now, shared, memory, buf) {
            return true;
        }
        let probe = std::mem::take(&mut self.probe);
        if self.ack_at > now && !probe {
            return false;
        }
        self.ack_at = NEVER;
        let count = self.early_words().saturating_sub(1).min(WORDS_MAX);
        // Until the peer knows that we know its stream, request an answer.
        let probe = probe || self.is_unsettled();
        if !self.spend((HEADER_LEN + 8 * count + CRC_LEN) as u32) {
            return false;
        }
        let header = Header { probe, ..self.header(now, Kind::Ack, self.next_seq) };
        buf.clear();
        buf.resize(HEADER_LEN, 0);
        header.emit(buf);
        for word in 1..=count {
            buf.extend_from_slice(&self.early_word(word).to_be_bytes());
        }
        seal(buf);
        true
    }

    fn header(&self, now: u64, kind: Kind, sequence: u32) -> Header {
        let ack = Acknowledgement { next: self.recv_next, selective: self.early_word(0) };
        Header {
            kind,
            syn: !self.synced,
            probe: false,
            lost: self.gave_up && !self.synced,
            source: RdEnd {
                endpoint: self.route.local,
                epoch: self.own.epoch,
                stream: self.own.stream,
            },
            destination: RdEnd {
                endpoint: self.route.peer().endpoint,
                epoch: self.their.epoch,
                stream: self.their.stream,
            },
            window: if self.closed { 0 } else { WINDOW },
            sequence,
            ack: self.receiving.then_some(ack),
            timestamp: stamp(now),
            echo: self.echo(now),
        }
    }

    fn transmit_data(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
    ) -> bool {
        loop {
            let room = u64::from(shared.datagram_len());
            let allowed = self.proven || u64::from(self.allowance) >= room;
            let flight_max = self.flight_max();
            let Some(outbox) = &mut self.outbox else { return false };
            outbox.advance_response();
            let paced =
                outbox.in_flight < self.rate.window(room) && self.rate.next_send_at() <= now;
            let at = if self.probe && self.window != 0 && !outbox.flights.is_empty() {
                // The receiver may have dropped segments that it had acknowledged selectively.
                outbox.lose(0);
                0
            } else if outbox.lost != 0 && paced && self.window != 0 {
                let lost =
                    outbox.flights.iter().position(|flight| flight.state == FlightState::Lost);
                lost.unwrap_or(0)
            } else if paced && outbox.has_more() && outbox.flights.len() < flight_max {
                outbox.flights.len()
            } else {
                return false;
            };
            if !allowed {
                return false;
            }
            if at == self.flights() && !self.cut(shared) {
                return false;
            }
            if self.emit_segment(now, shared, memory, buf, at) {
                self.probe = false;
                return true;
            }
            // The program's memory for this message is gone; try the next message.
        }
    }

    pub(super) fn flight_max(&self) -> usize {
        let window = usize::from(self.window.min(WINDOW));
        if self.synced { window } else { window.min(FIRST_FLIGHT as usize) }
    }

    /// Makes the next segment. It is added as the last one in flight, marked as lost, so that it is
    /// sent.
    fn cut(&mut self, shared: &EndpointState) -> bool {
        let Some(outbox) = &mut self.outbox else { return false };
        let at = outbox.cut;
        let Some(message) = outbox.messages.get_mut(at) else { return false };
        let (queue, header_len) = match message.kind {
            MessageKind::Send => (Some(queue::SEND), UNTAGGED_LEN),
            MessageKind::Read { .. } | MessageKind::Atomic { .. } => {
                (Some(queue::READ_REQUEST), UNTAGGED_LEN)
            }
            MessageKind::Failure(_) => (Some(queue::TERMINATE), UNTAGGED_LEN),
            MessageKind::Write { .. } | MessageKind::Response { .. } => (None, TAGGED_LEN),
        };
        if message.last.is_none()
            && let Some(queue) = queue
        {
            let msn = &mut self.next_msn[queue as usize];
            message.msn = *msn;
            *msn = msn.wrapping_add(1);
        }
        if let Some((read, into)) = message.kind.asks()
            && message.last.is_none()
        {
            let (id, received) = (message.id, 0);
            let is_atomic = matches!(message.kind, MessageKind::Atomic { .. });
            outbox.reads.push_back(PendingRead { id, read, into, received, is_atomic });
        }
        let room = shared.datagram_len() as usize - HEADER_LEN - header_len - CRC_LEN;
        let len = (message.len - message.cut).min(room as u32);
        outbox.flights.push_back(Flight {
            message: outbox.first.wrapping_add(at as u32),
            offset: message.cut,
            len,
            state: FlightState::Lost,
            again: false,
            order: 0,
            sent: Sent::default(),
        });
        outbox.lost += 1;
        message.cut += len;
        message.last = Some(self.next_seq);
        if message.is_cut() {
            outbox.cut += 1;
        }
        self.next_seq = self.next_seq.wrapping_add(1);
        true
    }

    /// Writes the segment at index `at`. Returns false if it need not be sent after all.
    fn emit_segment(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
        at: usize,
    ) -> bool {
        let flights = self.flights();
        let sequence = self.next_seq.wrapping_sub((flights - at) as u32);
        let header = self.header(now, Kind::Data, sequence);
        let acks_all = self.early_words() <= 1;
        let Some(outbox) = &mut self.outbox else { return false };
        let Outbox { messages, flights, first, .. } = &mut **outbox;
        let flight = &mut flights[at];
        let index = flight.message.wrapping_sub(*first) as usize;
        let Some(message) = messages.get_mut(index) else { return false };
        buf.clear();
        buf.resize(HEADER_LEN, 0);
        header.emit(buf);
        if let Err(reason) = message.segment(memory, flight.offset, flight.len, buf) {
            self.give_up_message(shared, index, reason);
            return false;
        }
        seal(buf);
        // The allowance of an unproven peer counts whole datagrams.
        let len = buf.len() as u32;
        outbox.lost -= 1;
        outbox.order += 1;
        let idle = outbox.lost == 0 && outbox.messages.len() == outbox.cut;
        let flight = &mut outbox.flights[at];
        flight.again = flight.order != 0;
        flight.order = outbox.order;
        flight.state = FlightState::InFlight;
        flight.sent = self.rate.sent(now, len, outbox.in_flight, idle);
        outbox.in_flight += u64::from(len);
        self.timer_from = now;
        if acks_all {
            self.ack_at = NEVER;
        }
        self.spend(len);
        true
    }

    /// Fails a message whose memory cannot be read (any more). Its segments are sent empty.
    fn give_up_message(&mut self, shared: &mut EndpointState, index: usize, reason: Reason) {
        let Some(outbox) = &mut self.outbox else { return };
        let message = &mut outbox.messages[index];
        if !message.is_cut() {
            outbox.cut += 1;
        }
        message.len = message.cut;
        message.over = true;
        let (id, own_bytes) = (message.id, message.own_bytes());
        match message.kind {
            MessageKind::Response { read, .. } => {
                let failure = MessageKind::Failure(ReadFailure { read, reason });
                let failure = Message::new(0, failure, Data::Bytes(Box::default()));
                outbox.messages.insert(outbox.cut, failure);
            }
            _ => shared.complete(id, own_bytes, Status::LocalAccess(reason)),
        }
    }

    /// The next time at which something must be done if nothing arrives.
    pub(super) fn next_deadline(&self, shared: &EndpointState) -> u64 {
        let mut deadline = self.ack_at;
        if self.is_waiting() {
            deadline = deadline.min(self.timer_from + self.rtt.timeout(self.backoff));
        }
        let Some(outbox) = &self.outbox else { return deadline };
        if let Some(late_at) = outbox.late_at {
            deadline = deadline.min(late_at);
        }
        let room = u64::from(shared.datagram_len());
        let more = outbox.lost != 0 && self.window != 0
            || outbox.has_more() && outbox.flights.len() < self.flight_max();
        let allowed = self.proven || u64::from(self.allowance) >= room;
        if more && allowed && outbox.in_flight < self.rate.window(room) {
            deadline = deadline.min(self.rate.next_send_at());
        }
        deadline
    }

    /// Handles the deadline.
    pub(super) fn expired(&mut self, now: u64, shared: &mut EndpointState) {
        if self.outbox.as_ref().and_then(|outbox| outbox.late_at).is_some_and(|at| at <= now) {
            self.find_lost(now);
        }
        if !self.is_waiting() || self.timer_from + self.rtt.timeout(self.backoff) > now {
            return;
        }
        if now.saturating_sub(self.acked_at) >= GIVE_UP {
            // The program need not know that a peer never acknowledged its stream's start.
            self.their_syn = false;
            if self.outbox.is_some() {
                self.fail(now, shared, Status::PeerUnreachable);
            }
            return;
        }
        self.backoff = self.backoff.saturating_add(1);
        self.timer_from = now;
        self.probe = true;
        if self.dialled {
            let more = self.allowance.saturating_add(shared.datagram_len());
            self.allowance = more.min(FIRST_FLIGHT * shared.datagram_len());
        }
    }
}
