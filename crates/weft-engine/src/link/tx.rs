//! The sending side: from posted work to bytes for the peer.

use std::ops::DerefMut;

use smallvec::SmallVec;
use weft_wire::ddp::{self, Header};
use weft_wire::error::ProtocolError;
use weft_wire::mpa::negotiate::RtrKind;
use weft_wire::rdmap::{
    self, AtomicOp, AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest, Terminate,
};

use super::control::{Control, IMMEDIATE_OF_SEND};
use super::framing::Framing;
use super::header::MessageHeader;
use super::host::{Host, Keys, Pinned};
use super::phase::PhaseEvent;
use super::responder::Response;
use super::ring::Direct;
use super::sender::Outstanding;
use super::{Fault, Link, Transport, fault, place};
use crate::access::Access;
use crate::attr::QpState;
use crate::limits::{READ_DEPTH_MAX, RING_CHUNK_MAX};
use crate::queue::send::{Progress, SendQueue};
use crate::wc::Status;
use crate::wr::{Operation, SendFlags};

/// Number of buffered bytes from which the buffer is handed to the socket.
const BATCH_LEN: usize = 128 << 10;
/// STag of the zero-length Write with which an initiator starts. Its value does not matter, because
/// a receiver must not check it (RFC 5041 section 5.2).
const RTR_STAG: u32 = 1;

impl<H: Host> Link<H> {
    /// Fills the buffer with what may be sent now. Returns whether there is anything in it.
    pub(crate) fn output(&mut self, host: &H) -> bool {
        if !(self.phase.is_open() || self.phase.is_closing()) {
            return false;
        }
        let buffered = |link: &Self| match &link.transport {
            Transport::Stream(framing) => framing.buffered(),
            Transport::Ring(_) => 0,
        };
        while buffered(self) < BATCH_LEN && self.step(host) {}
        !self.unsent().is_empty()
    }

    /// The buffered bytes that have not been sent.
    pub(crate) fn unsent(&self) -> &[u8] {
        match &self.transport {
            Transport::Stream(framing) => framing.unsent(),
            Transport::Ring(_) => &[],
        }
    }

