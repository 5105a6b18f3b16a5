//! Processes what a peer sends: order, messages, and memory.

use weft_wire::ddp::{Header as Ddp, UntaggedQueue};
use weft_wire::rd::{Header, Kind, ReadFailure, Reason};
use weft_wire::rdmap::{AtomicRequest, Opcode, ReadRequest, queue};

use super::limits::{
    ACK_DELAY, ATOMIC_LEN, PARTIAL_MAX, PARTIAL_RATE, RECEIVE_COST, RESPONSES_MAX, SEND_LEN_MAX,
    TRANSFER_LEN_MAX, WINDOW,
};
use super::memory::{Memory, Party};
use super::message::{Message, MessageKind};
use super::peer::{Bond, RdPeer};
use super::request::{Data, Notice, Status};
use super::seq::distance;
use super::shared::EndpointState;
use super::time::NEVER;

/// Why the next segment in order is not accepted.
enum Halt {
    /// There is no room now.
    NoRoom,
    /// The address may be forged.
    Challenge,
    /// The segment will never be accepted.
    Refuse(Reason),
}

impl From<Reason> for Halt {
    fn from(reason: Reason) -> Self {
        Self::Refuse(reason)
    }
}

impl RdPeer {
    /// Processes a segment of the peer's stream.
    pub(super) fn receive(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        header: &Header,
        segment: &[u8],
    ) {
        if let Some(reason) = self.refused {
            let next = Some(self.recv_next);
            return self.answer(now, shared, header, Kind::Reset(reason), next);
        }
        let ahead = distance(self.recv_next, header.sequence);
        if ahead != 0 {
            // A duplicate, or a gap before the segment: acknowledge at once, so that the sender
            // knows.
            self.ack_at = now;
            if (1..i32::from(WINDOW)).contains(&ahead) && self.proven {
                self.keep_early(shared, ahead as usize - 1, segment);
            }
            return;
        }
        let mut result = self.take(now, shared, memory, segment);
        while result.is_ok()
            && let Some(early) = self.next_early(shared)
        {
            self.ack_at = now;
            result = self.take(now, shared, memory, &early);
        }
        match result {
            Ok(()) => {}
            Err(Halt::NoRoom) => {
                (self.ack_at, self.closed) = (now, true);
                shared.no_room = true;
                if !std::mem::replace(&mut self.starved, true) {
                    shared.starved.push(self.route);
                }
            }
            Err(Halt::Challenge) => self.answer(now, shared, header, Kind::Challenge, None),
            Err(Halt::Refuse(reason)) => {
                self.drop_inbox(shared);
                self.refused = Some(reason);
                let next = Some(self.recv_next);
                self.answer(now, shared, header, Kind::Reset(reason), next);
                if self.bond != Bond::None {
                    // First, so that what is open here is not taken for what has failed.
                    self.lose(shared, Status::Refused(reason));
                    self.fail(now, shared, Status::PeerUnreachable);
                }
            }
        }
        self.release_empty_inbox();
    }

    fn keep_early(&mut self, shared: &mut EndpointState, at: usize, segment: &[u8]) {
        let held = self.inbox.as_ref().map_or(0, |inbox| inbox.early_len);
        // A peer may hold at most as much as is left for the others (A. K. Choudhury and E. L.
        // Hahne, "Dynamic Queue Length Thresholds", IEEE/ACM Transactions on Networking 6(2),
        // 1998).
        if held + segment.len() > shared.early_room {
            return;
        }
        let inbox = self.inbox.get_or_insert_default();
        if inbox.early.len() <= at {
            inbox.early.resize(at + 1, None);
        }
        if inbox.early[at].is_none() {
            inbox.early[at] = Some(segment.into());
            inbox.early_len += segment.len();
            shared.early_room -= segment.len();
        }
    }

    /// Takes the next segment in order, if it arrived early.
    fn next_early(&mut self, shared: &mut EndpointState) -> Option<Box<[u8]>> {
        // The front is the segment behind the one just taken.
        let inbox = self.inbox.as_mut()?;
        let segment = inbox.early.pop_front()??;
        inbox.early_len -= segment.len();
        shared.early_room += segment.len();
        Some(segment)
    }

