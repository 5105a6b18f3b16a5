//! Errors of a session: faults of the peer, and wrong calls of the user.

use crate::wire::{Cancel, Code};

/// A violation of the protocol by the peer. It ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's role may not send this message, or not in this phase.
    #[error("message type {0} is not allowed here")]
    Message(u16),
    /// A block or notice names a buffer that does not exist.
    #[error("buffer {0} does not exist")]
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
    #[error("block {0} arrived twice")]
    Repeated(u64),
    /// A sequence number exceeds the oldest missing one by more than the pool allows.
    #[error("block {0} exceeds the oldest missing one by more than the pool")]
    Ahead(u64),
    /// A block is longer than the agreed block size.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The block belongs to another session.
    #[error("a block belongs to session {0}")]
    Session(u32),
    /// The sink acknowledges a block that was not written.
    #[error("block {0} was acknowledged but not written")]
    Acknowledged(u64),
    /// A credit came for a buffer that is already granted.
    #[error("buffer {0} was granted twice")]
    GrantedTwice(u32),
    /// The sink grants more credits than a pool may have buffers.
    #[error("too many credits")]
    Credits,
    /// The peer sends more records than the window allows.
    #[error("records of {0} bytes exceed the window")]
    Records(u64),
    /// The peer's count of taken records decreases, or exceeds what was sent.
    #[error("invalid count of taken record bytes: {0}")]
    Taken(u64),
    /// The totals of the two ends differ, or one end has sent them twice.
    #[error("the total of {0} blocks is wrong or repeated")]
    Totals(u64),
    /// An end reports that it is closed although the session is not cancelled.
    #[error("the peer closed a session that is not cancelled")]
    Closed,
    /// The message belongs to a session that was never opened.
    #[error("session {0} does not exist")]
    NoSession(u32),
    /// The peer has opened too many sessions.
    #[error("too many sessions")]
    Sessions,
    /// The answer has no request, or does not match it.
    #[error("unexpected answer: {0}")]
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
    #[error("the state of {0} does not allow this call")]
    State(u32),
    /// There is no such block, buffer or channel.
    #[error("{0} does not exist")]
    Number(u32),
    /// The length is above the block size.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The sequence number was submitted before, or is below one that has been written.
    #[error("sequence number {0} is used or too low")]
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
