//! The protocol of one connected queue pair: bytes in, bytes out, no socket and no clock inside.
//!
//! [`Link::input`] takes what a peer sent ([`rx`]), [`Link::output`] makes what goes to the peer
//! ([`tx`]). The bytes are iWARP: MPA frames around DDP segments of RDMAP messages. Between Weft
//! peers three things are added in ways that every iWARP decoder understands:
//!
//! * **Acknowledgements.** Verbs programs take the completion of a Send or Write as "placed at the
//!   peer". A zero-length RDMA Write to the STag that the peer named in its hello tells by its
//!   offset how many messages have been placed ([`control`]). Towards a foreign iWARP peer a
//!   message is complete when it has been handed to TCP, which is what iWARP promises.
//! * **Waiting for a receive.** A Send that finds no receive is parked. The same control message
//!   tells the sender, which gives up after its own RNR retries.
//! * **Send with immediate data** is an Immediate Data message (RFC 7306) that says that it belongs
//!   to the Send behind it.
//! * **Shared receive queues by number** ([`xrc`]), for extended reliable connections.

pub(crate) mod control;
mod fault;
pub(crate) mod host;
pub(crate) mod payload;
pub(crate) mod place;
pub(crate) mod pool;
mod rx;
pub(crate) mod shared;
mod small;
mod tx;
mod uc;
mod xrc;

use std::collections::VecDeque;
use std::ops::DerefMut;

use smallvec::SmallVec;
use weft_sys::Piece;
use weft_wire::ddp::UntaggedQueue;
use weft_wire::mpa::marker::{Inserter, Remover};
use weft_wire::mpa::negotiate::{Negotiated, RtrKind};
use weft_wire::rdmap::{self, AtomicResponse, Terminate};

use crate::access::Access;
use crate::attr::{QpAttr, QpState, QpType};
use crate::log::{self, Level};
use crate::mr::MrCache;
use crate::queue::recv::RecvWork;
use crate::queue::send::SendQueue;
use crate::shm::Peer;
use crate::wc::{Completion, Opcode, Status};
use crate::wr::Sge;

pub(crate) use fault::Fault;
use host::{Completions, Host};
use payload::Payload;
use shared::Shared;

/// What a connection has from its queue pair and keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// The queue pair's number.
    pub(crate) number: u32,
    /// The key to which the peer acknowledges.
    pub(crate) ack_stag: u32,
    pub(crate) qp_type: QpType,
    /// Receives come from a shared queue.
    pub(crate) shares_receives: bool,
}

/// What the connection's rules are, set by `ibv_modify_qp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) state: QpState,
    /// What a peer may do to memory.
    pub(crate) access: Access,
    /// Reads and atomics that we may have outstanding.
    pub(crate) max_rd_atomic: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub(crate) max_dest_rd_atomic: u8,
    /// How long a sender waits for our receive, in the verbs encoding.
    pub(crate) min_rnr_timer: u8,
    /// The sender's number, which completions of an extended connection report; otherwise 0.
    pub(crate) src_qp: u32,
}

/// Something that the owner of the link must do once the link is not locked any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    /// The peer is gone, or must be left.
    pub(crate) disconnected: bool,
    /// A Send waits for a receive: start, or (`None`) stop, the timer.
    pub(crate) rnr: Option<Option<RnrWait>>,
    /// Requests wait for a peer: start the timer after which they fail.
    pub(crate) in_vain: Option<InVain>,
}

/// Why requests wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InVain {
    /// It is gone.
    Gone,
    /// It has not come yet.
    NotYetThere,
}

/// The peer has no receive for our Send, or we have none for its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RnrWait {
    /// The peer's timer, in the verbs encoding.
    pub(crate) timer: u8,
}

/// How far the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection yet.
    Idle,
    /// Messages flow.
    Open,
    /// What stands in the buffer is sent, and then the stream is closed.
    Closing,
    /// The stream is closed or lost.
    Closed,
}

/// What both sides agreed on, and who we are.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) initiator: bool,
    pub(crate) negotiated: Negotiated,
    /// The key that acknowledges to the peer; `None` for a foreign peer.
    pub(crate) peer_ack_stag: Option<u32>,
    /// Longest ULPDU to send, in bytes.
    pub(crate) mulpdu: usize,
}

/// A read or atomic under way.
#[derive(Debug)]
struct Outstanding {
    /// Number of its work request; `None` for the connection's own ready-to-receive message.
    work: Option<u64>,
    id: u32,
    atomic: bool,
    /// What it concerns at the peer, `length` bytes.
    key: u32,
    addr: u64,
    length: u32,
    received: u32,
    sges: SmallVec<[Sge; 2]>,
}