    /// Takes the bytes that have not been sent out of the buffer.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        self.transport.stream_mut().map(Framing::take_unsent).unwrap_or_default()
    }

    /// Notes that the socket took `count` bytes of the buffer.
    pub(crate) fn sent(&mut self, count: usize, host: &H) {
        self.sender.taken += count as u64;
        if let Some(framing) = self.transport.stream_mut() {
            framing.sent(count);
        }
        if !self.is_acknowledged() && self.phase.is_open() {
            self.complete_sends(host);
        }
    }

    /// Drops the buffered bytes, because the stream takes no more.
    pub(crate) fn discard_output(&mut self) {
        if let Some(framing) = self.transport.stream_mut() {
            framing.discard();
        }
    }

    /// Whether everything that was due before closing the stream has been sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.phase.is_closing()
            && match &self.transport {
                Transport::Stream(framing) => framing.buffered() == 0,
                Transport::Ring(ring) => !ring.is_full(),
            }
    }

    /// Number of messages that have been placed, or wait for a receive, without a report to the
    /// Weft peer.
    pub(crate) fn acks_due(&self) -> u64 {
        if !self.is_acknowledged() {
            return 0;
        }
        let unreported = self.has_waiting() && self.rnr.reported != Some(self.receiver.placed);
        self.receiver.placed - self.receiver.placed_reported + u64::from(unreported)
    }

    /// Sends the number of placed messages once more, although the peer has it.
    pub(crate) fn repeat_acknowledgement(&mut self) {
        self.receiver.repeats_report = self.is_acknowledged();
    }

    /// Whether nothing but an acknowledgement, which may wait a little, is due.
    pub(crate) fn only_acks_due(&self, host: &H) -> bool {
        self.phase.is_open()
            && match &self.transport {
                Transport::Stream(framing) => framing.buffered() == 0,
                Transport::Ring(_) => true,
            }
            && self.responder.queue.is_empty()
            && !self.sender.outgoing.active
            && self.opening.rtr_due.is_none()
            && !host.may_have_unsent()
    }

    /// Does one step: sends an FPDU, or completes a request that needs none. Returns false if
    /// nothing can be done now.
    pub(super) fn step(&mut self, host: &H) -> bool {
        if let Transport::Ring(ring) = &mut self.transport
            && !ring.has_room()
        {
            return false;
        }
        if let Some(kind) = self.opening.rtr_due.take() {
            self.ready_to_receive_message(kind);
            return true;
        }
        if self.opening.hold && !self.phase.owes_terminate() {
            return false;
        }
        if self.sender.outgoing.active {
            return self.next_segment(host);
        }
        // Segments of one message follow each other (RFC 5041 section 5.3).
        if matches!(self.responder.queue.front(), Some(Response::Read { sent: 1.., .. })) {
            return self.read_response_segment(host);
        }
        if self.acknowledge() {
            return true;
        }
        // Requests of the program and responses to the peer alternate.
        self.responder.turn = !self.responder.turn;
        let our_turn = !self.responder.turn || self.responder.queue.is_empty();
        let has_unsent = host.may_have_unsent();
        let may_batch =
            has_unsent && our_turn && self.transport.ring().is_some() && self.is_acknowledged();
        if may_batch && (self.push_small_sends(host) || self.write_small(host)) {
            return true;
        }
        if self.responder.turn && self.respond(host) {
            return true;
        }
        has_unsent && self.next_request(host) || self.respond(host) || self.send_terminate()
    }

    fn ready_to_receive_message(&mut self, kind: RtrKind) {
        match kind {
            RtrKind::Write => {
                let header = MessageHeader::Tagged { opcode: Opcode::Write, stag: RTR_STAG, to: 0 };
                self.whole(header, &[]);
            }
            RtrKind::Send => {
                let header = self.send_header(Opcode::Send, 0);
                self.whole(header, &[]);
            }
            RtrKind::Read => self.read_request_message(None, 0, 0, 0, SmallVec::new()),
        }
    }

    /// Reports the number of placed messages to a Weft peer, if that is due. Returns whether it
    /// was.
    fn acknowledge(&mut self) -> bool {
        let Some(stag) = self.peer_ack_stag().filter(|_| self.service.acknowledges()) else {
            return false;
        };
        let waiting = self.has_waiting() && self.rnr.reported != Some(self.receiver.placed);
        let repeats = std::mem::take(&mut self.receiver.repeats_report);
        if self.receiver.placed == self.receiver.placed_reported && !waiting && !repeats {
            return false;
        }
        let placed = self.receiver.placed;
        if let Transport::Ring(ring) = &mut self.transport {
            ring.publish_placed(placed);
            self.receiver.placed_reported = placed;
            if !waiting {
                return true;
            }
        }
        let control = if waiting {
            self.rnr.reported = Some(placed);
            Control::NotReady { placed, timer: self.rules.min_rnr_timer }
        } else {
            Control::Placed { placed }
        };
        self.receiver.placed_reported = placed;
        let to = control.to_offset();
        self.whole(MessageHeader::Tagged { opcode: Opcode::Write, stag, to }, &[]);
        true
    }

    fn send_terminate(&mut self) -> bool {
        let Some(terminate) = self.phase.take_terminate() else { return false };
        let mut payload = [0; Terminate::LEN_MAX];
        let len = terminate.emit(&mut payload);
        self.fpdu(&Terminate::HEADER, &payload[..len]);
        true
    }

    // ---- Answers to the peer ----

    fn respond(&mut self, host: &H) -> bool {
        match self.responder.queue.front() {
            None => false,
            Some(&Response::Atomic(response)) => {
                self.responder.queue.pop_front();
                self.atomic_response_message(response);
                true
            }
            Some(Response::Read { .. }) => self.read_response_segment(host),
        }
    }

    fn atomic_response_message(&mut self, response: AtomicResponse) {
        let mut payload = [0; AtomicResponse::LEN];
        response.emit(&mut payload);
        let msn = self.responder.msn;
        self.responder.msn = msn.wrapping_add(1);
        let qn = rdmap::queue::ATOMIC_RESPONSE;
        let opcode = Opcode::AtomicResponse;
        self.whole(MessageHeader::Untagged { opcode, ulp_word: 0, qn, msn }, &payload);
    }

    //= rfc5040#section-5.2
    //# The RDMA Read operation MUST consist of a single RDMA Read Request Message and a single RDMA
    //# Read Response Message.
    //= rfc5040#section-5.2.2
    //# An RDMA Read Response Message MUST reference a Tagged Buffer. That is, the Data Source RDMAP
    //# layer MUST request that the DDP mark the Message as Tagged.
    //= rfc5040#section-5.2.2
    //# The Data Source RDMAP layer MUST pass RDMA Read Response Messages to the DDP layer, in the
    //# order that the RDMA Read Request Messages were received by the RDMAP layer, at the Data
    //# Source.
    fn read_response_segment(&mut self, host: &H) -> bool {
        let context = host.context();
        let (room, shares) = match &self.transport {
            Transport::Stream(framing) => (framing.payload_max(ddp::TAGGED_LEN), false),
            Transport::Ring(_) => (RING_CHUNK_MAX, true),
        };
        let Some(Response::Read { sink_stag, sink_to, key, addr, length, sent }) =
            self.responder.queue.front_mut()
        else {
            return false;
        };
        let offset = *sent;
        let count = (*length - offset).min(room);
        *sent += count;
        let last = *sent == *length;
        let (stag, to) = (*sink_stag, *sink_to);
        let source = (*key, addr.wrapping_add(u64::from(offset)), u64::from(count));
        let header = MessageHeader::Tagged { opcode: Opcode::ReadResponse, stag, to };
        if shares {
            return self.share_read_response(&header.segment(offset, last), source, host);
        }
        let Some(framing) = self.transport.stream_mut() else { return false };
        let start = framing.begin(&header.segment(offset, last));
        if count > 0 {
            let (key, addr, len) = source;
            let found = self.sender.keys.access(context, key, addr, len, Access::REMOTE_READ);
            let copied = found.map(|pin| pin.read(framing.buffer()));
            if let Err(error) = copied {
                framing.abandon(start);
                return self.break_off_response(fault::requested(error, key), host);
            }
        }
        self.sender.appended += framing.end(start);
        if last {
            self.responder.queue.pop_front();
        }
        true
    }

    /// Ends the connection because the memory of a peer's read was deregistered before the read was
    /// complete: the peer must not take the rest for data. The peer's request fails, and none of
    /// ours.
    pub(super) fn break_off_response(&mut self, error: ProtocolError, host: &H) -> bool {
        self.responder.queue.clear();
        self.refuse(host, &Fault::from(error));
        true
    }

    /// Ends the connection because memory was deregistered in the middle of a message: the peer
    /// must not take the rest for data.
    pub(super) fn break_off(&mut self, host: &H) -> bool {
        self.responder.queue.clear();
        self.sender.outgoing.active = false;
        self.notices.disconnected = true;
        self.terminate(ProtocolError::RdmapCatastrophic);
        self.fail(host, Some(Status::LocProtErr), 0);
        true
    }

    /// Queues a Terminate message, as the last message to the peer.
    fn terminate(&mut self, error: ProtocolError) {
        self.enter(PhaseEvent::Terminated(error.terminate(None, None)));
    }

    // ---- The program's requests ----

    fn next_request(&mut self, host: &H) -> bool {
        if self.rules.state != QpState::Rts || !self.phase.is_open() {
            return false;
        }
        let mut sq = host.sends();
        let Some((number, work)) = sq.peek_next() else {
            host.note_unsent(&sq);
            return false;
        };
        if work.flags.contains(SendFlags::FENCE) && !self.sender.outstanding.is_empty()
            || self.would_overtake_read(&work.operation, work.length)
        {
            return false;
        }
        let operation = work.operation.clone();
        let takes_answer = matches!(
            operation,
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        if takes_answer && self.sender.outstanding.len() >= self.ord() && self.ord() > 0 {
            return false;
        }
        let (length, flags, srqn) = (work.length, work.flags, work.srqn);
        let mut sges = std::mem::take(&mut self.sender.outgoing.sges);
        let mut bytes = std::mem::take(&mut self.sender.outgoing.inline);
        sq.copy_next(&mut sges, &mut bytes);
        (self.sender.outgoing.sges, self.sender.outgoing.inline) = (sges, bytes);
        if let Err(status) = self.check_request(&operation, length, takes_answer, host) {
            // Completions are in order: wait for earlier requests, which are not at fault.
            if sq.is_awaiting() {
                return false;
            }
            drop(sq);
            self.fail_request(status, host);
            return false;
        }
        // An unreliable connection does not order operations of different kinds, so none is done
        // directly.
        let may_be_direct = self.transport.ring().is_some() && self.is_acknowledged();
        if may_be_direct && !matches!(operation, Operation::Send { .. }) {
            drop(sq);
            match self.direct(&operation, length, flags, srqn, host) {
                Direct::Done => return true,
                Direct::Wait => return false,
                Direct::Ring => sq = host.sends(),
            }
        }
        self.start_request(operation, number, length, flags, srqn, sq, host)
    }

    /// Whether the request changes memory of the peer that an earlier read has still to read.
    /// Neither iWARP (RFC 5040, section 5.5) nor InfiniBand guarantees an order without a fence.
    /// But cards start the read first, and programs rely on it: Open MPI's `MPI_Get_accumulate`
    /// reads the old value and writes the new one right behind it.
    fn would_overtake_read(&self, operation: &Operation, length: u32) -> bool {
        match *operation {
            Operation::Write { remote_addr, rkey, .. }
            | Operation::FetchAdd { remote_addr, rkey, .. }
            | Operation::CompareSwap { remote_addr, rkey, .. } => {
                self.sender.outstanding.iter().any(|before| before.reads(rkey, remote_addr, length))
            }
            _ => false,
        }
    }

    fn ord(&self) -> usize {
        usize::from(self.rules.max_rd_atomic.min(READ_DEPTH_MAX))
    }

    /// Checks for the errors that a card finds when it processes the request. They end the queue
    /// pair.
    fn check_request(
        &mut self,
        operation: &Operation,
        length: u32,
        takes_answer: bool,
        host: &H,
    ) -> Result<(), Status> {
        let needs = if takes_answer { Access::LOCAL_WRITE } else { Access::empty() };
        let context = host.context();
        place::check(&mut self.sender.keys, context, &self.sender.outgoing.sges, needs)
            .map_err(|_| Status::LocProtErr)?;
        let atomic =
            matches!(operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. });
        if atomic && length != 8 {
            return Err(Status::LocLenErr);
        }
        //= rfc7306#section-1.1
        //# For backward compatibility, existing applications and/or ULPs should not assume that
        //# these extensions are supported.
        let needs_weft = match operation {
            // A foreign iWARP peer may not support RFC 7306, and an iWARP Send carries no immediate
            // data.
            Operation::Send { imm, .. } | Operation::Write { imm, .. } => imm.is_some(),
            _ => atomic,
        };
        if needs_weft && !self.is_weft_peer() || takes_answer && self.ord() == 0 {
            return Err(Status::RemInvReqErr);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // The fields of one work request.
    fn start_request(
        &mut self,
        operation: Operation,
        number: u64,
        length: u32,
        flags: SendFlags,
        srqn: u32,
        mut sq: impl DerefMut<Target = SendQueue>,
        host: &H,
    ) -> bool {
        let solicited = flags.contains(SendFlags::SOLICITED);
        match operation {
            Operation::Send { imm, invalidate } => {
                if let Some(imm) = imm {
                    self.immediate_message(Opcode::Immediate, srqn, imm, IMMEDIATE_OF_SEND);
                }
                let opcode = match (invalidate.is_some(), solicited) {
                    (false, false) => Opcode::Send,
                    (false, true) => Opcode::SendSe,
                    (true, false) => Opcode::SendInv,
                    (true, true) => Opcode::SendSeInv,
                };
                let header = self.send_header(opcode, invalidate.unwrap_or(srqn));
                self.start_message(header, number, length);
            }
            Operation::Write { remote_addr, rkey, .. } => {
                //= rfc5040#section-5.1
                //# An RDMA Write is used by the Data Source to transfer data to a previously
                //# Advertised Tagged Buffer at the Data Sink.
                let opcode = Opcode::Write;
                let header = MessageHeader::Tagged { opcode, stag: rkey, to: remote_addr };
                self.start_message(header, number, length);
            }
            Operation::Read { remote_addr, rkey } => {
                sq.advance(Progress::Awaiting);
                drop(sq);
                let sges = SmallVec::from_slice(&self.sender.outgoing.sges);
                self.read_request_message(Some(number), length, rkey, remote_addr, sges);
            }
            Operation::FetchAdd { remote_addr, rkey, add } => {
                sq.advance(Progress::Awaiting);
                drop(sq);
                self.atomic_message(number, rkey, remote_addr, AtomicOp::FetchAdd { add, mask: 0 });
            }
            Operation::CompareSwap { remote_addr, rkey, compare, swap } => {
                sq.advance(Progress::Awaiting);
                drop(sq);
                let (swap_mask, compare_mask) = (u64::MAX, u64::MAX);
                let op = AtomicOp::CmpSwap { swap, swap_mask, compare, compare_mask };
                self.atomic_message(number, rkey, remote_addr, op);
            }
            // The send queue of a connection does not accept datagrams.
            Operation::Datagram { .. } => return false,
            Operation::LocalInvalidate { .. } | Operation::BindWindow { .. } => {
                drop(sq);
                return self.run_locally(&operation, host);
            }
        }
        true
    }

    /// Executes a request that needs no peer, in its turn.
    pub(super) fn run_locally(&mut self, operation: &Operation, host: &H) -> bool {
        let done = match operation {
            Operation::BindWindow { window, rkey, bind } => {
                host.bind(window, *rkey, bind).map_err(|_| Status::MwBindErr)
            }
            Operation::LocalInvalidate { rkey } if host.invalidate(*rkey) => Ok(()),
            Operation::LocalInvalidate { .. } => Err(Status::LocProtErr),
            _ => Ok(()),
        };
        match done {
            Ok(()) => {
                host.sends().advance(Progress::Done);
                self.complete_sends(host);
                true
            }
            // Wait until earlier requests, which are not at fault, have completed.
            Err(_) if host.sends().is_awaiting() => false,
            Err(status) => {
                self.fail_request(status, host);
                false
            }
        }
    }

    /// Fails a request that has an error of its own, found before any of it was sent. A Weft peer
    /// sees the connection closed, like a lost card, which programs written for InfiniBand expect;
    /// a foreign peer gets a Terminate.
    fn fail_request(&mut self, status: Status, host: &H) {
        if !self.service.terminates() {
            return self.enter_send_error(status, host);
        }
        self.notices.disconnected = true;
        //= rfc7306#section-8.1
        //# For errors detected while creating an Atomic Request, Atomic Response, Immediate Data,
        //# or Immediate Data with SE Message, or other reasons not directly associated with an
        //# incoming Message, the Terminate Message and Error code are sent instead of the Message.
        if !self.is_weft_peer() {
            self.terminate(ProtocolError::RdmapCatastrophic);
        }
        self.fail(host, Some(status), 0);
    }

    fn start_message(&mut self, header: MessageHeader, number: u64, length: u32) {
        self.sender.outgoing.active = true;
        self.sender.outgoing.number = number;
        self.sender.outgoing.offset = 0;
        self.sender.outgoing.length = length;
        self.sender.outgoing.header = Some(header);
    }

    fn next_segment(&mut self, host: &H) -> bool {
        let context = host.context();
        let Some(header) = self.sender.outgoing.header else { return false };
        let Transport::Stream(framing) = &mut self.transport else {
            return self.next_ring_segment(header, host);
        };
        let outgoing = &self.sender.outgoing;
        let (offset, length) = (outgoing.offset, outgoing.length);
        let count = (length - offset).min(framing.payload_max(header.len()));
        let last = offset + count == length;
        let start = framing.begin(&header.segment(offset, last));
        let gathered = if outgoing.inline.is_empty() {
            let (sges, keys) = (&outgoing.sges, &mut self.sender.keys);
            let (offset, count) = (offset.into(), count.into());
            place::gather(keys, context, sges, offset, count, framing.buffer())
        } else {
            let (from, to) = (offset as usize, (offset + count) as usize);
            framing.buffer().extend_from_slice(&outgoing.inline[from..to]);
            Ok(())
        };
        if gathered.is_err() {
            // Earlier requests complete first, if there are any.
            framing.abandon(start);
            return !host.sends().is_awaiting() && self.break_off(host);
        }
        self.sender.appended += framing.end(start);
        self.sender.outgoing.offset += count;
        if last {
            self.finish_message(host);
        }
        true
    }

    /// Finishes the current message, whose last segment has been queued.
    pub(super) fn finish_message(&mut self, host: &H) {
        self.sender.outgoing.active = false;
        self.sender.messages += 1;
        let mut sq = host.sends();
        let imm = match sq.peek_next() {
            Some((_, work)) => match work.operation {
                Operation::Write { imm, .. } => {
                    imm.map(|imm| (imm, work.srqn, work.flags.contains(SendFlags::SOLICITED)))
                }
                _ => None,
            },
            None => None,
        };
        if let Some((imm, srqn, solicited)) = imm {
            let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
            self.immediate_message(opcode, srqn, imm, [0; 4]);
            self.sender.messages += 1;
        }
        let complete_at =
            if self.is_acknowledged() { self.sender.messages } else { self.sender.appended };
        sq.advance(Progress::Sent(complete_at));
    }

    //= rfc5040#section-5.3
    //# A Send Message Type MUST reference an Untagged Buffer.
    //= rfc5040#section-5.3
    //# For a Send Message Type, the Local Peer's RDMAP layer MUST request that the DDP layer set
    //# the Queue Number field to zero.
    fn send_header(&mut self, opcode: Opcode, ulp_word: u32) -> MessageHeader {
        let msn = self.sender.send_msn;
        self.sender.send_msn = msn.wrapping_add(1);
        MessageHeader::Untagged { opcode, ulp_word, qn: rdmap::queue::SEND, msn }
    }

    pub(super) fn immediate_message(&mut self, opcode: Opcode, srqn: u32, imm: u32, kind: [u8; 4]) {
        let mut data = [0; Immediate::LEN];
        data[..4].copy_from_slice(&imm.to_ne_bytes());
        data[4..].copy_from_slice(&kind);
        let header = self.send_header(opcode, srqn);
        self.whole(header, &data);
    }

    fn request_header(&mut self, opcode: Opcode) -> MessageHeader {
        let msn = self.sender.request_msn;
        self.sender.request_msn = msn.wrapping_add(1);
        let qn = rdmap::queue::READ_REQUEST;
        MessageHeader::Untagged { opcode, ulp_word: 0, qn, msn }
    }

    /// Sends a read request. The response goes to the connection's own STag, which no Write of the
    /// peer can use; the offset identifies the read and the position in it.
    fn read_request_message(
        &mut self,
        work: Option<u64>,
        length: u32,
        source_stag: u32,
        source_to: u64,
        sges: SmallVec<[crate::wr::Sge; 2]>,
    ) {
        let id = self.sender.next_read_id;
        self.sender.next_read_id = id.wrapping_add(1);
        let request = ReadRequest {
            sink_stag: self.config.ack_stag,
            sink_to: u64::from(id) << 32,
            size: length,
            source_stag,
            source_to,
        };
        let mut payload = [0; ReadRequest::LEN];
        request.emit(&mut payload);
        let (key, addr, atomic, received) = (source_stag, source_to, false, 0);
        let read = Outstanding { work, id, atomic, key, addr, length, received, sges };
        self.sender.outstanding.push_back(read);
        let header = self.request_header(Opcode::ReadRequest);
        self.whole(header, &payload);
    }

    fn atomic_message(&mut self, number: u64, remote_stag: u32, remote_to: u64, op: AtomicOp) {
        let id = self.sender.next_read_id;
        self.sender.next_read_id = id.wrapping_add(1);
        let request = AtomicRequest { op, request_id: id, remote_stag, remote_to };
        let mut payload = [0; AtomicRequest::LEN];
        request.emit(&mut payload);
        let sges = SmallVec::from_slice(&self.sender.outgoing.sges);
        let (work, key, addr, atomic) = (Some(number), remote_stag, remote_to, true);
        let operation = Outstanding { work, id, atomic, key, addr, length: 8, received: 0, sges };
        self.sender.outstanding.push_back(operation);
        let header = self.request_header(Opcode::AtomicRequest);
        self.whole(header, &payload);
    }

    // ---- FPDUs ----

    /// Sends a message of one segment.
    pub(super) fn whole(&mut self, header: MessageHeader, payload: &[u8]) {
        self.fpdu(&header.segment(0, true), payload);
    }

    fn fpdu(&mut self, header: &Header, payload: &[u8]) {
        match &mut self.transport {
            Transport::Stream(framing) => self.sender.appended += framing.push(header, payload),
            Transport::Ring(ring) => ring.push(header, payload, self.receiver.placed),
        }
    }
}
