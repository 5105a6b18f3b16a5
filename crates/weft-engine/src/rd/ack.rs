//! Acknowledgements and loss detection for the datagrams that were sent to a peer.

use weft_wire::rd::{Acknowledgement, Header, Kind, words};

use super::limits::RTT_MAX;
use super::message::MessageKind;
use super::outbox::FlightState;
use super::peer::RdPeer;
use super::request::Status;
use super::seq::distance;
use super::shared::EndpointState;
use super::time::stamp;

/// A datagram counts as lost when this many later ones have arrived (RFC 9002, section 6.1.1).
const REORDER: u64 = 3;
/// A datagram counts as lost when a later one has arrived and it was sent this long ago, in eighths
/// of a round trip (RFC 9002, section 6.1.2).
const LATE_EIGHTHS: u64 = 9;

impl RdPeer {
    /// Processes an acknowledgement of our stream.
    pub(super) fn acknowledged(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        header: &Header,
        ack: Acknowledgement,
        body: &[u8],
    ) {
        let flights = self.flights();
        let first = self.next_seq.wrapping_sub(flights as u32);
        let arrived = distance(first, ack.next);
        if arrived > flights as i32 {
            // The sequence has not even been sent: ignore a forged or broken acknowledgement.
            return;
        }
        self.acked_at = now;
        let reopened = self.window == 0 && header.window != 0;
        if arrived >= 0 {
            self.window = header.window;
        }
        if self.window != 0 {
            self.backoff = 0;
        }
        if self.outbox.is_none() {
            return;
        }
        let rtt = (header.echo != 0)
            .then(|| stamp(now).wrapping_sub(header.echo))
            .filter(|rtt| *rtt < RTT_MAX);
        if arrived >= 0 {
            let body = if header.kind == Kind::Ack { body } else { &[] };
            self.mark(now, shared, rtt, arrived as usize, ack.selective, body);
        }
        let Some(outbox) = &mut self.outbox else { return };
        self.rate.acknowledged(now, rtt, outbox.in_flight);
        if reopened {
            self.resend_all(now);
        } else {
            self.find_lost(now);
        }
    }

    /// Marks datagrams as received: the first `count` in flight, and those in the bitmaps
    /// `selective` and `body`.
    pub(super) fn mark(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        rtt: Option<u32>,
        count: usize,
        selective: u64,
        body: &[u8],
    ) {
        let Some(outbox) = &mut self.outbox else { return };
        let selected = std::iter::once(selective).chain(words(body)).enumerate();
        let selected = selected.flat_map(|(word, bits)| {
            let set = (0..64).filter(move |bit| bits >> bit & 1 != 0);
            set.map(move |bit| count + 1 + 64 * word + bit)
        });
        let mut news = false;
        for at in (0..count).chain(selected) {
            let Some(flight) = outbox.flights.get(at) else { break };
            if flight.state == FlightState::Received {
                continue;
            }
            if flight.order == 0 {
                // Segmented, but not sent yet: an honest peer cannot have it.
                outbox.arrived(at);
                continue;
            }
            news = true;
            // If a datagram was sent twice, the first copy may be the one that arrived.
            if !flight.again || now.saturating_sub(flight.sent.at) >= self.rate.min_rtt() {
                outbox.arrived_order = outbox.arrived_order.max(flight.order);
            }
            let sent = outbox.arrived(at);
            self.rate.arrived(now, &sent);
        }
        if news {
            self.timer_from = now;
            if let Some(rtt) = rtt {
                self.rtt.measured(rtt);
            }
        }
        outbox.flights.drain(..count);
        self.finish_messages(shared);
    }

    /// Removes the messages that the peer has received completely.
    fn finish_messages(&mut self, shared: &mut EndpointState) {
        let first = self.next_seq.wrapping_sub(self.flights() as u32);
        let Some(outbox) = &mut self.outbox else { return };
        while let Some(message) = outbox.messages.front()
            && (message.is_cut() || message.over)
            && message.last.is_none_or(|last| distance(last, first) > 0)
        {
            let Some(message) = outbox.messages.pop_front() else { return };
            outbox.first = outbox.first.wrapping_add(1);
            outbox.cut -= 1;
            match message.kind {
                MessageKind::Send | MessageKind::Write { .. } if !message.over => {
                    shared.complete(message.id, message.own_bytes(), Status::Success);
                }
                MessageKind::Response { .. } => outbox.responses -= 1,
                _ => {}
            }
        }
        self.release_empty_outbox(shared);
    }

    /// Marks the datagrams that count as lost, because later ones have arrived.
    pub(super) fn find_lost(&mut self, now: u64) {
        let rtt = self.rtt.smoothed().max(1_000);
        let late = rtt * LATE_EIGHTHS / 8;
        let Some(outbox) = &mut self.outbox else { return };
        outbox.late_at = None;
        if outbox.flights.front().is_none_or(|flight| flight.order > outbox.arrived_order)
            && !outbox.flights.iter().any(|flight| flight.again)
        {
            return;
        }
        for at in 0..outbox.flights.len() {
            let flight = &outbox.flights[at];
            if flight.state != FlightState::InFlight || flight.order >= outbox.arrived_order {
                continue;
            }
            let late_at = flight.sent.at + late;
            if outbox.arrived_order - flight.order >= REORDER || late_at <= now {
                outbox.lose(at);
            } else {
                outbox.late_at = Some(outbox.late_at.map_or(late_at, |old| old.min(late_at)));
            }
        }
    }

    /// Marks everything in flight as lost, so that it is sent again.
    pub(super) fn resend_all(&mut self, now: u64) {
        self.timer_from = now;
        let Some(outbox) = &mut self.outbox else { return };
        for at in 0..outbox.flights.len() {
            if outbox.flights[at].state == FlightState::InFlight || at == 0 {
                outbox.lose(at);
            }
        }
    }
}