impl Outstanding {
    /// Whether it reads any of these bytes at the peer.
    fn reads(&self, key: u32, addr: u64, length: u32) -> bool {
        let is_before = |addr: u64, length: u32, other| addr.saturating_add(length.into()) <= other;
        !self.atomic
            && self.key == key
            && !is_before(self.addr, self.length, addr)
            && !is_before(addr, length, self.addr)
    }
}

/// What the peer asked for and has not got yet.
#[derive(Debug)]
enum Response {
    Read { sink_stag: u32, sink_to: u64, key: u32, addr: u64, length: u32, sent: u32 },
    Atomic(AtomicResponse),
}

/// A message into a posted receive.
#[derive(Debug)]
struct Receiving<Q> {
    active: bool,
    work: RecvWork,
    capacity: u64,
    /// Where the receive is from, on the target of an extended connection.
    queue: Option<Q>,
}

impl<Q> Default for Receiving<Q> {
    fn default() -> Self {
        Self { active: false, work: RecvWork::default(), capacity: 0, queue: None }
    }
}

/// A Send or an Immediate that found no receive.
#[derive(Debug)]
struct Parked {
    opcode: rdmap::Opcode,
    bytes: Vec<u8>,
    /// Instead of bytes: where in the peer's memory they are.
    pieces: Vec<Piece>,
    invalidate: Option<u32>,
    imm: Option<u32>,
    /// Immediate data of a Write: length of the Write.
    written: Option<u32>,
    /// The shared receive queue that it is for, on the target of an extended connection.
    srqn: u32,
    complete: bool,
    /// Writes placed behind it. They count as placed only with it: the peer is told of a number of
    /// messages, which are complete in order.
    behind: u64,
}

impl Parked {
    /// What it takes of the bound on parked bytes. An empty message is bounded, too; one under way
    /// only by its bytes, so that its room does not run out at its last segment.
    fn cost(&self) -> usize {
        let pieces = self.pieces.len() * size_of::<Piece>();
        self.bytes.len() + pieces + if self.complete { size_of::<Self>() } else { 0 }
    }

    fn payload<'a>(&'a self, peer: Option<&'a Peer>) -> Payload<'a> {
        match peer {
            Some(peer) if !self.pieces.is_empty() => {
                let len = self.pieces.iter().map(|(_, len)| len).sum();
                Payload::Remote { peer, pieces: &self.pieces, len }
            }
            _ => Payload::Bytes(&self.bytes),
        }
    }
}

/// The message that is being cut into segments.
#[derive(Debug, Default)]
struct Outgoing {
    active: bool,
    number: u64,
    offset: u32,
    length: u32,
    header: Option<tx::MessageHeader>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

/// The protocol state of a queue pair's connection.
//= rfc5040#section-3.1
//# RDMAP MUST be layered on top of the Direct Data Placement Protocol [DDP].
//= rfc5040#section-3.1
//# DDP, in conjunction with the lower layers, provides reliable, in-order Delivery.
#[derive(Debug)]
pub(crate) struct Link<H: Host> {
    number: u32,
    pub(crate) rules: Rules,
    pub(crate) phase: Phase,
    pub(crate) notices: Notices,
    agreement: Option<Agreement>,
    own_ack_stag: u32,
    qp_type: QpType,
    shares_receives: bool,
    /// Instead of a stream of bytes.
    shared: Option<Box<Shared>>,

    // Bytes.
    pub(crate) rx: Vec<u8>,
    rx_at: usize,
    pub(crate) tx: Vec<u8>,
    pub(crate) tx_at: usize,
    remover: Option<Remover>,
    raw: Vec<u8>,
    inserter: Option<Inserter>,
    scratch: Vec<u8>,

    // Sending.
    tx_cache: MrCache,
    rtr_due: Option<RtrKind>,
    hold: bool,
    outgoing: Outgoing,
    response_turn: bool,
    responses: VecDeque<Response>,
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
    next_read_id: u32,
    outstanding: VecDeque<Outstanding>,
    messages_sent: u64,
    peer_placed: u64,
    appended: u64,
    taken: u64,
    rnr_waiting: bool,
    waits_in_vain: bool,
    lost_errno: u32,
    terminate: Option<Terminate>,
    drained_told: bool,