    /// Carries out the next segment in order.
    fn take(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        segment: &[u8],
    ) -> Result<(), Halt> {
        let (ddp, at) = Ddp::parse(segment).map_err(|_| Reason::Malformed)?;
        let opcode = Opcode::of(&ddp).map_err(|_| Reason::Malformed)?;
        let payload = &segment[at..];
        if shared.config.connected {
            self.check_bond(opcode, payload)?;
        }
        match (opcode, ddp) {
            (Opcode::Send, Ddp::Untagged { ulp_word: length, msn, mo, last, .. }) => {
                self.take_send(now, shared, length, msn, mo, last, payload)?;
            }
            (Opcode::Write, Ddp::Tagged { stag, to, .. }) => {
                // A Write of no bytes accesses no memory, and its STag is not checked (RFC 5041,
                // 5.2).
                if !payload.is_empty() {
                    memory.write(Party::Remote, stag, to, payload)?;
                }
            }
            (Opcode::ReadRequest, Ddp::Untagged { msn, mo, last, .. }) => {
                self.take_read_request(now, shared, memory, msn, mo, last, payload)?;
            }
            (Opcode::AtomicRequest, Ddp::Untagged { msn, mo, last, .. }) => {
                self.take_atomic_request(now, shared, memory, msn, mo, last, payload)?;
            }
            (Opcode::ReadResponse, Ddp::Tagged { to, last, .. }) => {
                self.take_response(shared, memory, to, last, payload);
            }
            (Opcode::Terminate, Ddp::Untagged { .. }) => {
                let failure = ReadFailure::parse(payload).map_err(|_| Reason::Malformed)?;
                self.end_read(shared, failure.read, Status::Refused(failure.reason));
            }
            _ => return Err(Reason::Malformed.into()),
        }
        self.recv_next = self.recv_next.wrapping_add(1);
        if self.flights() == 0 {
            // While a response arrives, nothing has to be retransmitted.
            self.timer_from = now;
        }
        // Acknowledge the end of a message at once, because the sender waits for it, and every
        // second datagram.
        let soon = ddp.is_last() || self.ack_at != NEVER;
        self.ack_at = self.ack_at.min(if soon { now } else { now + ACK_DELAY });
        Ok(())
    }

    /// Checks that a segment is one that a peer of this kind may send. Only messages come from
    /// those that are not connected, and nothing from addresses that are not proven.
    fn check_bond(&self, opcode: Opcode, payload: &[u8]) -> Result<(), Halt> {
        let needs_connection = match opcode {
            Opcode::Write => !payload.is_empty(),
            Opcode::ReadRequest | Opcode::AtomicRequest => true,
            _ => false,
        };
        if !self.proven {
            Err(Halt::Challenge)
        } else if needs_connection && self.bond != Bond::Connected {
            Err(Reason::NotConnected.into())
        } else {
            Ok(())
        }
    }

