//! The model: for each posted request, the expected completion and the expected contents of memory.

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
    /// The network cut it.
    Cut,
    /// The program of this end changed the queue pair's state to ERR.
    Program(usize),
    /// The peer of this end posted no receive for too long.
    NotReady(usize),
    /// This end posted a request that fails before anything is sent.
    Local(usize, Status),
    /// This end posted a request that the peer refuses.
    Remote(usize, Status),
}

impl Cause {
    /// The status of the first failing request of `end`.
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

    /// Whether the peer of `end` sends a Terminate for this cause. Only foreign peers get a report
    /// of errors that concern the other side alone.
    pub(super) fn is_reported_to(self, end: usize, weft: bool) -> bool {
        match self {
            Self::Remote(at, _) => at == end,
            Self::Local(at, _) => at != end && !weft,
            _ => false,
        }
    }
}

/// The bytes of a message; a trace shows only their number.
#[derive(Clone)]
pub(super) struct Payload(pub(super) Vec<u8>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The effect that a send request must have had when it completes.
#[derive(Debug)]
pub(super) enum Effect {
    /// The peer has received this message.
    Sent { message: u64 },
    /// The bytes are in the peer's memory. With immediate data the peer has a completion, too.
    Written { target: Piece, bytes: Payload, message: Option<u64> },
    /// The bytes are in the local memory of the request.
    Read { expected: Payload },
    /// The old value is in the local memory, and the new one in this end's word at the peer.
    Atomic { old: u64, new: u64 },
    /// One has been added to the word that all ends of a host share, and no two ends saw the same
    /// old value.
    SharedAdd,
    /// This end's window is bound.
    Bound,
    /// This end's window is not bound any more.
    Invalidated,
    /// The request cannot succeed.
    Fails,
}

/// A send work request that has not completed.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) wr_id: u64,
    pub(super) signalled: bool,
    pub(super) opcode: Opcode,
    pub(super) length: usize,
    /// Pieces of this host's memory, freed when the request has completed.
    pub(super) list: Vec<Piece>,
    /// A piece of the peer's memory, freed when the request has completed.
    pub(super) last_use_of: Option<Piece>,
    /// Whether the request uses the key of the peer's window.
    pub(super) by_window: bool,
    pub(super) effect: Effect,
}

/// A message that the peer has not received yet.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) bytes: Payload,
    /// Length of the Write whose immediate data this is.
    pub(super) written: Option<usize>,
    pub(super) imm: Option<u32>,
    /// The key of the receiver's window, for Send with Invalidate.
    pub(super) invalidate: Option<u32>,
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) list: Vec<Piece>,
}

/// A window over all memory of one end's host, for use by the other end.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) mw: Arc<Mw>,
    /// Whether it is bound and the peer knows that.
    pub(super) bound: bool,
    /// Whether a request that binds or invalidates it is in progress.
    pub(super) changing: bool,
    /// Number of requests of the peer that use it and are not complete.
    pub(super) used: usize,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct ModelEnd {
    pub(super) qp: Arc<Qp>,
    pub(super) host: usize,
    pub(super) peer: usize,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) sq: VecDeque<Work>,
    pub(super) rq: VecDeque<Receive>,
    /// Messages to the peer that it has not received.
    pub(super) messages: VecDeque<Message>,
    /// The stream to the peer.
    pub(super) pipe: Pipe,
    /// The value of this end's word at the peer after all posted requests.
    pub(super) word: u64,
    pub(super) window: Window,
    /// Whether a request has failed.
    pub(super) failed: bool,
    /// Id of the first request that must fail, if one was posted. Later requests have no effect.
    pub(super) poisoned: Option<u64>,
    pub(super) flushed_receive: bool,
    pub(super) last_wqe: bool,
    pub(super) rnr_deadline: Option<u64>,
    pub(super) draining: bool,
    /// Number of messages sent when the drained event was raised.
    pub(super) drained_at: Option<u64>,
    /// Writes to a peer that does not acknowledge, checked at the end of the run.
    pub(super) unconfirmed: Vec<(Piece, Vec<u8>)>,
}
