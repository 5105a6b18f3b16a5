//! What can go wrong in a session.

use crate::wire::{Cancel, Code};

/// What a peer has done that it must not. It ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The message does not come from this role, or not in this phase.
    #[error("message type {0} has no place here")]
    Message(u16),
    /// A block or notice names a buffer that does not exist.
    #[error("there is no buffer {0}")]
    Buffer(u32),
    /// A block or notice uses a credit that it does not have.
    #[error("buffer {buffer} is not granted in generation {generation}")]
    NotGranted {
        /// The buffer.
        buffer: u32,
        /// The generation that was named.
        generation: u32,
    },
    /// A block came a second time.
    #[error("block {0} came again")]
    Repeated(u64),
    /// A sequence number is beyond the pool, counted from the oldest block that is missing.
    #[error("block {0} is beyond the pool")]
    Ahead(u64),
    /// A block is longer than agreed.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The block's session is another one.
    #[error("a block of session {0}")]
    Session(u32),
    /// The sink acknowledges what was not written.
    #[error("an acknowledgement of block {0}, which is not under way")]
    Acknowledged(u64),
    /// A credit came for a buffer that is already granted.
    #[error("buffer {0} was granted twice")]
    GrantedTwice(u32),
    /// There are more credits than a pool may have buffers.
    #[error("too many credits")]
    Credits,
    /// There are more records than the window allows.
    #[error("{0} bytes of records beyond the window")]
    Records(u64),
    /// The count of records taken goes back, or is above what was sent.
    #[error("{0} bytes of records cannot have been taken")]
    Taken(u64),
    /// The totals of the two ends are not the same, or were said twice.
    #[error("the session cannot have {0} blocks")]
    Totals(u64),
    /// An end says that it is closed, and the session is not cancelled.
    #[error("an end of a session that goes on")]
    Closed,
    /// A message of a session that was never opened.
    #[error("there is no session {0}")]
    NoSession(u32),
    /// There are too many sessions or openings.
    #[error("too many sessions")]
    Sessions,
    /// The answer is to nothing, or is not what was asked for.
    #[error("an answer that does not fit: {0}")]
    Answer(&'static str),
}

impl Fault {
    /// What the peer learns of it.
    #[must_use]
    pub fn cancel(self) -> Cancel {
        Cancel { code: Code::Protocol, text: self.to_string() }
    }
}

/// A call that the machine's user must not make at this time. Nothing has changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The block or buffer is not in the state that the call is for.
    #[error("{0} is not in the state for this")]
    State(u32),
    /// There is no such block, buffer or channel.
    #[error("{0} does not exist")]
    Number(u32),
    /// The length is above the block size.
    #[error("a block of {0} bytes")]
    Length(u32),
    /// The sequence number has been submitted, or is below one that has been written.
    #[error("block {0} is not next")]
    Sequence(u64),
    /// The session is over, or about to end.
    #[error("the session is over")]
    Over,
    /// The session still has blocks to come, or to be released.
    #[error("the session is not complete")]
    Incomplete,
}

/// How a session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both ends have all of it.
    Complete,
    /// This end cancelled it.
    Cancelled(Cancel),
    /// The peer did.
    CancelledByPeer(Cancel),
}