    // Receiving.
    rx_cache: MrCache,
    bytes_in: u64,
    heard: bool,
    queues: [UntaggedQueue; rdmap::queue::COUNT],
    receiving: Receiving<H::Queue>,
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    send_imm: Option<u32>,
    written: u32,
    last_write_len: u32,
    placed: u64,
    placed_told: u64,
    rnr_told: Option<u64>,
    loss: uc::Loss,
}

impl<H: Host> Link<H> {
    /// A queue pair without a connection.
    pub(crate) fn new(config: Config) -> Self {
        let Config { number, ack_stag: own_ack_stag, qp_type, shares_receives } = config;
        Self {
            number,
            shares_receives,
            rules: Rules {
                state: QpState::Reset,
                access: Access::empty(),
                max_rd_atomic: 0,
                max_dest_rd_atomic: 0,
                min_rnr_timer: 0,
                src_qp: 0,
            },
            phase: Phase::Idle,
            notices: Notices::default(),
            agreement: None,
            own_ack_stag,
            qp_type,
            shared: None,
            rx: Vec::new(),
            rx_at: 0,
            tx: Vec::new(),
            tx_at: 0,
            remover: None,
            raw: Vec::new(),
            inserter: None,
            scratch: Vec::new(),
            tx_cache: MrCache::default(),
            rtr_due: None,
            hold: false,
            outgoing: Outgoing::default(),
            response_turn: false,
            responses: VecDeque::new(),
            send_msn: 1,
            request_msn: 1,
            response_msn: 1,
            next_read_id: 0,
            outstanding: VecDeque::new(),
            messages_sent: 0,
            peer_placed: 0,
            appended: 0,
            taken: 0,
            rnr_waiting: false,
            waits_in_vain: false,
            lost_errno: 0,
            terminate: None,
            drained_told: false,
            rx_cache: MrCache::default(),
            bytes_in: 0,
            heard: false,
            queues: [UntaggedQueue::new(); rdmap::queue::COUNT],
            receiving: Receiving::default(),
            parked: VecDeque::new(),
            parked_bytes: 0,
            send_imm: None,
            written: 0,
            last_write_len: 0,
            placed: 0,
            placed_told: 0,
            rnr_told: None,
            loss: uc::Loss::default(),
        }
    }

    /// The MPA exchange is over: FPDUs flow from here on. `early` came behind the peer's frame.
    pub(crate) fn open(&mut self, agreement: Agreement, early: &[u8]) {
        let negotiated = &agreement.negotiated;
        //= rfc5040#section-6.1
        //# Once in RDMA enabled mode, an implementation MUST send only RDMA Messages across the
        //# transport Stream until the RDMAP Stream is torn down.
        self.phase = Phase::Open;
        if std::mem::take(&mut self.waits_in_vain) {
            // The timer of that wait must not be taken for that of a missing receive.
            self.notices.rnr = Some(None);
        }
        self.remover = negotiated.rx_markers.then(|| Remover::new(negotiated.crc));
        self.inserter = negotiated.tx_markers.then(|| Inserter::new(negotiated.crc));
        self.rtr_due = negotiated.rtr.filter(|_| agreement.initiator);
        // RFC 5044 section 7.1.2: the responder sends nothing before it has heard the initiator.
        self.hold = !agreement.initiator;
        self.agreement = Some(agreement);
        if !early.is_empty() {
            let buffer = if self.remover.is_some() { &mut self.raw } else { &mut self.rx };
            pool::borrow(buffer);
            buffer.extend_from_slice(early);
        }
    }

    /// Whether nothing may be sent before the first message of a foreign initiator that has
    /// promised none.
    pub(crate) fn awaits_first_word(&self) -> bool {
        self.hold
            && self.phase == Phase::Open
            && !self.is_weft_peer()
            && self.rtr_expected().is_none()
    }

    /// That message is not waited for any longer.
    pub(crate) fn speak_first(&mut self) {
        self.hold = false;
    }

    /// Whether the peer is one of ours.
    pub(crate) fn is_weft_peer(&self) -> bool {
        self.peer_ack_stag().is_some()
    }

    /// Whether each side tells the other what it has placed.
    fn is_acknowledged(&self) -> bool {
        self.is_weft_peer() && !self.is_unreliable()
    }

    fn peer_ack_stag(&self) -> Option<u32> {
        self.agreement.as_ref().and_then(|agreement| agreement.peer_ack_stag)
    }

    fn rtr_expected(&self) -> Option<RtrKind> {
        let agreement = self.agreement.as_ref()?;
        agreement.negotiated.rtr.filter(|_| !agreement.initiator)
    }