    #[allow(clippy::too_many_arguments)] // The fields of one header.
    fn take_send(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        length: u32,
        msn: u32,
        mo: u32,
        last: bool,
        payload: &[u8],
    ) -> Result<(), Halt> {
        let cost = length as usize + RECEIVE_COST;
        if length > SEND_LEN_MAX || cost > shared.config.receive_bytes {
            return Err(Reason::TooLong.into());
        }
        let sends = &mut self.queues[queue::SEND as usize];
        let mut moved = *sends;
        let place = moved
            .check(msn, mo, payload.len(), last, length.into())
            .map_err(|_| Reason::Malformed)?;
        let end = place.offset as usize + payload.len();
        let length = length as usize;
        let begun = self.inbox.as_ref().map_or(0, |inbox| inbox.partial_len);
        if last != (end == length) || (!place.first && length != begun) {
            return Err(Reason::Malformed.into());
        }
        if place.first {
            // Unproven peers may use half of the room, with messages of one datagram.
            let room = if self.proven { shared.receive_room } else { shared.receive_room / 2 };
            if !self.proven && (!last || cost > room) {
                return Err(Halt::Challenge);
            }
            if cost > room {
                return Err(Halt::NoRoom);
            }
            shared.receive_room -= cost;
        }
        *sends = moved;
        let bytes = if place.first && last {
            payload.to_vec()
        } else {
            let inbox = self.inbox.get_or_insert_default();
            if place.first {
                (inbox.partial_len, inbox.partial_at) = (length, now);
                inbox.partial.reserve_exact(length);
            }
            inbox.partial.extend_from_slice(payload);
            if !last {
                return Ok(());
            }
            inbox.partial_len = 0;
            std::mem::take(&mut inbox.partial)
        };
        shared.notices.push_back(Notice::Received { route: self.route, bytes });
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // The fields of one header.
    fn take_read_request(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        msn: u32,
        mo: u32,
        last: bool,
        payload: &[u8],
    ) -> Result<(), Halt> {
        let request = ReadRequest::parse(payload).map_err(|_| Reason::Malformed)?;
        let responses = self.outbox.as_ref().map_or(0, |outbox| outbox.responses());
        if !last || request.sink_to as u32 != 0 || responses >= RESPONSES_MAX {
            return Err(Reason::Malformed.into());
        }
        if request.size > TRANSFER_LEN_MAX {
            return Err(Reason::TooLong.into());
        }
        if request.size != 0 {
            let len = u64::from(request.size);
            memory.check_remote_read(request.source_stag, request.source_to, len)?;
        }
        let requests: &mut UntaggedQueue = &mut self.queues[queue::READ_REQUEST as usize];
        requests
            .check(msn, mo, payload.len(), last, ReadRequest::LEN as u64)
            .map_err(|_| Reason::Malformed)?;
        let buffer = super::request::Buffer {
            key: request.source_stag,
            addr: request.source_to,
            len: request.size,
        };
        let read = (request.sink_to >> 32) as u32;
        let kind = MessageKind::Response { read, sink: request.sink_stag };
        self.enqueue(now, shared, Message::new(0, kind, Data::Registered(buffer)));
        Ok(())
    }

    /// Carries out an atomic operation. Its response keeps the value, so that what is sent again is
    /// the value of the one time.
    #[allow(clippy::too_many_arguments)] // The fields of one header.
    fn take_atomic_request(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        msn: u32,
        mo: u32,
        last: bool,
        payload: &[u8],
    ) -> Result<(), Halt> {
        let request = AtomicRequest::parse(payload).map_err(|_| Reason::Malformed)?;
        if !self.proven {
            // A first datagram that the network repeats could be one of an earlier time.
            return Err(Halt::Challenge);
        }
        let responses = self.outbox.as_ref().map_or(0, |outbox| outbox.responses());
        if !last || responses >= RESPONSES_MAX {
            return Err(Reason::Malformed.into());
        }
        let requests: &mut UntaggedQueue = &mut self.queues[queue::READ_REQUEST as usize];
        requests
            .check(msn, mo, payload.len(), last, AtomicRequest::LEN as u64)
            .map_err(|_| Reason::Malformed)?;
        let AtomicRequest { op, request_id: read, remote_stag, remote_to } = request;
        let old = memory.update(remote_stag, remote_to, op)?;
        let kind = MessageKind::Response { read, sink: 0 };
        let data = Data::Bytes(old.to_be_bytes().into());
        self.enqueue(now, shared, Message::new(0, kind, data));
        Ok(())
    }

    fn take_response(
        &mut self,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        to: u64,
        last: bool,
        payload: &[u8],
    ) {
        let (number, offset) = ((to >> 32) as u32, to as u32);
        let Some(read) = self.outbox.as_mut().and_then(|outbox| outbox.read_mut(number)) else {
            // We have given the read up.
            return;
        };
        let left = (read.into.len - read.received) as usize;
        let fits = offset == read.received && payload.len() <= left;
        if !fits || (last && payload.len() != left) {
            // A wrong response only ends its own read. The same applies if the peer's memory was
            // deregistered: what the peer could no longer send is missing.
            return self.end_read(shared, number, Status::Refused(Reason::Malformed));
        }
        let value = match payload.first_chunk() {
            Some(&bytes) if read.is_atomic => u64::from_be_bytes(bytes).to_ne_bytes(),
            None if read.is_atomic => {
                return self.end_read(shared, number, Status::Refused(Reason::Malformed));
            }
            _ => [0; ATOMIC_LEN as usize],
        };
        let payload = if read.is_atomic { &value[..] } else { payload };
        let addr = read.into.addr.wrapping_add(offset.into());
        read.received += payload.len() as u32;
        let written = match payload {
            [] => Ok(()),
            _ => memory.write(Party::Local, read.into.key, addr, payload),
        };
        match written {
            Err(reason) => self.end_read(shared, number, Status::LocalAccess(reason)),
            Ok(()) if last => self.end_read(shared, number, Status::Success),
            Ok(()) => {}
        }
    }

    /// Bitmap of the 64 sequences from `64 * word` behind the first missing one that have arrived.
    pub(super) fn early_word(&self, word: usize) -> u64 {
        let Some(inbox) = &self.inbox else { return 0 };
        let early = inbox.early.iter().skip(64 * word).take(64).enumerate();
        early.map(|(bit, segment)| u64::from(segment.is_some()) << bit).sum()
    }

    /// Number of bitmap words with any bit set.
    pub(super) fn early_words(&self) -> usize {
        self.inbox.as_ref().map_or(0, |inbox| inbox.early.len().div_ceil(64))
    }

    /// Refuses an incomplete Send that has used room for too long.
    pub(super) fn drop_slow_partial(&mut self, now: u64, shared: &mut EndpointState) {
        let slow = self.inbox.as_ref().is_some_and(|inbox| {
            let earned = inbox.partial.len() as u64 * 1_000_000 / PARTIAL_RATE;
            let allowed = inbox.partial_at + PARTIAL_MAX + earned;
            inbox.partial_len != 0 && allowed < now
        });
        if slow {
            self.drop_inbox(shared);
            self.refused = Some(Reason::TooLong);
        }
    }

    pub(super) fn drop_inbox(&mut self, shared: &mut EndpointState) {
        let Some(inbox) = self.inbox.take() else { return };
        shared.early_room += inbox.early_len;
        if inbox.partial_len != 0 {
            shared.receive_room += inbox.partial_len + RECEIVE_COST;
        }
    }

    /// Drops the inbox if the stream is in order and between messages.
    fn release_empty_inbox(&mut self) {
        if let Some(inbox) = &self.inbox
            && inbox.early.is_empty()
            && inbox.partial_len == 0
        {
            self.inbox = None;
        }
    }
}
