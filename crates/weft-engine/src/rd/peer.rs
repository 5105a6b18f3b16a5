//! The state of one peer, and its identity.
//!
//! Each direction is a stream. A stream is identified by the sender's epoch (which changes when the
//! sender restarts) and a number that grows with each new stream of that epoch; datagrams of an
//! older stream are stale. The peer's address is *proven* when a datagram repeats our epoch, which
//! was only sent to that address; before that we send it little. A stream is *synced* when the peer
//! has confirmed it; before that our datagrams carry SYN, so that a first message needs no extra
//! round trip.
//! needs no round trip before it.

use weft_wire::ddp::UntaggedQueue;
use weft_wire::rd::{CRC_LEN, HEADER_LEN, Header, Kind, Reason};

use super::inbox::Inbox;
use super::limits::{FIRST_FLIGHT, GIVE_UP, IDLE};
use super::memory::Memory;
use super::message::{Message, MessageKind};
use super::outbox::Outbox;
use super::rate::Rate;
use super::request::{Notice, Route, Status};
use super::rtt::Rtt;
use super::seq::distance;
use super::shared::EndpointState;
use super::time::{NEVER, stamp};

/// Bytes that we may send to an unproven address for each byte from it (RFC 9000, section 8.1).
const AMPLIFICATION: u32 = 3;

/// The identity of one end, and of the stream that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Identity {
    /// 0 if unknown.
    pub(super) epoch: u32,
    pub(super) stream: u32,
}

/// What a peer is to the connections of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// Nothing: it may be forgotten, and gets no access to memory.
    None,
    /// It wants to connect, and is not forgotten meanwhile.
    Called,
    /// It is connected, and its keys give access to memory.
    Connected,
}

/// The state of a peer. An idle peer costs only this and its entry in the table.
#[derive(Debug)]
pub(super) struct RdPeer {
    pub(super) route: Route,
    pub(super) bond: Bond,
    pub(super) own: Identity,
    pub(super) their: Identity,
    /// An epoch that claims to be the peer's new one, and when we first challenged it.
    candidate_epoch: u32,
    candidate_at: u32,
    /// Whether the address has repeated our epoch.
    pub(super) proven: bool,
    /// Whether we contacted the peer first.
    pub(super) dialled: bool,
    /// Whether the peer knows our stream.
    pub(super) synced: bool,
    /// Whether we know the peer's stream.
    pub(super) receiving: bool,
    /// Whether the peer does not know yet that we know its stream.
    pub(super) their_syn: bool,
    /// Whether the peer waits for responses that will not be sent.
    pub(super) gave_up: bool,
    /// Bytes that we may send to an unproven address.
    pub(super) allowance: u32,

    // Sending.
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) next_seq: u32,
    /// The next MSN of each queue.
    pub(super) next_msn: [u32; 3],
    /// Number of sequences that the peer accepts.
    pub(super) window: u16,
    pub(super) backoff: u8,
    /// Whether the timer has expired and something must be sent, even against the windows.
    pub(super) probe: bool,
    pub(super) rtt: Rtt,
    pub(super) rate: Rate,
    /// When the peer last acknowledged, or when we started to wait for an acknowledgement.
    pub(super) acked_at: u64,
    /// When the retransmission timer was started.
    pub(super) timer_from: u64,

    // Receiving.
    pub(super) inbox: Option<Box<Inbox>>,
    /// The first sequence that has not been received.
    pub(super) recv_next: u32,
    /// The untagged queues: Sends and read requests.
    pub(super) queues: [UntaggedQueue; 2],
    /// Why the peer's stream was refused.
    pub(super) refused: Option<Reason>,
    /// Whether the peer must not send, because a Send of its found no room.
    pub(super) closed: bool,
    /// Whether the peer is on the list of those to notify when there is room.
    pub(super) starved: bool,
    /// When received data must be acknowledged.
    pub(super) ack_at: u64,
    /// The peer's timestamp in the last datagram, and when we received it.
    echo: u32,
    echo_at: u64,

    // State of the table and the timers.
    pub(super) active_at: u64,
    pub(super) deadline: u64,
    /// Whether the peer is on the list of those that may have something to send.
    pub(super) listed: bool,
}

