//! What goes to a peer: messages, segments, and their acknowledgement.

use std::collections::VecDeque;

use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{
    Acknowledgement, CRC_LEN, End, HEADER_LEN, Header, Kind, ReadFailure, Reason, WORDS_MAX, seal,
    words,
};
use weft_wire::rdmap::{Opcode, ReadRequest, queue};

use super::limits::{FIRST_FLIGHT, GIVE_UP, READS_MAX, RTO_MAX, WINDOW};
use super::machine::Shared;
use super::memory::{Memory, Party};
use super::peer::{NEVER, Peer, stamp};
use super::rate::Sent;
use super::request::{Buffer, Data, Status};
use super::seq::distance;

/// Datagrams sent later that arrive before one that is taken for lost (RFC 9002, section 6.1.1).
const REORDER: u64 = 3;
/// A datagram sent earlier than one that arrived is lost after this part of a round trip, in
/// eighths (RFC 9002, section 6.1.2).
const LATE_EIGHTHS: u64 = 9;
/// A round trip that cannot be measured takes no longer, in microseconds.
const RTT_MAX: u32 = 60_000_000;

/// Messages and datagrams for which an outbox that is put aside keeps room.
const KEPT_MAX: usize = 64;

/// What a message is.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Send,
    Write { key: u32, addr: u64 },
    Read { read: u32, into: Buffer, key: u32, addr: u64 },
    Response { read: u32, sink: u32 },
    Failure(ReadFailure),
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Message {
    id: u64,
    what: What,
    data: Data,
    len: u32,
    /// Bytes that segments have been cut from.
    cut: u32,
    msn: u32,
    /// The sequence of its last segment, once there is one; of that so far, if it is `over`.
    last: Option<u32>,
    /// The program has been told of its end: what is left is to keep the sequence whole.
    over: bool,
}

impl Message {
    pub(super) fn new(id: u64, what: What, data: Data) -> Self {
        let len = match (&what, &data) {
            (What::Read { .. }, _) => ReadRequest::LEN as u32,
            (What::Failure(_), _) => ReadFailure::LEN as u32,
            // Lengths are checked when requests are made.
            (_, Data::Bytes(bytes)) => bytes.len() as u32,
            (_, Data::Registered(buffer)) => buffer.len,
        };
        Self { id, what, data, len, cut: 0, msn: 0, last: None, over: false }
    }

    fn own_bytes(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Registered(_) => 0,
        }
    }

    fn is_cut(&self) -> bool {
        self.last.is_some() && self.cut == self.len
    }
}

/// A read whose response is awaited.
#[derive(Debug)]
pub(super) struct PendingRead {
    id: u64,
    read: u32,
    pub(super) into: Buffer,
    pub(super) received: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Flying,
    Lost,
    /// Acknowledged before an earlier one.
    Received,
}

/// A datagram under way: a segment of a message.
#[derive(Debug)]
struct Flight {
    /// The message's place in the order of messages.
    message: u32,
    offset: u32,
    len: u32,
    fate: Fate,
    again: bool,
    /// Grows with each transmission.
    order: u64,
    sent: Sent,
}