    fn crc(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.negotiated.crc)
    }

    /// Whether messages of the peer may be dealt with now.
    fn receives(&self) -> bool {
        let ready =
            matches!(self.rules.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        ready && self.phase == Phase::Open
    }

    /// Reports the oldest requests as complete, as far as they are.
    //= rfc5040#section-5.5
    //# RDMA Operations MUST be Completed at the Local Peer in the order that they were submitted by
    //# the ULP.
    pub(crate) fn complete_sends(&mut self, host: &H) {
        self.complete_held(host.sends(), host);
        self.check_drained(host);
    }

    fn complete_held(&mut self, mut sq: impl DerefMut<Target = SendQueue>, host: &H) {
        let count = if self.is_acknowledged() { self.peer_placed } else { self.taken };
        let mut batch = None;
        while let Some(work) = sq.pop_complete(count) {
            if work.flags.contains(crate::wr::SendFlags::SIGNALED) {
                let completion = work.completion(Status::Success, self.number);
                batch.get_or_insert_with(|| host.send_completions()).push(completion, false);
            }
        }
    }

    /// Reports once that the send queue, which is to be drained, is (IBTA 10.3.1.5).
    pub(crate) fn check_drained(&mut self, host: &H) {
        let is_drained = self.rules.state == QpState::Sqd
            && !self.outgoing.active
            && !host.sends().is_awaiting();
        if is_drained && !std::mem::replace(&mut self.drained_told, true) {
            host.send_queue_drained();
        }
    }

    /// Ends all work: the oldest send work request with `first`, everything else as flushed. The
    /// connection is closed once what is due to the peer has been sent.
    pub(crate) fn fail(&mut self, host: &H, first: Option<Status>, vendor_err: u32) {
        self.rules.state = QpState::Err;
        host.enter_state(QpState::Err);
        if let Some(shared) = &self.shared {
            shared.withdraw_grants();
        }
        self.outgoing.active = false;
        self.outstanding.clear();
        self.parked.clear();
        self.parked_bytes = 0;
        if self.rnr_waiting {
            self.rnr_waiting = false;
            self.notices.rnr = Some(None);
        }
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Closing;
        }
        self.flush_sends(host, first, vendor_err);
        self.flush_receives(host);
    }

    /// Flushes what a program posts to a queue pair in the error state, too.
    pub(crate) fn flush_sends(&mut self, host: &H, first: Option<Status>, vendor_err: u32) {
        let mut status = first;
        let mut sq = host.sends();
        while let Some(work) = sq.pop() {
            let status = status.take().unwrap_or(Status::WrFlushErr);
            let vendor_err = if status == Status::WrFlushErr { 0 } else { vendor_err };
            let completion = work.completion(status, self.number);
            host.send_completions().push(Completion { vendor_err, ..completion }, false);
        }
    }

    /// Flushes the queue pair's own receives; those of a shared queue stay (IBTA 10.2.9.3).
    pub(crate) fn flush_receives(&mut self, host: &H) {
        let number = self.number;
        let flushed = |wr_id| Completion::new(wr_id, Status::WrFlushErr, Opcode::Recv, number);
        if std::mem::take(&mut self.receiving.active) {
            let completion = flushed(self.receiving.work.wr_id);
            host.complete_receive(self.receiving.queue.as_ref(), completion, false);
        }
        if self.shares_receives {
            host.last_receive_taken();
            return;
        }
        let mut work = RecvWork::default();
        let mut rq = host.receives();
        while rq.pop(&mut work) {
            host.receive_completions().push(flushed(work.wr_id), false);
        }
    }

    /// The stream has ended: `orderly` by the peer's FIN, otherwise by a reset or a time-out.
    pub(crate) fn lost(&mut self, host: &H, errno: u32) {
        if self.phase == Phase::Closed {
            return;
        }
        let was_open = self.phase == Phase::Open;
        if was_open {
            let reason = if errno == 0 { "by the peer".into() } else { format!("errno {errno}") };
            log::write(Level::Info, format_args!("qp {:#08x}: closed, {reason}", self.number));
        }
        //= rfc5041#section-7
        //# All LLP errors reported to DDP SHOULD be passed up to the ULP.
        //= rfc5041#section-3
        //# For a specific LLP Stream, the LLP MUST provide a mechanism to indicate that the LLP
        //# Stream has been gracefully torn down.
        //= rfc5041#section-5.4
        //# At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are
        //# true: * the last DDP Segment of the DDP Message had its Last flag set,
        //= rfc5041#section-6.2.2
        //# Thus, any of the following fatal errors on a DDP Stream MUST cause DDP to indicate to
        //# the ULP that a fatal error has occurred: * Underlying LLP Connection or LLP Stream is
        //# lost.
        self.phase = Phase::Closed;
        if let Some(shared) = &self.shared {
            shared.end();
        }
        if was_open {
            self.notices.disconnected = true;
            self.lost_errno = errno;
            self.wait_in_vain(host);
        }
    }