const _: () = assert!(size_of::<RdPeer>() <= 288, "the state of an idle peer has grown");

impl RdPeer {
    /// Creates the state of a peer that we will contact, or that has contacted us.
    pub(super) fn new(now: u64, shared: &mut EndpointState, route: Route, dialled: bool) -> Self {
        Self {
            route,
            bond: Bond::None,
            own: Identity { epoch: shared.epoch(&route), stream: shared.new_stream() },
            their: Identity::default(),
            candidate_epoch: 0,
            candidate_at: 0,
            proven: false,
            dialled,
            synced: false,
            receiving: false,
            their_syn: false,
            gave_up: false,
            allowance: if dialled { FIRST_FLIGHT * shared.datagram_len() } else { 0 },
            outbox: None,
            next_seq: 1,
            next_msn: [1; 3],
            window: super::limits::WINDOW,
            backoff: 0,
            probe: false,
            rtt: Rtt::default(),
            rate: Rate::new(now),
            acked_at: now,
            timer_from: now,
            inbox: None,
            recv_next: 1,
            queues: [UntaggedQueue::new(); 2],
            refused: None,
            closed: false,
            starved: false,
            ack_at: NEVER,
            echo: 0,
            echo_at: now,
            active_at: now,
            deadline: NEVER,
            listed: false,
        }
    }

    /// Whether the peer can be forgotten without losing anything.
    pub(super) fn may_be_forgotten(&self, now: u64) -> bool {
        let is_idle = self.bond == Bond::None && self.outbox.is_none() && !self.listed;
        is_idle && now.saturating_sub(self.active_at) >= IDLE
    }

