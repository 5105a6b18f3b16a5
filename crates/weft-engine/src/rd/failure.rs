//! Failing requests, and continuing with the rest.

use weft_wire::rd::Reason;

use super::limits::WINDOW;
use super::message::{Message, MessageKind};
use super::peer::{Bond, RdPeer};
use super::request::Status;
use super::seq::distance;
use super::shared::EndpointState;

impl RdPeer {
    /// Handles the peer's refusal of the message at sequence `next`, which starts a new stream.
    pub(super) fn refused_at(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        next: u32,
        reason: Reason,
    ) {
        let flights = self.flights();
        let arrived = distance(self.next_seq.wrapping_sub(flights as u32), next);
        if arrived < 0 || arrived >= flights as i32 {
            return;
        }
        self.synced = true;
        self.acked_at = now;
        self.mark(now, shared, None, arrived as usize, 0, &[]);
        let Some(outbox) = &mut self.outbox else { return };
        let Some(flight) = outbox.flights.front() else { return };
        let index = flight.message.wrapping_sub(outbox.first) as usize;
        let Some(message) = outbox.messages.get_mut(index) else { return };
        let (id, own_bytes, kind) = (message.id, message.own_bytes(), message.kind);
        let over = std::mem::replace(&mut message.over, true);
        match kind {
            MessageKind::Read { read, .. } | MessageKind::Atomic { read, .. } => {
                self.end_read(shared, read, Status::Refused(reason));
            }
            MessageKind::Send | MessageKind::Write { .. } if !over => {
                shared.complete(id, own_bytes, Status::Refused(reason));
            }
            _ => {}
        }
        if self.bond == Bond::None {
            self.renew(now, shared, false);
        } else {
            // The peer has ended the connection.
            self.fail(now, shared, Status::PeerUnreachable);
            self.lose(shared, Status::Refused(reason));
        }
    }

    /// Ends a read or an atomic; its request need not be sent again.
    pub(super) fn end_read(&mut self, shared: &mut EndpointState, number: u32, status: Status) {
        let Some(outbox) = &mut self.outbox else { return };
        let Some(at) = outbox.reads.iter().position(|read| read.read == number) else { return };
        let Some(read) = outbox.reads.remove(at) else { return };
        shared.complete(read.id, 0, status);
        let asks = |message: &&mut Message| message.kind.asks().is_some_and(|(n, _)| n == number);
        let request = outbox.messages.iter_mut().find(asks);
        if let Some(request) = request {
            request.over = true;
        }
        self.release_empty_outbox(shared);
    }

    /// Drops the responses to the peer. Segments that were already sent are replaced by empty ones.
    pub(super) fn drop_responses(&mut self, shared: &mut EndpointState) {
        let Some(outbox) = &mut self.outbox else { return };
        let is_response = |message: &Message| matches!(message.kind, MessageKind::Response { .. });
        outbox.messages.retain(|message| message.last.is_some() || !is_response(message));
        for message in outbox.messages.iter_mut().filter(|message| is_response(message)) {
            outbox.cut += usize::from(!message.is_cut());
            (message.len, message.over) = (message.cut, true);
        }
        outbox.responses = outbox.messages.iter().filter(|message| is_response(message)).count();
        self.release_empty_outbox(shared);
    }

    /// Resets reads, because their responses will be sent again from the start.
    pub(super) fn restart_reads(&mut self) {
        let Some(outbox) = &mut self.outbox else { return };
        outbox.reads.iter_mut().for_each(|read| read.received = 0);
    }

    /// Fails all reads, because their responses will not be sent.
    pub(super) fn fail_reads(&mut self, shared: &mut EndpointState) {
        while let Some(read) = self.outbox.as_ref().and_then(|outbox| outbox.reads.front()) {
            let number = read.read;
            self.end_read(shared, number, Status::PeerUnreachable);
        }
    }

    /// Starts a new stream with the messages that the peer does not have. If the peer has
    /// `forgotten` the old stream, it has also forgotten reads.
    pub(super) fn renew(&mut self, now: u64, shared: &mut EndpointState, forgotten: bool) {
        self.own.stream = shared.new_stream();
        (self.synced, self.next_seq, self.next_msn) = (false, 1, [1; 3]);
        (self.window, self.backoff, self.probe) = (WINDOW, 0, false);
        (self.timer_from, self.acked_at) = (now, now);
        let Some(outbox) = &mut self.outbox else { return };
        outbox.flights.clear();
        (outbox.in_flight, outbox.lost, outbox.cut, outbox.late_at) = (0, 0, 0, None);
        outbox.messages.retain(|message| !message.over);
        outbox.responses = 0;
        for message in &mut outbox.messages {
            (message.cut, message.last) = (0, None);
            outbox.responses += usize::from(matches!(message.kind, MessageKind::Response { .. }));
        }
        let (messages, reads) = (&outbox.messages, &mut outbox.reads);
        let mut gone = Vec::new();
        reads.retain(|read| {
            let asks = |message: &Message| message.kind.asks().is_some_and(|(n, _)| n == read.read);
            let again = messages.iter().any(asks);
            if !again && forgotten {
                gone.push(read.id);
            }
            !again && !forgotten
        });
        for id in gone {
            shared.complete(id, 0, Status::PeerUnreachable);
        }
        self.release_empty_outbox(shared);
    }

    /// Fails all requests to the peer.
    pub(super) fn fail(&mut self, now: u64, shared: &mut EndpointState, status: Status) {
        if let Some(mut outbox) = self.outbox.take() {
            for read in outbox.reads.drain(..) {
                shared.complete(read.id, 0, status);
            }
            for message in outbox.messages.drain(..) {
                let is_reported = match message.kind {
                    MessageKind::Send | MessageKind::Write { .. } => message.over,
                    // Those that were sent are reported above, or are over.
                    MessageKind::Read { .. } | MessageKind::Atomic { .. } => {
                        message.last.is_some() || message.over
                    }
                    MessageKind::Response { .. } | MessageKind::Failure(_) => true,
                };
                if !is_reported {
                    shared.complete(message.id, message.own_bytes(), status);
                }
            }
            self.gave_up |= outbox.responses != 0;
            shared.keep_spare(outbox);
        }
        self.renew(now, shared, true);
    }
}
