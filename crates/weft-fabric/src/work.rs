//! Operations: what they do, and what becomes of them.

use std::task::Waker;

use crate::error::Error;
use crate::memory::{Buffer, Lent, Place};
use crate::share::{Part, Target};

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Work {
    /// A message by value.
    Value(Box<[u8]>),
    /// A message from the operation's buffer.
    Message(Part),
    /// A Write from the buffer, and its immediate data if the peer is to be notified.
    Write(Part, Target, Option<u32>),
    /// A Read into the buffer.
    Read(Part, Target),
    /// An addition to eight bytes at the peer.
    Add(Target, u64),
    /// A swap of eight bytes at the peer, from the first value to the second.
    Swap(Target, u64, u64),
}

impl Work {
    /// What it needs to be posted.
    pub(crate) fn needs(&self) -> Needs {
        let is_announced = matches!(self, Self::Write(_, _, Some(_)));
        Needs {
            requests: 1 + usize::from(is_announced),
            place: matches!(self, Self::Message(_) | Self::Add(..) | Self::Swap(..)),
            credit: is_announced || matches!(self, Self::Value(_) | Self::Message(_)),
        }
    }
}

/// What an operation needs to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The work requests that it consists of.
    pub(crate) requests: usize,
    /// Whether it needs a place: for a header, or for a result.
    pub(crate) place: bool,
    /// Whether it needs a receive of the peer.
    pub(crate) credit: bool,
}

/// How far an operation is.
#[derive(Debug)]
pub(crate) enum OperationPhase {
    /// It waits for its turn.
    Waiting(Work, Option<Buffer>),
    /// The engine has it.
    Posted(InUse),
    /// It has ended; the number is the result of an atomic.
    Ended(Result<u64, Error>, Option<Buffer>),
}

/// What the engine uses for an operation.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(crate) buffer: Option<Lent<Buffer>>,
    pub(crate) place: Option<Lent<Place>>,
    /// Whether the place gets a result.
    pub(crate) has_result: bool,
    /// Its work requests.
    pub(crate) requests: usize,
}

/// An operation in the table.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) phase: OperationPhase,
    /// Who is to be woken when it has ended.
    pub(crate) waker: Option<Waker>,
    /// Whether nobody asks for it any more, so that it leaves the table when it has ended.
    pub(crate) is_abandoned: bool,
}

impl Operation {
    pub(crate) fn new(phase: OperationPhase) -> Self {
        Self { phase, waker: None, is_abandoned: false }
    }
}
