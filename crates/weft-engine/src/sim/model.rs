//! What the simulation knows of the work that it has posted: enough to say what each completion
//! must look like and what must be in memory then.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::memory::Piece;
use super::net::Pipe;
use crate::cq::Cq;
use crate::mw::Mw;
use crate::qp::Qp;
use crate::wc::{Opcode, Status};

/// Why a connection may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The network broke it.
    Cut,
    /// The program of this end moved its queue pair to ERR.
    Program(usize),
    /// The peer of this end had no receive for too long.
    NotReady(usize),
    /// This end posted a request that fails before anything is sent.
    Local(usize, Status),
    /// This end posted a request that the peer refuses.
    Remote(usize, Status),
}

impl Cause {
    /// How the first failing request of `end` may fail because of this.
    pub(super) fn status_at(self, end: usize) -> Status {
        match self {
            Self::Cut => Status::RetryExcErr,
            Self::Program(at) if at == end => Status::WrFlushErr,
            Self::NotReady(at) if at == end => Status::RnrRetryExcErr,
            Self::Local(at, status) | Self::Remote(at, status) if at == end => status,
            Self::Remote(..) => Status::WrFlushErr,
            Self::Program(_) | Self::NotReady(_) | Self::Local(..) => Status::RetryExcErr,
        }
    }

    /// Whether the other end of `end`'s connection sends a Terminate because of this. Only foreign
    /// peers tell of errors that are their own affair.
    pub(super) fn is_reported_to(self, end: usize, weft: bool) -> bool {
        match self {
            Self::Remote(at, _) => at == end,
            Self::Local(at, _) => at != end && !weft,
            _ => false,
        }
    }
}

/// The bytes of a message, which a trace need not show.
#[derive(Clone)]
pub(super) struct Payload(pub(super) Vec<u8>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What must hold when a send work request completes.
#[derive(Debug)]
pub(super) enum Effect {
    /// The peer has received this message.
    Sent { message: u64 },
    /// The bytes are in the peer's memory; with immediate data the peer has its completion.
    Written { target: Piece, bytes: Payload, message: Option<u64> },
    /// The bytes are in the local list.
    Read { expected: Payload },
    /// The old value is in the local list, and the new one in the peer's word of this end.
    Atomic { old: u64, new: u64 },
    /// One has been added to the word that all ends of a host share; no two saw the same old value.
    SharedAdd,
    /// The own window is bound.
    Bound,
    /// The own window is not bound any more.
    Invalidated,
    /// This request cannot succeed.
    Fails,
}

/// A send work request that has not completed.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) wr_id: u64,
    pub(super) signalled: bool,
    pub(super) opcode: Opcode,
    pub(super) length: usize,
    /// Pieces of the own host's memory, free once it has completed.
    pub(super) list: Vec<Piece>,
    /// A piece of the peer's memory, free once it has completed.
    pub(super) last_use_of: Option<Piece>,
    /// It goes through the peer's window.
    pub(super) by_window: bool,
    pub(super) effect: Effect,
}

/// A message on its way to a receive.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) bytes: Payload,
    /// Length of the Write whose immediate data this is.
    pub(super) written: Option<usize>,
    pub(super) imm: Option<u32>,
    /// The key of the receiver's window.
    pub(super) invalidate: Option<u32>,
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) list: Vec<Piece>,
}

/// A memory window over all memory of one end's host, for the other end to use.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) mw: Arc<Mw>,
    /// Bound, and the peer knows.
    pub(super) bound: bool,
    /// A bind or invalidation of it is under way.
    pub(super) changing: bool,
    /// Requests of the peer that use it and are not complete.
    pub(super) used: usize,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: Arc<Qp>,
    pub(super) host: usize,
    pub(super) peer: usize,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) sq: VecDeque<Work>,
    pub(super) rq: VecDeque<Receive>,
    /// To the peer, not received yet.
    pub(super) messages: VecDeque<Message>,
    /// To the peer.
    pub(super) pipe: Pipe,
    /// What the word at the peer that is this end's own will be once everything posted is done.
    pub(super) word: u64,
    pub(super) window: Window,
    /// The first request has failed.
    pub(super) failed: bool,
    /// A request that must fail has been posted; ids from this on are its own or of what follows
    /// it, which has no effect.
    pub(super) poisoned: Option<u64>,
    pub(super) flushed_receive: bool,
    pub(super) last_wqe: bool,
    pub(super) rnr_deadline: Option<u64>,
    pub(super) draining: bool,
    /// Messages sent when the drained event came.
    pub(super) drained_at: Option<u64>,
    /// Writes to a peer that does not acknowledge, to be looked at in the end.
    pub(super) unconfirmed: Vec<(Piece, Vec<u8>)>,
}