    /// Like a card whose peer is gone: nothing fails before a request has been retried in vain. A
    /// program that is done with a peer may go while a request of the other's is still on its way,
    /// and the other must have the time to find out that it is done, too. A peer that has not come
    /// yet gets more time.
    pub(crate) fn wait_in_vain(&mut self, host: &H) {
        let why = match (self.phase, self.rules.state) {
            (Phase::Closed, _) if self.is_unreliable() => return self.send_to_nobody(host),
            (Phase::Closed, _) => InVain::Gone,
            (Phase::Idle, QpState::Rts) => InVain::NotYetThere,
            _ => return,
        };
        if host.sends().len() != 0 && !std::mem::replace(&mut self.waits_in_vain, true) {
            self.notices.in_vain = Some(why);
        }
    }

    /// Takes over what the program set.
    pub(crate) fn set_rules(&mut self, attr: &QpAttr, state: QpState) {
        if state == QpState::Sqd && self.rules.state != QpState::Sqd {
            self.drained_told = false;
        }
        if let Some(shared) = &self.shared
            && self.rules.access != attr.qp_access_flags
        {
            shared.withdraw_grants();
        }
        self.rules = Rules {
            state,
            access: attr.qp_access_flags,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            src_qp: if self.qp_type == QpType::XrcRecv { attr.dest_qp_num } else { 0 },
        };
    }

    /// Closes the stream once what has been handed over is sent.
    //= rfc5040#section-6.2
    //# There are three methods for terminating an RDMAP Stream: ULP Graceful Termination, RDMAP
    //# Abortive Termination, and LLP Abortive Termination.
    //= rfc5041#section-6.2
    //# DDP MUST NOT independently initiate Stream Teardown. DDP either responds to a stream being
    //# torn down by the LLP or processes a request from the ULP to tear down a stream.
    pub(crate) fn close(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
    }

    /// There is no peer, and none will come: requests fail as if a card's retries were exhausted.
    pub(crate) fn unreachable(&mut self, host: &H, errno: u32) {
        self.phase = Phase::Closed;
        if self.is_unreliable() {
            self.send_to_nobody(host);
        } else if host.sends().len() != 0 {
            self.fail(host, Some(Status::RetryExcErr), errno);
        }
    }

    /// Whoever had no receive has had none for long enough, or the peer has been gone for as long
    /// as retries take.
    pub(crate) fn give_up_waiting(&mut self, host: &H) {
        if std::mem::take(&mut self.waits_in_vain) {
            if self.phase == Phase::Idle {
                log::write(Level::Error, format_args!("qp {:#08x}: no peer came", self.number));
            }
            self.unreachable(host, self.lost_errno);
        } else if self.rnr_waiting {
            self.notices.disconnected = true;
            self.fail(host, Some(Status::RnrRetryExcErr), 0);
        } else if self.is_starved() {
            self.stop_waiting_for_receive();
        }
    }

    /// Whether the peer has said more than that it is there.
    pub(crate) fn has_heard_messages(&self) -> bool {
        self.placed != 0 || self.has_parked() || self.receiving.active || !self.responses.is_empty()
    }

    /// Bytes from and to the peer since the connection began.
    pub(crate) fn byte_counters(&self) -> (u64, u64) {
        (self.bytes_in, self.taken)
    }

    /// Counts bytes from the peer.
    pub(crate) fn heard_bytes(&mut self, count: usize) {
        self.bytes_in += count as u64;
    }

    /// A defect for the simulation to find: one message more counts as placed than has been.
    #[cfg(test)]
    pub(crate) fn pretend_placed(&mut self) {
        self.placed += 1;
    }

    /// Numbers for the debug dump: (messages sent, placed at the peer, placed here, parked bytes).
    pub(crate) fn counters(&self) -> (u64, u64, u64, usize) {
        (self.messages_sent, self.peer_placed, self.placed, self.parked_bytes)
    }
}
