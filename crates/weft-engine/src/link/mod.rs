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
//! * **Waiting for a receive.** A Send that finds no receive goes to the RNR queue. The same
//!   control message tells the sender, which gives up after its own RNR retries.
//! * **Send with immediate data** is an Immediate Data message (RFC 7306) that says that it belongs
//!   to the Send behind it.
//! * **Shared receive queues by number** ([`xrc`]), for extended reliable connections.

pub(crate) mod control;
mod fault;
mod framing;
mod header;
pub(crate) mod host;
mod life;
mod memory;
pub(crate) mod payload;
mod phase;
pub(crate) mod place;
mod receiver;
mod responder;
pub(crate) mod ring;
mod rnr;
mod rx;
mod sender;
mod service;
mod small;
#[cfg(test)]
mod tests;
mod tx;
mod xrc;

use weft_wire::mpa::negotiate::{Negotiated, RtrKind};

use crate::access::Access;
use crate::attr::{QpState, QpType};

pub(crate) use fault::Fault;
use framing::Framing;
use host::Host;
pub(crate) use phase::LinkPhase;
use receiver::Receiver;
use responder::Responder;
use ring::Ring;
use rnr::RnrQueue;
use sender::Sender;
use service::Service;

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
    pub(crate) awaited: Option<AwaitedPeer>,
}

/// The peer that requests wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedPeer {
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

/// The protocol state of a queue pair's connection.
//= rfc5040#section-3.1
//# RDMAP MUST be layered on top of the Direct Data Placement Protocol [DDP].
//= rfc5040#section-3.1
//# DDP, in conjunction with the lower layers, provides reliable, in-order Delivery.
#[derive(Debug)]
pub(crate) struct Link<H: Host> {
    config: Config,
    pub(crate) rules: Rules,
    pub(crate) phase: LinkPhase,
    pub(crate) notices: Notices,
    agreement: Option<Agreement>,
    opening: Opening,
    service: Service,
    transport: Transport,
    sender: Sender<H::Keys>,
    responder: Responder,
    receiver: Receiver<H::Keys, H::Queue>,
    rnr: RnrQueue,
}

/// What carries the segments.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One a connection; each segment goes through it.
enum Transport {
    /// A stream of bytes.
    Stream(Framing),
    /// Memory that both sides share.
    Ring(Box<Ring>),
}

impl Transport {
    fn ring(&self) -> Option<&Ring> {
        match self {
            Self::Ring(ring) => Some(ring),
            Self::Stream(_) => None,
        }
    }

    fn ring_mut(&mut self) -> Option<&mut Ring> {
        match self {
            Self::Ring(ring) => Some(ring),
            Self::Stream(_) => None,
        }
    }

    fn stream_mut(&mut self) -> Option<&mut Framing> {
        match self {
            Self::Stream(framing) => Some(framing),
            Self::Ring(_) => None,
        }
    }
}

/// What is special about the first messages of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Opening {
    /// The message by which this side, the initiator, says that it is ready.
    rtr_due: Option<RtrKind>,
    /// Nothing is sent before the peer has said something.
    hold: bool,
    /// It has.
    peer_began: bool,
}

impl<H: Host> Link<H> {
    /// A queue pair without a connection.
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            rules: Rules {
                state: QpState::Reset,
                access: Access::empty(),
                max_rd_atomic: 0,
                max_dest_rd_atomic: 0,
                min_rnr_timer: 0,
                src_qp: 0,
            },
            phase: LinkPhase::Idle { awaiting: false },
            notices: Notices::default(),
            agreement: None,
            opening: Opening::default(),
            service: Service::of(config.qp_type),
            transport: Transport::Stream(Framing::default()),
            sender: Sender::default(),
            responder: Responder::default(),
            receiver: Receiver::default(),
            rnr: RnrQueue::default(),
        }
    }
}