/// What goes to a peer. Exists while anything is to be done for it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: VecDeque<Message>,
    /// Place of the first of them in the order of messages.
    first: u32,
    /// How many of them have been cut to the end.
    cut: usize,
    /// The last is `next_seq - 1`.
    flights: VecDeque<Flight>,
    flying: u64,
    lost: usize,
    order: u64,
    /// The datagram last sent that has arrived.
    arrived_order: u64,
    /// When datagrams that are overdue count as lost.
    late_at: Option<u64>,
    reads: VecDeque<PendingRead>,
    responses: usize,
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

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.reads.is_empty()
    }

    /// Whether a segment can be cut, as far as the messages are concerned.
    fn has_more(&self) -> bool {
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
    fn advance_response(&mut self) {
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

    fn arrived(&mut self, at: usize) -> Sent {
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

    fn lose(&mut self, at: usize) {
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

impl Peer {
    /// Adds a message to what goes to the peer.
    pub(super) fn enqueue(&mut self, now: u64, shared: &mut Shared, message: Message) {
        if !self.is_waiting() {
            (self.heard_at, self.timer_from, self.backoff) = (now, now, 0);
        }
        if self.outbox.is_none() {
            self.rate.resume(now);
            self.outbox = Some(shared.spare.pop().unwrap_or_default());
        }
        let Some(outbox) = &mut self.outbox else { return };
        outbox.responses += usize::from(matches!(message.what, What::Response { .. }));
        outbox.messages.push_back(message);
        self.active_at = now;
    }

    /// Whether something must come from the peer.
    pub(super) fn is_waiting(&self) -> bool {
        self.outbox.is_some() || self.is_unsettled()
    }

    /// The peer goes on introducing its stream until it hears that we know it.
    fn is_unsettled(&self) -> bool {
        self.proven && self.their_syn
    }

    // ---- Sending ----

    /// Makes the next datagram for the peer, if there is one to be sent now.
    pub(super) fn transmit(
        &mut self,
        now: u64,
        shared: &mut Shared,
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
        // An endpoint that has been introduced to a stream has to confirm that, and hear of it.
        let probe = probe || self.is_unsettled();
        if !self.spend((HEADER_LEN + 8 * count + CRC_LEN) as u32) {
            return false;
        }
        let header = Header { probe, ..self.header(now, shared, Kind::Ack, self.next_seq) };
        buf.clear();
        buf.resize(HEADER_LEN, 0);
        header.emit(buf);
        for word in 1..=count {
            buf.extend_from_slice(&self.early_word(word).to_be_bytes());
        }
        seal(buf);
        true
    }

    fn header(&self, now: u64, shared: &Shared, kind: Kind, sequence: u32) -> Header {
        let ack = Acknowledgement { next: self.recv_next, selective: self.early_word(0) };
        Header {
            kind,
            syn: !self.synced,
            probe: false,
            lost: self.gave_up && !self.synced,
            source: End {
                endpoint: shared.config.endpoint,
                epoch: self.own.epoch,
                stream: self.own.stream,
            },
            destination: End {
                endpoint: self.address.endpoint,
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
        shared: &mut Shared,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
    ) -> bool {
        loop {
            let room = u64::from(shared.datagram_len());
            let allowed = self.proven || u64::from(self.allowance) >= room;
            let flight_max = self.flight_max();
            let Some(outbox) = &mut self.outbox else { return false };
            outbox.advance_response();
            let paced = outbox.flying < self.rate.window(room) && self.rate.next_send_at() <= now;
            let at = if self.probe && self.window != 0 && !outbox.flights.is_empty() {
                // The receiver may have dropped even what it had acknowledged selectively.
                outbox.lose(0);
                0
            } else if outbox.lost != 0 && paced && self.window != 0 {
                let lost = outbox.flights.iter().position(|flight| flight.fate == Fate::Lost);
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
            // The program's memory is gone; what comes behind it is not.
        }
    }

    pub(super) fn flights(&self) -> usize {
        self.outbox.as_ref().map_or(0, |outbox| outbox.flights.len())
    }

    fn flight_max(&self) -> usize {
        let window = usize::from(self.window.min(WINDOW));
        if self.synced { window } else { window.min(FIRST_FLIGHT as usize) }
    }

    /// Cuts the next segment, which is then the last under way and counts as lost.
    fn cut(&mut self, shared: &Shared) -> bool {
        let Some(outbox) = &mut self.outbox else { return false };
        let at = outbox.cut;
        let Some(message) = outbox.messages.get_mut(at) else { return false };
        let (queue, header_len) = match message.what {
            What::Send => (Some(queue::SEND), weft_wire::ddp::UNTAGGED_LEN),
            What::Read { .. } => (Some(queue::READ_REQUEST), weft_wire::ddp::UNTAGGED_LEN),
            What::Failure(_) => (Some(queue::TERMINATE), weft_wire::ddp::UNTAGGED_LEN),
            What::Write { .. } | What::Response { .. } => (None, weft_wire::ddp::TAGGED_LEN),
        };
        if message.last.is_none()
            && let Some(queue) = queue
        {
            let msn = &mut self.next_msn[queue as usize];
            message.msn = *msn;
            *msn = msn.wrapping_add(1);
        }
        if let What::Read { read, into, .. } = message.what
            && message.last.is_none()
        {
            outbox.reads.push_back(PendingRead { id: message.id, read, into, received: 0 });
        }
        let room = shared.datagram_len() as usize - HEADER_LEN - header_len - CRC_LEN;
        let len = (message.len - message.cut).min(room as u32);
        outbox.flights.push_back(Flight {
            message: outbox.first.wrapping_add(at as u32),
            offset: message.cut,
            len,
            fate: Fate::Lost,
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

    /// Writes the datagram under way at `at`. Returns false if it need not be sent after all.
    fn emit_segment(
        &mut self,
        now: u64,
        shared: &mut Shared,
        memory: &mut dyn Memory,
        buf: &mut Vec<u8>,
        at: usize,
    ) -> bool {
        let flights = self.flights();
        let sequence = self.next_seq.wrapping_sub((flights - at) as u32);
        let header = self.header(now, shared, Kind::Data, sequence);
        let all_told = self.early_words() <= 1;
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
        // The budget of an unproven peer covers whole datagrams.
        let len = buf.len() as u32;
        outbox.lost -= 1;
        outbox.order += 1;
        let idle = outbox.lost == 0 && outbox.messages.len() == outbox.cut;
        let flight = &mut outbox.flights[at];
        flight.again = flight.order != 0;
        flight.order = outbox.order;
        flight.fate = Fate::Flying;
        flight.sent = self.rate.sent(now, len, outbox.flying, idle);
        outbox.flying += u64::from(len);
        self.timer_from = now;
        if all_told {
            self.ack_at = NEVER;
        }
        self.spend(len);
        true
    }

    /// The memory that a message comes from cannot be read (any more): its segments go without.
    fn give_up_message(&mut self, shared: &mut Shared, index: usize, reason: Reason) {
        let Some(outbox) = &mut self.outbox else { return };
        let message = &mut outbox.messages[index];
        if !message.is_cut() {
            outbox.cut += 1;
        }
        message.len = message.cut;
        message.over = true;
        let (id, own_bytes) = (message.id, message.own_bytes());
        match message.what {
            What::Response { read, .. } => {
                let failure = What::Failure(ReadFailure { read, reason });
                let failure = Message::new(0, failure, Data::Bytes(Box::default()));
                outbox.messages.insert(outbox.cut, failure);
            }
            _ => shared.complete(id, own_bytes, Status::LocalAccess(reason)),
        }
    }

    // ---- Acknowledgements ----

    /// Deals with what the peer has received of our stream.
    pub(super) fn acknowledged(
        &mut self,
        now: u64,
        shared: &mut Shared,
        header: &Header,
        ack: Acknowledgement,
        body: &[u8],
    ) {
        let flights = self.flights();
        let first = self.next_seq.wrapping_sub(flights as u32);
        let arrived = distance(first, ack.next);
        if arrived > flights as i32 {
            // Not even sent: a liar's acknowledgement says nothing.
            return;
        }
        self.heard_at = now;
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
        self.rate.acknowledged(now, rtt, outbox.flying);
        if reopened {
            self.resend_all(now);
        } else {
            self.find_lost(now);
        }
    }

    /// Marks what has arrived: the `count` first ones under way, and those that the words name.
    fn mark(
        &mut self,
        now: u64,
        shared: &mut Shared,
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
            if flight.fate == Fate::Received {
                continue;
            }
            if flight.order == 0 {
                // Cut, but not sent yet: only a liar has it.
                outbox.arrived(at);
                continue;
            }
            news = true;
            // Of a datagram that was sent twice, the first copy may have arrived.
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

    /// Takes out the messages that the peer has all of.
    fn finish_messages(&mut self, shared: &mut Shared) {
        let first = self.next_seq.wrapping_sub(self.flights() as u32);
        let Some(outbox) = &mut self.outbox else { return };
        while let Some(message) = outbox.messages.front()
            && (message.is_cut() || message.over)
            && message.last.is_none_or(|last| distance(last, first) > 0)
        {
            let Some(message) = outbox.messages.pop_front() else { return };
            outbox.first = outbox.first.wrapping_add(1);
            outbox.cut -= 1;
            match message.what {
                What::Send | What::Write { .. } if !message.over => {
                    shared.complete(message.id, message.own_bytes(), Status::Success);
                }
                What::Response { .. } => outbox.responses -= 1,
                _ => {}
            }
        }
        self.tidy_outbox(shared);
    }

    fn tidy_outbox(&mut self, shared: &mut Shared) {
        if let Some(outbox) = self.outbox.take_if(|outbox| outbox.is_empty()) {
            shared.keep_spare(outbox);
        }
    }

    /// Decides which datagrams are lost: those behind which others have overtaken.
    fn find_lost(&mut self, now: u64) {
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
            if flight.fate != Fate::Flying || flight.order >= outbox.arrived_order {
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

    /// Everything under way is to be sent again.
    pub(super) fn resend_all(&mut self, now: u64) {
        self.timer_from = now;
        let Some(outbox) = &mut self.outbox else { return };
        for at in 0..outbox.flights.len() {
            if outbox.flights[at].fate == Fate::Flying || at == 0 {
                outbox.lose(at);
            }
        }
    }

    // ---- Time ----

    /// When something is to be done though nothing comes in.
    pub(super) fn next_deadline(&self, shared: &Shared) -> u64 {
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
        if more && allowed && outbox.flying < self.rate.window(room) {
            deadline = deadline.min(self.rate.next_send_at());
        }
        deadline
    }

    /// The deadline has come.
    pub(super) fn expired(&mut self, now: u64, shared: &mut Shared) {
        if self.outbox.as_ref().and_then(|outbox| outbox.late_at).is_some_and(|at| at <= now) {
            self.find_lost(now);
        }
        if !self.is_waiting() || self.timer_from + self.rtt.timeout(self.backoff) > now {
            return;
        }
        if now.saturating_sub(self.heard_at) >= GIVE_UP {
            // A peer that does not settle any more is none of the program's business.
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

    // ---- Failure ----

    /// The peer refuses what comes from `next` on for a reason of the message that is there.
    pub(super) fn refused_at(&mut self, now: u64, shared: &mut Shared, next: u32, reason: Reason) {
        let flights = self.flights();
        let arrived = distance(self.next_seq.wrapping_sub(flights as u32), next);
        if arrived < 0 || arrived >= flights as i32 {
            return;
        }
        self.synced = true;
        self.heard_at = now;
        self.mark(now, shared, None, arrived as usize, 0, &[]);
        let Some(outbox) = &mut self.outbox else { return };
        let Some(flight) = outbox.flights.front() else { return };
        let index = flight.message.wrapping_sub(outbox.first) as usize;
        let Some(message) = outbox.messages.get_mut(index) else { return };
        let (id, own_bytes, what) = (message.id, message.own_bytes(), message.what);
        let over = std::mem::replace(&mut message.over, true);
        match what {
            What::Read { read, .. } => self.end_read(shared, read, Status::Refused(reason)),
            What::Send | What::Write { .. } if !over => {
                shared.complete(id, own_bytes, Status::Refused(reason));
            }
            _ => {}
        }
        self.renew(now, shared, false);
    }

    /// A read is over, and its request need not be made again.
    pub(super) fn end_read(&mut self, shared: &mut Shared, number: u32, status: Status) {
        let Some(outbox) = &mut self.outbox else { return };
        let Some(at) = outbox.reads.iter().position(|read| read.read == number) else { return };
        let Some(read) = outbox.reads.remove(at) else { return };
        shared.complete(read.id, 0, status);
        let request = outbox
            .messages
            .iter_mut()
            .find(|message| matches!(message.what, What::Read { read, .. } if read == number));
        if let Some(request) = request {
            request.over = true;
        }
        self.tidy_outbox(shared);
    }

    /// Nobody wants the responses any more: what was sent of them is made up with nothing.
    pub(super) fn drop_responses(&mut self, shared: &mut Shared) {
        let Some(outbox) = &mut self.outbox else { return };
        let is_response = |message: &Message| matches!(message.what, What::Response { .. });
        outbox.messages.retain(|message| message.last.is_some() || !is_response(message));
        for message in outbox.messages.iter_mut().filter(|message| is_response(message)) {
            outbox.cut += usize::from(!message.is_cut());
            (message.len, message.over) = (message.cut, true);
        }
        outbox.responses = outbox.messages.iter().filter(|message| is_response(message)).count();
        self.tidy_outbox(shared);
    }

    /// Responses will come again from their start.
    pub(super) fn restart_reads(&mut self) {
        let Some(outbox) = &mut self.outbox else { return };
        outbox.reads.iter_mut().for_each(|read| read.received = 0);
    }

    /// Responses will not come.
    pub(super) fn fail_reads(&mut self, shared: &mut Shared) {
        while let Some(read) = self.outbox.as_ref().and_then(|outbox| outbox.reads.front()) {
            let number = read.read;
            self.end_read(shared, number, Status::PeerUnreachable);
        }
    }

    /// Starts a new stream with the messages that the peer does not have. One that has `forgotten`
    /// the old stream has forgotten reads, too.
    pub(super) fn renew(&mut self, now: u64, shared: &mut Shared, forgotten: bool) {
        self.own.stream = shared.new_stream();
        (self.synced, self.next_seq, self.next_msn) = (false, 1, [1; 3]);
        (self.window, self.backoff, self.probe) = (WINDOW, 0, false);
        (self.timer_from, self.heard_at) = (now, now);
        let Some(outbox) = &mut self.outbox else { return };
        outbox.flights.clear();
        (outbox.flying, outbox.lost, outbox.cut, outbox.late_at) = (0, 0, 0, None);
        outbox.messages.retain(|message| !message.over);
        outbox.responses = 0;
        for message in &mut outbox.messages {
            (message.cut, message.last) = (0, None);
            outbox.responses += usize::from(matches!(message.what, What::Response { .. }));
        }
        let (messages, reads) = (&outbox.messages, &mut outbox.reads);
        let mut gone = Vec::new();
        reads.retain(|read| {
            let asks = |message: &Message| {
                matches!(message.what, What::Read { read: number, .. } if number == read.read)
            };
            let again = messages.iter().any(asks);
            if !again && forgotten {
                gone.push(read.id);
            }
            !again && !forgotten
        });
        for id in gone {
            shared.complete(id, 0, Status::PeerUnreachable);
        }
        self.tidy_outbox(shared);
    }

    /// Everything that is open at the peer fails.
    pub(super) fn fail(&mut self, now: u64, shared: &mut Shared, status: Status) {
        if let Some(mut outbox) = self.outbox.take() {
            for read in outbox.reads.drain(..) {
                shared.complete(read.id, 0, status);
            }
            for message in outbox.messages.drain(..) {
                let told = match message.what {
                    What::Send | What::Write { .. } => message.over,
                    // Those that were sent are among the reads, or over.
                    What::Read { .. } => message.last.is_some() || message.over,
                    What::Response { .. } | What::Failure(_) => true,
                };
                if !told {
                    shared.complete(message.id, message.own_bytes(), status);
                }
            }
            self.gave_up |= outbox.responses != 0;
            shared.keep_spare(outbox);
        }
        self.renew(now, shared, true);
    }
}

impl Message {
    /// Appends a segment: header and payload.
    fn segment(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        len: u32,
        buf: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let end = offset + len;
        let last = end == self.len && !self.over;
        let untagged = |opcode: Opcode, queue, ulp_word| Ddp::Untagged {
            last,
            ulp: opcode.control(),
            ulp_word,
            qn: queue,
            msn: self.msn,
            mo: offset,
        };
        let tagged =
            |opcode: Opcode, stag, to| Ddp::Tagged { last, ulp: opcode.control(), stag, to };
        let header = match self.what {
            // A message that failed at home: a Write of nothing in the place of each segment.
            What::Write { .. } | What::Response { .. } if self.over => tagged(Opcode::Write, 0, 0),
            What::Send => untagged(Opcode::Send, queue::SEND, self.len),
            What::Read { .. } => Ddp::Untagged {
                last: true,
                ulp: Opcode::ReadRequest.control(),
                ulp_word: 0,
                qn: queue::READ_REQUEST,
                msn: self.msn,
                mo: 0,
            },
            What::Failure(_) => untagged(Opcode::Terminate, queue::TERMINATE, 0),
            What::Write { key, addr } => {
                tagged(Opcode::Write, key, addr.wrapping_add(offset.into()))
            }
            What::Response { read, sink } => {
                let to = u64::from(read) << 32 | u64::from(offset);
                tagged(Opcode::ReadResponse, sink, to)
            }
        };
        let start = buf.len();
        buf.resize(start + header.len(), 0);
        header.emit(&mut buf[start..]);
        let body = buf.len();
        match (&self.what, &self.data) {
            (&What::Read { read, into, key, addr }, _) => {
                let request = ReadRequest {
                    sink_stag: 0,
                    sink_to: u64::from(read) << 32,
                    size: into.len,
                    source_stag: key,
                    source_to: addr,
                };
                buf.resize(body + ReadRequest::LEN, 0);
                request.emit(&mut buf[body..]);
            }
            (What::Failure(failure), _) => {
                buf.resize(body + ReadFailure::LEN, 0);
                failure.emit(&mut buf[body..]);
            }
            _ if self.over || len == 0 => {}
            (_, Data::Bytes(bytes)) => {
                buf.extend_from_slice(&bytes[offset as usize..end as usize]);
            }
            (what, &Data::Registered(Buffer { key, addr, .. })) => {
                let party = match what {
                    What::Response { .. } => Party::Remote,
                    _ => Party::Local,
                };
                memory.read(party, key, addr.wrapping_add(offset.into()), len as usize, buf)?;
            }
        }
        Ok(())
    }
}

const _: () = assert!(RTO_MAX < GIVE_UP, "a peer is asked again before it is given up");
