//! The receiving side: from the peer's bytes to placed data and completions.

use weft_wire::ddp::{DdpError, Header, Placement};
use weft_wire::error::ProtocolError;
use weft_wire::mpa::fpdu::{self, Decoded};
use weft_wire::mpa::negotiate::RtrKind;
use weft_wire::rdmap::{
    self, AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest, Terminate,
};

use super::control::{Control, IMMEDIATE_OF_SEND};
use super::fault::Handled;
use super::host::{Host, Keys, Pinned};
use super::payload::{Misplaced, Payload};
use super::phase::PhaseEvent;
use super::responder::Response;
use super::rnr::RnrMessage;
use super::service::Service;
use super::{Fault, Link, RnrWait, fault, place};
use crate::Errno;
use crate::access::Access;
use crate::event::EventKind;
use crate::limits::{MESSAGE_MAX, READ_DEPTH_MAX, RNR_BYTES_MAX};
use crate::log::{self, Level};
use crate::mr::AccessError;
use crate::queue::send::Progress;
use crate::wc::{self, Completion, Status};

impl<H: Host> Link<H> {
    /// The buffer for bytes from the peer; `None` while the peer must wait.
    pub(crate) fn rx_room(&mut self) -> Option<&mut Vec<u8>> {
        if self.rnr.bytes > RNR_BYTES_MAX
            || self.service.is_starved()
            || !(self.receives() || self.phase.is_closing())
        {
            return None;
        }
        self.transport.stream_mut()?.room()
    }

    /// Processes the bytes that have been appended to the buffer of [`Link::rx_room`].
    pub(crate) fn input(&mut self, host: &H) {
        if let Err(fault) = self.take_fpdus(host) {
            self.refuse(host, &fault);
        }
        let is_open = self.phase.is_open();
        if let Some(framing) = self.transport.stream_mut() {
            framing.tidy(is_open);
        }
    }

    fn take_fpdus(&mut self, host: &H) -> Handled {
        let (is_open, receives) = (self.phase.is_open(), self.receives());
        let Some(framing) = self.transport.stream_mut() else { return Ok(()) };
        framing.strip_markers(is_open)?;
        if !receives {
            return Ok(());
        }
        let crc = framing.checks_crc();
        let (mut rx, mut at) = framing.take_received();
        let result = self.take_fpdus_of(&mut rx, &mut at, crc, host);
        if let Some(framing) = self.transport.stream_mut() {
            framing.put_received((rx, at));
        }
        result
    }

