//! The protocol of one connected queue pair: bytes in, bytes out. It has no socket and no clock.
//!
//! [`Link::input`] processes what a peer sent ([`rx`]), [`Link::output`] produces what goes to the
//! peer ([`tx`]). The bytes are iWARP: MPA frames around DDP segments of RDMAP messages. Between
//! Weft peers there are extensions, in a form that every iWARP decoder understands:
//!
//! * **Acknowledgements.** Verbs programs take the completion of a Send or Write as "placed at the
//!   peer". The offset of a zero-length RDMA Write to the STag from the peer's hello says how many
//!   messages have been placed ([`control`]). Towards a foreign iWARP peer a message is complete
//!   when it has been handed to TCP, which is what iWARP promises.
//! * **Waiting for a receive.** A Send that finds no receive goes to the RNR queue. A control
//!   message tells the sender, which gives up after its own RNR retries.
//! * **Send with immediate data.** An Immediate Data message (RFC 7306), marked as belonging to the
//!   Send behind it.
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

/// The constant attributes of a connection's queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// The queue pair's number.
    pub(crate) number: u32,
    /// The STag to which the peer acknowledges.
    pub(crate) ack_stag: u32,
    pub(crate) qp_type: QpType,
    /// Whether receives come from a shared queue.
    pub(crate) shares_receives: bool,
}

/// The attributes that `ibv_modify_qp` sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) state: QpState,
    /// The peer's access rights.
    pub(crate) access: Access,
    /// Maximum number of our outstanding reads and atomics.
    pub(crate) max_rd_atomic: u8,
    /// Maximum number of the peer's outstanding reads and atomics.
    pub(crate) max_dest_rd_atomic: u8,
    /// How long the peer waits before it retries a Send that found no receive, in the verbs
    /// encoding.
    pub(crate) min_rnr_timer: u8,
    /// The peer's number, which completions of an extended connection report; otherwise 0.
    pub(crate) src_qp: u32,
}

/// Tasks for the owner of the link, to be done once the link is unlocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    /// The peer is lost, or the connection to it must be ended.
    pub(crate) disconnected: bool,
    /// Start the timer of a Send that waits for a receive, or (`Some(None)`) stop it.
    pub(crate) rnr: Option<Option<RnrWait>>,
    /// Start the timer after which requests that wait for a peer fail.
    pub(crate) awaited: Option<AwaitedPeer>,
}

/// Why requests wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedPeer {
    /// The peer is lost.
    Gone,
    /// The peer has not connected yet.
    NotYetThere,
}

/// The wait for a receive: the peer has none for our Send, or we have none for the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RnrWait {
    /// The `min_rnr_timer` of the receiver, in the verbs encoding.
    pub(crate) timer: u8,
}

/// The result of MPA negotiation and the hello.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) initiator: bool,
    pub(crate) negotiated: Negotiated,
    /// The STag for acknowledgements to the peer; `None` for a foreign peer.
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

/// What carries the segments: TCP or shared memory.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One per connection; each segment goes through it.
enum Transport {
    /// A byte stream.
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

/// State of the first messages of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Opening {
    /// The ready-to-receive message that this side, the initiator, still has to send.
    rtr_due: Option<RtrKind>,
    /// Whether this side must wait for the peer's first message before it sends.
    hold: bool,
    /// Whether the peer's first message has arrived.
    peer_began: bool,
}

impl<H: Host> Link<H> {
    /// Creates the link of a queue pair that is not connected.
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
