//! Errors of a session: faults of the peer, and wrong calls of the user.

use crate::wire::{Cancel, Code};

/// A violation of the protocol by the peer. It ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's role may not send this message, or not in this phase.
    #[error("message type {0} has no place here")]
    Message(u16),
    /// A block or notice names a buffer that does not exist.
    #[error("there is no buffer {0}")]
    Buffer(u32),
    /// A block or notice uses a credit that the source does not hold.
    #[error("buffer {buffer} is not granted in generation {generation}")]
    NotGranted {
        /// The buffer.
        buffer: u32,
        /// The generation in the block or notice.
        generation: u32,
    },
    /// A block arrived a second time.
    #[error("block {0} came again")]
    Repeated(u64),
    /// A sequence number exceeds the oldest missing one by more than the pool allows.
    #[error("block {0} is beyond the pool")]
    Ahead(u64),
    /// A block is longer than the agreed block size.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The block belongs to another session.
    #[error("a block of session {0}")]
    Session(u32),
    /// The sink acknowledges a block that was not written.
    #[error("an acknowledgement of block {0}, which is not under way")]
    Acknowledged(u64),
    /// A credit came for a buffer that is already granted.
    #[error("buffer {0} was granted twice")]
    GrantedTwice(u32),
    /// The sink grants more credits than a pool may have buffers.
    #[error("too many credits")]
    Credits,
    /// The peer sends more records than the window allows.
    #[error("{0} bytes of records beyond the window")]
    Records(u64),
    /// The peer's count of taken records decreases, or exceeds what was sent.
    #[error("{0} bytes of records cannot have been taken")]
    Taken(u64),
    /// The totals of the two ends differ, or one end has sent them twice.
    #[error("the session cannot have {0} blocks")]
    Totals(u64),
    /// An end reports that it is closed although the session is not cancelled.
    #[error("an end of a session that goes on")]
    Closed,
    /// The message belongs to a session that was never opened.
    #[error("there is no session {0}")]
    NoSession(u32),
    /// The peer has opened too many sessions.
    #[error("too many sessions")]
    Sessions,
    /// The answer has no request, or does not match it.
    #[error("an answer that does not fit: {0}")]
    Answer(&'static str),
}

impl Fault {
    /// The cancellation that tells the peer of its fault.
    #[must_use]
    pub fn cancel(self) -> Cancel {
        Cancel { code: Code::Protocol, text: self.to_string() }
    }
}

/// A call that its user must not make at this time. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The call is not allowed in the state of the block or buffer.
    #[error("{0} is not in the state for this")]
    State(u32),
    /// There is no such block, buffer or channel.
    #[error("{0} does not exist")]
    Number(u32),
    /// The length is above the block size.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The sequence number was submitted before, or is below one that has been written.
    #[error("block {0} is not next")]
    Sequence(u64),
    /// The session is over or ending.
    #[error("the session is over")]
    Over,
    /// Blocks of the session have not arrived, or have not been released.
    #[error("the session is not complete")]
    Incomplete,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both ends have the whole session.
    Complete,
    /// This end cancelled the session.
    Cancelled(Cancel),
    /// The peer cancelled the session.
    CancelledByPeer(Cancel),
}