    fn take_fpdus_of(&mut self, rx: &mut Vec<u8>, at: &mut usize, crc: bool, host: &H) -> Handled {
        while self.receives() && self.rnr.bytes <= RNR_BYTES_MAX {
            match fpdu::decode(&rx[*at..], crc)? {
                Decoded::Fpdu { ulpdu, consumed } => {
                    if self.waits_for_receive(ulpdu, host) {
                        break;
                    }
                    self.take_segment(ulpdu, host)?;
                    *at += consumed;
                }
                Decoded::Incomplete { needed } => {
                    // Make room for the whole FPDU, so that it is never split over two buffers.
                    if rx.capacity() < *at + needed {
                        rx.copy_within(*at.., 0);
                        rx.truncate(rx.len() - *at);
                        *at = 0;
                        rx.reserve(needed.saturating_sub(rx.len()));
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends the connection because of the peer's protocol violation: Terminate, error state, event.
    /// If the fault is the peer's end, the connection is lost instead.
    pub(super) fn refuse(&mut self, host: &H, fault: &Fault) {
        if fault.is_loss {
            return self.lost(host, Errno::CONNRESET.raw_os_error().unsigned_abs());
        }
        let kind = match fault.error.terminate_code() {
            (0, 1, _) | (1, 1, 0..=3) => EventKind::QpAccessErr,
            _ => EventKind::QpReqErr,
        };
        let error = fault.error;
        if !self.service.terminates() {
            return self.abandon_stream(Some(error), host);
        }
        let number = self.config.number;
        log::write(Level::Warn, format_args!("qp {number:#08x}: terminates: {error}"));
        //= rfc5040#section-5.4
        //# After sending a Terminate Message on an RDMAP Stream, the Local Peer MUST NOT send any
        //# more Messages on that specific RDMAP Stream.
        //= rfc5040#section-6.2.1
        //# RDMAP defines a Terminate operation that SHOULD be invoked when either an RDMAP error is
        //# encountered or an LLP error is surfaced to the RDMAP layer by the LLP.
        //= rfc5040#section-7
        //# If errors are detected at the RDMAP or DDP layer, then the RDMAP, DDP, and LLP Streams
        //# are Abortively Terminated (see Section 4.8, "Terminate Header").
        self.enter(PhaseEvent::Terminated(fault.terminate()));
        self.notices.disconnected = true;
        self.fail(host, None, fault.code());
        //= rfc5040#section-7.1
        //# If an error occurs at the Local Peer, the RDMAP layer MUST attempt to inform the local
        //# ULP that the error has occurred.
        host.raise(kind);
    }

    fn take_segment(&mut self, ulpdu: &[u8], host: &H) -> Handled {
        let (header, header_len) = Header::parse(ulpdu)?;
        self.take_parsed(&header, Payload::Bytes(&ulpdu[header_len..]), host)
    }

    /// Processes a segment whose header has been parsed.
    pub(super) fn take_parsed(
        &mut self,
        header: &Header,
        payload: Payload<'_>,
        host: &H,
    ) -> Handled {
        let handled = self.dispatch(header, payload, host);
        handled.map_err(|fault| fault.in_segment(header.len() + payload.len(), *header))
    }

    fn dispatch(&mut self, header: &Header, payload: Payload<'_>, host: &H) -> Handled {
        let opcode = Opcode::of(header)?;
        if !std::mem::replace(&mut self.opening.peer_began, true) {
            self.opening.hold = false;
            if let Some(kind) = self.rtr_expected() {
                return self.ready_to_receive(kind, opcode, header, payload.bytes());
            }
        }
        match (opcode, *header) {
            (Opcode::Write, Header::Tagged { last, stag, to, .. }) => {
                self.write(last, stag, to, payload, host)
            }
            (Opcode::ReadResponse, Header::Tagged { last, stag, to, .. }) => {
                self.read_response(last, stag, to, payload, host)
            }
            (_, Header::Untagged { last, ulp_word, qn, msn, mo, .. }) => {
                self.untagged(opcode, last, ulp_word, qn, msn, mo, payload, host)
            }
            (other, Header::Tagged { .. }) => Err(rdmap::RdmapError::Misplaced(other).into()),
        }
    }

    /// Processes the initiator's first FPDU in peer-to-peer setup (RFC 6581 section 9.2): a message
    /// without bytes that no program sees.
    fn ready_to_receive(
        &mut self,
        kind: RtrKind,
        opcode: Opcode,
        header: &Header,
        payload: &[u8],
    ) -> Handled {
        match (kind, opcode, *header) {
            (RtrKind::Write, Opcode::Write, Header::Tagged { last: true, .. })
                if payload.is_empty() =>
            {
                Ok(())
            }
            (RtrKind::Send, Opcode::Send, Header::Untagged { last: true, msn, mo, .. })
                if payload.is_empty() =>
            {
                self.queue(rdmap::queue::SEND).check(msn, mo, 0, true, 0)?;
                Ok(())
            }
            (RtrKind::Read, Opcode::ReadRequest, Header::Untagged { last, msn, mo, .. }) => {
                let limit = ReadRequest::LEN as u64;
                self.queue(rdmap::queue::READ_REQUEST).check(
                    msn,
                    mo,
                    payload.len(),
                    last,
                    limit,
                )?;
                let request = ReadRequest::parse(payload)?;
                self.responder.queue.push_back(Response::Read {
                    sink_stag: request.sink_stag,
                    sink_to: request.sink_to,
                    key: 0,
                    addr: 0,
                    length: 0,
                    sent: 0,
                });
                Ok(())
            }
            _ => Err(ProtocolError::NoMatchingRtr.into()),
        }
    }

    fn queue(&mut self, qn: u32) -> &mut weft_wire::ddp::UntaggedQueue {
        &mut self.receiver.queues[qn as usize]
    }

    #[allow(clippy::too_many_arguments)] // The fields of one header.
    fn untagged(
        &mut self,
        opcode: Opcode,
        last: bool,
        ulp_word: u32,
        qn: u32,
        msn: u32,
        mo: u32,
        payload: Payload<'_>,
        host: &H,
    ) -> Handled {
        let limit = match qn {
            rdmap::queue::SEND => self.send_limit(opcode),
            rdmap::queue::TERMINATE => Terminate::LEN_MAX as u64,
            _ => AtomicRequest::LEN as u64,
        };
        let checked = self.queue(qn).check(msn, mo, payload.len(), last, limit);
        if let Err(DdpError::MessageTooLong { .. }) = checked {
            self.fail_receive(Status::LocLenErr, host);
        }
        let placement = checked?;
        match opcode {
            Opcode::ReadRequest => self.read_request(payload.bytes(), host),
            Opcode::AtomicRequest => self.atomic_request(payload.bytes(), host),
            Opcode::AtomicResponse => self.atomic_response(payload.bytes(), host),
            Opcode::Terminate => self.terminated(payload.bytes(), host),
            Opcode::Immediate | Opcode::ImmediateSe => {
                self.immediate(opcode, ulp_word, payload.bytes(), host)
            }
            Opcode::Send | Opcode::SendInv | Opcode::SendSe | Opcode::SendSeInv => {
                self.send(opcode, ulp_word, placement, payload, host)
            }
            Opcode::Write | Opcode::ReadResponse => {
                Err(rdmap::RdmapError::Misplaced(opcode).into())
            }
        }
    }

    // ---- RDMA Write ----

    //= rfc5041#section-5.1.1
    //# For the Placement of a DDP Message using the Tagged Buffer Model, the STag is used to
    //# identify the buffer, and the TO is used to identify the offset within the Tagged Buffer into
    //# which the ULP Payload is transferred.
    fn write(&mut self, last: bool, stag: u32, to: u64, payload: Payload<'_>, host: &H) -> Handled {
        if payload.is_empty() && stag == self.config.ack_stag && self.is_weft_peer() {
            return self.control(to, host);
        }
        //= rfc5041#section-5.2
        //# The STag and TO fields MUST NOT be checked for a zero-length Tagged DDP Message.
        let has_place = !payload.is_empty() && !self.service.drops_write();
        let placed = if has_place { self.place_written(stag, to, payload, host) } else { Ok(()) };
        self.service.settle_write(placed, last)?;
        self.receiver.written =
            self.receiver.written.wrapping_add(u32::try_from(payload.len()).unwrap_or(0));
        //= rfc5040#section-5.1
        //# A valid RDMA Write Message MUST NOT be delivered to the Data Sink's ULP (i.e., it is
        //# placed by the DDP layer).
        if last {
            match self.rnr.messages.back_mut() {
                Some(message) => message.behind += 1,
                None => self.receiver.placed += 1,
            }
            // An Immediate Data message behind this Write reports its length.
            self.last_written();
        }
        Ok(())
    }

    fn place_written(&mut self, stag: u32, to: u64, payload: Payload<'_>, host: &H) -> Handled {
        if !self.rules.access.contains(Access::REMOTE_WRITE) {
            return Err(ProtocolError::AccessRights { stag }.into());
        }
        let len = payload.len() as u64;
        to.checked_add(len).ok_or(ProtocolError::TaggedWrap)?;
        let context = host.context();
        let pin = self
            .receiver
            .keys
            .access(context, stag, to, len, Access::REMOTE_WRITE)
            .map_err(|error| fault::tagged(error, stag))?;
        pin.write(&payload, 0).map_err(Fault::unreadable)?;
        pin.notify_observer();
        Ok(())
    }

    fn last_written(&mut self) {
        self.receiver.last_write_len = std::mem::take(&mut self.receiver.written);
    }

    fn control(&mut self, offset: u64, host: &H) -> Handled {
        // A newer version's control message has no meaning for us.
        let Some(control) = Control::from_offset(offset) else { return Ok(()) };
        let placed = match control {
            Control::Placed { placed } | Control::NotReady { placed, .. } => placed,
            Control::Written { length } => {
                self.receiver.last_write_len = length;
                return Ok(());
            }
        };
        if self.transport.ring().is_some() && placed < self.sender.peer_placed {
            // A count in shared memory has overtaken this one, which came through the ring.
            return Ok(());
        }
        self.placed_there(placed, host)?;
        match control {
            Control::NotReady { timer, .. } => {
                self.rnr.remote = true;
                self.notices.rnr = Some(Some(RnrWait { timer }));
            }
            Control::Placed { .. } | Control::Written { .. } => {}
        }
        Ok(())
    }

    /// Handles the peer's count of our messages that it has placed.
    pub(super) fn placed_there(&mut self, placed: u64, host: &H) -> Handled {
        if placed > self.sender.messages || placed < self.sender.peer_placed {
            return Err(ProtocolError::Operation.into());
        }
        if placed != self.sender.peer_placed {
            self.sender.peer_placed = placed;
            self.complete_sends(host);
            if std::mem::take(&mut self.rnr.remote) {
                self.notices.rnr = Some(None);
            }
        }
        Ok(())
    }

    // ---- Send ----

    /// Longest message on the Send queue: for the current message, or for the next one.
    fn send_limit(&self, opcode: Opcode) -> u64 {
        match opcode {
            Opcode::Immediate | Opcode::ImmediateSe => Immediate::LEN as u64,
            _ if self.receiver.current.active && self.service.terminates() => {
                self.receiver.current.capacity
            }
            _ => u64::from(MESSAGE_MAX),
        }
    }

    fn send(
        &mut self,
        opcode: Opcode,
        ulp_word: u32,
        placement: Placement,
        payload: Payload<'_>,
        host: &H,
    ) -> Handled {
        let invalidate = opcode.invalidates(ulp_word);
        if matches!(self.service, Service::Unreliable(_)) {
            return self.send_or_drop(opcode, invalidate, placement, payload, host);
        }
        if placement.first && !self.start_receive(ulp_word, host)? {
            let imm = self.receiver.send_imm.take();
            self.start_waiting(opcode, ulp_word, invalidate, imm, None);
        }
        if !self.receiver.current.active {
            return self.add_waiting(placement.last, payload);
        }
        let end = u64::from(placement.offset) + payload.len() as u64;
        if end > self.receiver.current.capacity {
            self.fail_receive(Status::LocLenErr, host);
            let limit = self.receiver.current.capacity;
            return Err(DdpError::MessageTooLong { length: end, limit }.into());
        }
        self.fill_receive(u64::from(placement.offset), payload, host)?;
        if placement.last {
            let imm = self.receiver.send_imm.take();
            let len = u32::try_from(end).unwrap_or(u32::MAX);
            self.finish_receive(opcode, len, imm, None, invalidate, host)?;
        }
        Ok(())
    }

    /// Takes a posted receive, unless older messages still wait for one. Keeps the receive that a
    /// dropped message has left.
    //= rfc5040#section-5.5
    //# Send Messages MUST be Delivered to the ULP at the Remote Peer after they are Delivered to
    //# RDMAP by DDP and in the order that they were Delivered to RDMAP.
    pub(super) fn start_receive(&mut self, srqn: u32, host: &H) -> Result<bool, Fault> {
        if self.receiver.current.active {
            return Ok(true);
        }
        self.select_queue(srqn, host)?;
        Ok(self.rnr.messages.is_empty() && self.take_receive(host))
    }

    fn take_receive(&mut self, host: &H) -> bool {
        if !host.take_receive(self.receiver.current.queue.as_ref(), &mut self.receiver.current.work)
        {
            return false;
        }
        self.receiver.current.capacity = place::total(&self.receiver.current.work.sges);
        self.receiver.current.active = true;
        true
    }

    fn fill_receive(&mut self, offset: u64, payload: Payload<'_>, host: &H) -> Handled {
        let context = host.receive_context(self.receiver.current.queue.as_ref());
        let placed = place::scatter(
            &mut self.receiver.keys,
            context,
            &self.receiver.current.work.sges,
            offset,
            payload,
        );
        placed.map_err(|misplaced| match misplaced {
            Misplaced::Target => {
                self.fail_receive(Status::LocProtErr, host);
                ProtocolError::RdmapCatastrophic.into()
            }
            Misplaced::Source(error) => Fault::unreadable(error),
        })
    }

    pub(super) fn finish_receive(
        &mut self,
        opcode: Opcode,
        byte_len: u32,
        imm: Option<u32>,
        written: Option<u32>,
        invalidate: Option<u32>,
        host: &H,
    ) -> Handled {
        let mut flags = 0;
        let mut imm_data = 0;
        //= rfc5040#section-5.3
        //# When the Send with Invalidate and Send with Solicited Event and Invalidate Message are
        //# Delivered to the Remote Peer's RDMAP layer, the RDMAP layer MUST: * Verify the STag that
        //# is associated with the RDMAP Stream; and * Invalidate the STag if it is associated with
        //# the RDMAP Stream;
        if let Some(stag) = invalidate {
            //= rfc5040#section-5.3
            //# Invalidate the STag if it is associated with the RDMAP Stream; or issue a Terminate
            //# Message with the STag Cannot be Invalidated Terminate Error Code, if the STag is not
            //# associated with the RDMAP Stream.
            if !host.invalidate_for_peer(stag) {
                return Err(ProtocolError::CannotInvalidate { stag }.into());
            }
            (flags, imm_data) = (wc::FLAG_WITH_INV, stag);
        }
        if let Some(imm) = imm {
            (flags, imm_data) = (flags | wc::FLAG_WITH_IMM, imm);
        }
        let kind = match written {
            Some(_) => wc::Opcode::RecvRdmaWithImm,
            None => wc::Opcode::Recv,
        };
        self.receiver.current.active = false;
        let completion = Completion::new(
            self.receiver.current.work.wr_id,
            Status::Success,
            kind,
            self.config.number,
        );
        let byte_len = written.unwrap_or(byte_len);
        //= rfc5040#section-3.2
        //# If the Send Operation Type Completed successfully, the RDMAP layer passes the following
        //# information to the ULP Layer: * ULP Message Length
        //= rfc5040#section-3.2
        //# An Invalidated STag, if the Send Operation Type was Send with Invalidate or Send with
        //# Solicited Event and Invalidate.
        //= rfc5040#section-5.3
        //# After the Send with Solicited Event or Send with Solicited Event and Invalidate Message
        //# is Delivered to the ULP, the RDMAP MAY generate an Event, if the Data Sink is configured
        //# to generate such an Event.
        //= rfc5041#section-5.3
        //# MUST Deliver a DDP Message to the ULP at most once,
        //= rfc5041#section-5.4
        //# all of the DDP Segments of the DDP Message have been Placed,
        let src_qp = self.rules.src_qp;
        let completion = Completion { byte_len, imm_data, src_qp, wc_flags: flags, ..completion };
        let queue = self.receiver.current.queue.as_ref();
        host.complete_receive(queue, completion, opcode.is_solicited());
        self.receiver.placed += 1;
        Ok(())
    }

    pub(super) fn fail_receive(&mut self, status: Status, host: &H) {
        if std::mem::take(&mut self.receiver.current.active) {
            let wr_id = self.receiver.current.work.wr_id;
            let completion = Completion::new(wr_id, status, wc::Opcode::Recv, self.config.number);
            host.complete_receive(self.receiver.current.queue.as_ref(), completion, false);
        }
    }

    // ---- Immediate Data ----

    fn immediate(&mut self, opcode: Opcode, srqn: u32, payload: &[u8], host: &H) -> Handled {
        let Immediate([a, b, c, d, kind @ ..]) = Immediate::parse(payload)?;
        let imm = u32::from_ne_bytes([a, b, c, d]);
        if kind == IMMEDIATE_OF_SEND && self.is_weft_peer() {
            self.receiver.send_imm = Some(imm);
            return Ok(());
        }
        //= rfc7306#section-6.1
        //# If the Immediate Data operation is Completed successfully, the RDMAP Layer passes the
        //# following information to the ULP Layer: * 8 bytes of Immediate Data
        //= rfc7306#section-6.3
        //# One Immediate Data or Immediate Data with SE Message MUST consume one Untagged Buffer.
        //= rfc7306#section-6.4
        //# Ordering and completion rules for Immediate Data are the same as those for a Send
        //# operation as described in Section 5.5 of RFC 5040.
        let written = std::mem::take(&mut self.receiver.last_write_len);
        if self.service.dropped_last_write() {
            return Ok(());
        }
        if self.start_receive(srqn, host)? {
            return self.finish_receive(opcode, 0, Some(imm), Some(written), None, host);
        }
        if self.service.drops_unmatched() {
            return Ok(());
        }
        self.start_waiting(opcode, srqn, None, Some(imm), Some(written));
        self.add_waiting(true, Payload::Bytes(&[]))
    }

    // ---- Messages without a receive ----

    fn start_waiting(
        &mut self,
        opcode: Opcode,
        srqn: u32,
        invalidate: Option<u32>,
        imm: Option<u32>,
        written: Option<u32>,
    ) {
        self.rnr.messages.push_back(RnrMessage {
            opcode,
            bytes: Vec::new(),
            pieces: Vec::new(),
            invalidate,
            imm,
            written,
            srqn,
            complete: false,
            behind: 0,
        });
    }

    fn add_waiting(&mut self, last: bool, payload: Payload<'_>) -> Handled {
        let Some(message) = self.rnr.messages.back_mut() else {
            return Err(ProtocolError::RdmapCatastrophic.into());
        };
        let before = message.cost();
        payload.append_to(&mut message.bytes);
        message.pieces.extend_from_slice(payload.pieces());
        message.complete = last;
        self.rnr.bytes += message.cost() - before;
        Ok(())
    }

    /// Moves waiting messages to receives that have been posted since. The rest of an incomplete
    /// message goes directly into its receive, because the message may be longer than the RNR queue
    /// may hold.
    pub(crate) fn retry_waiting(&mut self, host: &H) {
        while let Some(front) = self.rnr.messages.front()
            && self.receives()
        {
            if let Err(fault) = self.select_queue(front.srqn, host) {
                return self.refuse(host, &fault);
            }
            if !self.take_receive(host) {
                return;
            }
            let Some(message) = self.rnr.messages.pop_front() else { return };
            self.rnr.bytes -= message.cost();
            if let Err(fault) = self.receive_waiting(&message, host) {
                self.refuse(host, &fault);
            }
        }
    }

    fn receive_waiting(&mut self, message: &RnrMessage, host: &H) -> Handled {
        let view = self.take_view();
        let payload = message.payload(view.as_ref().map(|view| &view.peer));
        let received = self.receive_payload(message, payload, host);
        self.put_view(view);
        received
    }

    fn receive_payload(&mut self, message: &RnrMessage, payload: Payload<'_>, host: &H) -> Handled {
        let length = payload.len() as u64;
        let limit = self.receiver.current.capacity;
        if length > limit {
            self.fail_receive(Status::LocLenErr, host);
            return Err(DdpError::MessageTooLong { length, limit }.into());
        }
        self.fill_receive(0, payload, host)?;
        if !message.complete {
            self.receiver.send_imm = message.imm;
            return Ok(());
        }
        let len = u32::try_from(length).unwrap_or(u32::MAX);
        let RnrMessage { opcode, imm, written, invalidate, behind, .. } = *message;
        self.finish_receive(opcode, len, imm, written, invalidate, host)?;
        self.receiver.placed += behind;
        Ok(())
    }

    /// Whether messages wait for receives.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.rnr.messages.is_empty()
    }

    /// Whether a message waits for a receive and could take one now.
    pub(crate) fn wants_receive(&self) -> bool {
        (self.has_waiting() || self.service.is_starved()) && self.receives()
    }

    // ---- RDMA Read and atomics, as responder ----

    //= rfc7306#section-5.2
    //# Reusing the same Queue Number for Atomic Request messages allows the Atomic Operations to
    //# reuse the same infrastructure (e.g., Outbound and Inbound RDMA Read Queue Depth (ORD/IRD)
    //# flow control) as defined for RDMA Read Requests.
    fn check_depth(&self) -> Handled {
        let depth = usize::from(self.rules.max_dest_rd_atomic.min(READ_DEPTH_MAX));
        if self.responder.queue.len() >= depth {
            return Err(ProtocolError::NoBuffer { qn: rdmap::queue::READ_REQUEST }.into());
        }
        Ok(())
    }

    //= rfc5040#section-5.2.1
    //# The Remote Peer's RDMAP layer MUST process an RDMA Read Request Message. A valid RDMA Read
    //# Request Message MUST NOT be delivered to the Data Sink's ULP (i.e., it is processed by the
    //# RDMAP layer).
    fn read_request(&mut self, payload: &[u8], host: &H) -> Handled {
        let request = ReadRequest::parse(payload)?;
        self.check_depth()?;
        let ReadRequest { sink_stag, sink_to, size, source_stag, source_to } = request;
        //= rfc5040#section-5.2.1
        //# If the Data Source receives a non-zero-length RDMA Read Message Size, the Data Source
        //# RDMAP MUST validate the Data Source STag and Data Source Tagged Offset contained in the
        //# RDMA Read Request Header.
        if size > 0 {
            //= rfc5040#section-7.2
            //# The sum of the Data Source Tagged Offset and the RDMA Read Message Size MUST NOT
            //# cause the Data Source Tagged Offset to wrap.
            if source_to.checked_add(size.into()).is_none() {
                return Err(Fault::of_request(ProtocolError::Wrap, request));
            }
            let granted = if self.rules.access.contains(Access::REMOTE_READ) {
                let context = host.context();
                let size = u64::from(size);
                let needs = Access::REMOTE_READ;
                self.receiver.keys.access(context, source_stag, source_to, size, needs).map(drop)
            } else {
                Err(AccessError::Rights)
            };
            granted.map_err(|error| {
                Fault::of_request(fault::requested(error, source_stag), request)
            })?;
        }
        self.responder.queue.push_back(Response::Read {
            sink_stag,
            sink_to,
            key: source_stag,
            addr: source_to,
            length: size,
            sent: 0,
        });
        Ok(())
    }

    fn atomic_request(&mut self, payload: &[u8], host: &H) -> Handled {
        let request = AtomicRequest::parse(payload)?;
        self.check_depth()?;
        let AtomicRequest { op, request_id, remote_stag: stag, remote_to: to } = request;
        if !self.rules.access.contains(Access::REMOTE_ATOMIC) {
            return Err(ProtocolError::AccessRights { stag }.into());
        }
        let context = host.context();
        let pin = self
            .receiver
            .keys
            .access(context, stag, to, 8, Access::REMOTE_ATOMIC)
            .map_err(|error| fault::requested(error, stag))?;
        //= rfc7306#section-8.2
        //# The RDMAP layer MUST validate that the Remote Peer's Tagged ULP Buffer address
        //# references a ULP Buffer address that is 64-bit aligned.
        let original_value =
            pin.update(|old| op.apply(old)).ok_or(ProtocolError::AtomicUnaligned { to })?;
        //= rfc7306#section-5.4
        //# Atomic Operation Response Messages MUST be submitted to the DDP layer on the Responder
        //# in the order the Atomic Operation Request Messages were Delivered by DDP.
        self.responder
            .queue
            .push_back(Response::Atomic(AtomicResponse { request_id, original_value }));
        Ok(())
    }

    // ---- RDMA Read and atomics, as requester ----

    fn read_response(
        &mut self,
        last: bool,
        stag: u32,
        to: u64,
        payload: Payload<'_>,
        host: &H,
    ) -> Handled {
        let context = host.context();
        let Some(read) = self.sender.outstanding.front_mut().filter(|read| !read.atomic) else {
            return Err(ProtocolError::UnexpectedReadResponse.into());
        };
        let expected = u64::from(read.id) << 32 | u64::from(read.received);
        let received = u64::from(read.received) + payload.len() as u64;
        let fits = received < u64::from(read.length) && !last
            || received == u64::from(read.length) && last;
        let place_right = payload.is_empty() && read.length == 0
            || stag == self.config.ack_stag && to == expected;
        if !fits || !place_right {
            return Err(ProtocolError::MismatchedReadResponse { stag }.into());
        }
        let at = read.received.into();
        let placed = place::scatter(&mut self.receiver.keys, context, &read.sges, at, payload);
        match placed {
            Ok(()) => {}
            Err(Misplaced::Target) => {
                self.fail(host, Some(Status::LocProtErr), 0);
                return Err(ProtocolError::RdmapCatastrophic.into());
            }
            Err(Misplaced::Source(error)) => return Err(Fault::unreadable(error)),
        }
        read.received = u32::try_from(received).unwrap_or(u32::MAX);
        if last {
            self.answered(host);
        }
        Ok(())
    }

    fn atomic_response(&mut self, payload: &[u8], host: &H) -> Handled {
        let response = AtomicResponse::parse(payload)?;
        let context = host.context();
        let outstanding = self.sender.outstanding.front();
        let Some(atomic) =
            outstanding.filter(|front| front.atomic && front.id == response.request_id)
        else {
            return Err(ProtocolError::UnexpectedAtomicResponse.into());
        };
        let value = response.original_value.to_ne_bytes();
        if place::scatter(&mut self.receiver.keys, context, &atomic.sges, 0, Payload::Bytes(&value))
            .is_err()
        {
            self.fail(host, Some(Status::LocProtErr), 0);
            return Err(ProtocolError::RdmapCatastrophic.into());
        }
        self.answered(host);
        Ok(())
    }

    /// Completes the oldest read or atomic, whose response has arrived.
    //= rfc5040#section-5.5
    //# An RDMA Read operation MUST NOT be Completed at the Local Peer until the DDP layer Delivers
    //# the associated incoming RDMA Read Response Message.
    fn answered(&mut self, host: &H) {
        if let Some(number) = self.sender.outstanding.pop_front().and_then(|done| done.work) {
            host.sends().set_progress(number, Progress::Done);
            self.complete_sends(host);
        }
    }

    // ---- Terminate ----

    fn terminated(&mut self, payload: &[u8], host: &H) -> Handled {
        let terminate = Terminate::parse(payload)?;
        if !self.service.terminates() {
            self.abandon_stream(None, host);
            return Ok(());
        }
        let (status, code) = fault::status_of(&terminate);
        log::write(
            Level::Warn,
            format_args!(
                "qp {:#08x}: terminated by the peer, code {code:#06x}",
                self.config.number
            ),
        );
        self.notices.disconnected = true;
        self.fail(host, Some(status), code);
        //= rfc5040#section-7.1
        //# If an error occurs at the Local Peer, the RDMAP layer MUST attempt to inform the local
        //# ULP that the error has occurred.
        host.raise(EventKind::QpFatal);
        Ok(())
    }
}