    /// Processes a datagram of `len` bytes from the peer's address.
    pub(super) fn input(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        memory: &mut dyn Memory,
        header: &Header,
        body: &[u8],
        len: usize,
    ) {
        let proof = header.destination.epoch == self.own.epoch;
        match header.kind {
            Kind::Reset(reason) => {
                if proof && header.destination.stream == self.own.stream {
                    self.reset(now, shared, header, reason);
                }
                return;
            }
            Kind::Challenge => {
                if proof && header.destination.stream == self.own.stream && !self.synced {
                    self.challenged(now, shared, header);
                }
                return;
            }
            Kind::Data | Kind::Ack => {}
        }
        let own_epoch = header.source.epoch == self.their.epoch;
        if !own_epoch && !self.admit(now, shared, header, proof) {
            return;
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.allowance = self.allowance.saturating_add(len.saturating_mul(AMPLIFICATION));
        if proof {
            self.prove(shared);
        }
        if !self.follow(now, shared, header) {
            return;
        }
        self.active_at = now;
        (self.echo, self.echo_at) = (header.timestamp, now);
        if let Some(ack) = header.ack
            && proof
            && header.destination.stream == self.own.stream
        {
            (self.synced, self.gave_up) = (true, false);
            self.acknowledged(now, shared, header, ack, body);
        }
        if header.kind == Kind::Data && self.is_current(header) {
            self.receive(now, shared, memory, header, body);
        }
        if header.probe {
            // The peer may try again whether there is room.
            (self.ack_at, self.closed) = (now, false);
        }
    }

    fn is_current(&self, header: &Header) -> bool {
        self.receiving && header.source.stream == self.their.stream
    }

    pub(super) fn prove(&mut self, shared: &mut EndpointState) {
        if !std::mem::replace(&mut self.proven, true) {
            shared.unproven -= usize::from(!self.dialled);
        }
    }

    /// Decides about an epoch that is not the peer's known one. Returns whether it is accepted.
    fn admit(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        header: &Header,
        proof: bool,
    ) -> bool {
        let unknown = self.their.epoch == 0 && (proof || header.destination.epoch == 0);
        // The known epoch may have come from a forged datagram.
        let genuine = !self.proven && proof;
        if !header.syn {
            if header.kind == Kind::Data {
                shared.reply(now, self.route, header, Kind::Reset(Reason::UnknownStream), None);
            }
            return false;
        }
        if unknown || genuine {
            self.their.epoch = header.source.epoch;
            self.forget_stream(shared);
            self.drop_responses(shared);
            return true;
        }
        // The peer has restarted, or the datagram is late or forged: a live peer echoes the
        // timestamp of our challenge.
        let asked = self.candidate_epoch == header.source.epoch;
        let fresh = header.echo != 0 && distance(self.candidate_at, header.echo) >= 0;
        if asked && proof && fresh {
            self.restarted(now, shared, header.source.epoch);
            return true;
        }
        if !asked {
            (self.candidate_epoch, self.candidate_at) = (header.source.epoch, stamp(now));
        }
        shared.reply(now, self.route, header, Kind::Challenge, None);
        false
    }

    /// Decides about the stream of a datagram of the peer's epoch. Returns false for a stale one.
    fn follow(&mut self, now: u64, shared: &mut EndpointState, header: &Header) -> bool {
        let stream = header.source.stream;
        if self.receiving && stream == self.their.stream {
            self.their_syn &= header.syn;
            return true;
        }
        if self.receiving && distance(self.their.stream, stream) < 0 {
            return false;
        }
        if !header.syn {
            if header.kind == Kind::Data {
                self.answer(now, shared, header, Kind::Reset(Reason::UnknownStream), None);
            }
            return header.kind == Kind::Ack;
        }
        let replaced = self.receiving;
        self.forget_stream(shared);
        (self.their.stream, self.receiving, self.their_syn) = (stream, true, true);
        // An acknowledgement tells the peer that we know its stream.
        self.ack_at = now;
        if replaced && header.lost && self.bond != Bond::None {
            // It has ended the connection.
            self.lose(shared, Status::PeerUnreachable);
            self.fail(now, shared, Status::PeerUnreachable);
        } else if replaced && header.lost {
            self.fail_reads(shared);
        } else if replaced {
            self.restart_reads();
        }
        if header.ack.is_none() && self.synced {
            // The peer has forgotten us, and with us our stream.
            self.renew_if_safe(now, shared);
        }
        true
    }

    /// Drops the receive state of the peer's stream.
    pub(super) fn forget_stream(&mut self, shared: &mut EndpointState) {
        self.drop_inbox(shared);
        self.receiving = false;
        self.their_syn = false;
        self.recv_next = 1;
        self.queues = [UntaggedQueue::new(); 2];
        self.refused = None;
    }

    /// Handles that the peer has restarted or lost its state.
    fn restarted(&mut self, now: u64, shared: &mut EndpointState, epoch: u32) {
        self.their.epoch = epoch;
        self.candidate_epoch = 0;
        self.forget_stream(shared);
        self.fail(now, shared, Status::PeerRestarted);
        self.lose(shared, Status::PeerRestarted);
        // The new process has not requested anything yet.
        self.gave_up = false;
    }

    /// Handles a challenge: sends our first datagrams again, with the peer's epoch.
    fn challenged(&mut self, now: u64, shared: &mut EndpointState, header: &Header) {
        let epoch = header.source.epoch;
        self.prove(shared);
        (self.echo, self.echo_at) = (header.timestamp, now);
        if self.their.epoch == epoch {
            // Already answered; the timer handles losses.
            return;
        }
        if self.their.epoch == 0 {
            self.their.epoch = epoch;
        } else {
            self.restarted(now, shared, epoch);
        }
        self.active_at = now;
        self.resend_all(now);
    }

    /// Handles the peer's refusal to continue our stream.
    fn reset(&mut self, now: u64, shared: &mut EndpointState, header: &Header, reason: Reason) {
        let epoch = header.source.epoch;
        self.prove(shared);
        if self.their.epoch == 0 {
            self.their.epoch = epoch;
        } else if epoch != self.their.epoch {
            return self.restarted(now, shared, epoch);
        }
        self.active_at = now;
        match (reason, header.ack) {
            (Reason::UnknownStream, _) if self.synced => self.renew_if_safe(now, shared),
            (Reason::UnknownStream, _) | (_, None) => {}
            (reason, Some(ack)) => self.refused_at(now, shared, ack.next, reason),
        }
    }

    /// Starts a new stream with the open messages, if none can already have been carried out: a
    /// peer forgets us only after [`IDLE`], so it cannot have carried out a message that is younger
    /// than [`GIVE_UP`].
    fn renew_if_safe(&mut self, now: u64, shared: &mut EndpointState) {
        if self.bond != Bond::None {
            // Neither end of a connection forgets the other.
            self.fail(now, shared, Status::PeerUnreachable);
            self.lose(shared, Status::PeerUnreachable);
        } else if self.is_waiting() && now.saturating_sub(self.acked_at) > GIVE_UP {
            self.fail(now, shared, Status::PeerUnreachable);
        } else {
            self.renew(now, shared, true);
        }
    }

    /// Handles that the peer's process is gone.
    pub(super) fn gone(&mut self, now: u64, shared: &mut EndpointState) {
        self.their_syn = false;
        if self.outbox.is_some() {
            self.fail(now, shared, Status::PeerGone);
        }
        self.lose(shared, Status::PeerGone);
    }

    /// Ends the connection with the peer, if there is one.
    pub(super) fn lose(&mut self, shared: &mut EndpointState, status: Status) {
        if std::mem::replace(&mut self.bond, Bond::None) != Bond::None {
            shared.notices.push_back(Notice::Lost { route: self.route, status });
        }
    }

    /// Replies to a datagram that is not accepted.
    pub(super) fn answer(
        &mut self,
        now: u64,
        shared: &mut EndpointState,
        header: &Header,
        kind: Kind,
        next: Option<u32>,
    ) {
        if self.spend((HEADER_LEN + CRC_LEN) as u32) {
            shared.reply(now, self.route, header, kind, next);
        }
    }

    /// The peer's last timestamp plus the time since then, to be echoed.
    pub(super) fn echo(&self, now: u64) -> u32 {
        match self.echo {
            0 => 0,
            echo => echo.wrapping_add(now.saturating_sub(self.echo_at) as u32).max(1),
        }
    }

    /// Takes `len` bytes off the allowance of an unproven address. Returns false if that is
    /// exceeded.
    pub(super) fn spend(&mut self, len: u32) -> bool {
        if self.proven {
            return true;
        }
        let left = self.allowance.checked_sub(len);
        self.allowance = left.unwrap_or(self.allowance);
        left.is_some()
    }

    /// Queues a message for the peer.
    pub(super) fn enqueue(&mut self, now: u64, shared: &mut EndpointState, message: Message) {
        if !self.is_waiting() {
            (self.acked_at, self.timer_from, self.backoff) = (now, now, 0);
        }
        if self.outbox.is_none() {
            self.rate.resume(now);
            self.outbox = Some(shared.spare.pop().unwrap_or_default());
        }
        let Some(outbox) = &mut self.outbox else { return };
        outbox.responses += usize::from(matches!(message.kind, MessageKind::Response { .. }));
        outbox.messages.push_back(message);
        self.active_at = now;
    }

    /// Whether we wait for something from the peer.
    pub(super) fn is_waiting(&self) -> bool {
        self.outbox.is_some() || self.is_unsettled()
    }

    /// Whether the peer still sends SYN, until it knows that we know its stream.
    pub(super) fn is_unsettled(&self) -> bool {
        self.proven && self.their_syn
    }

    /// Number of datagrams that have not been acknowledged.
    pub(super) fn flights(&self) -> usize {
        self.outbox.as_ref().map_or(0, |outbox| outbox.flights.len())
    }

    /// Returns an empty outbox to the spare ones.
    pub(super) fn release_empty_outbox(&mut self, shared: &mut EndpointState) {
        if let Some(outbox) = self.outbox.take_if(|outbox| outbox.is_empty()) {
            shared.keep_spare(outbox);
        }
    }
}
