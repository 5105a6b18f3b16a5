//! The requests of the peer: reads and atomics that it waits for an answer to.

use std::collections::VecDeque;

use weft_wire::rdmap::AtomicResponse;

/// What is to be answered, the oldest first.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) queue: VecDeque<Response>,
    pub(super) msn: u32,
    /// The next message is an answer: answers and requests of this side take turns.
    pub(super) turn: bool,
}

impl Default for Responder {
    fn default() -> Self {
        Self { queue: VecDeque::new(), msn: 1, turn: false }
    }
}

/// What the peer asked for and has not got yet.
#[derive(Debug)]
pub(super) enum Response {
    Read { sink_stag: u32, sink_to: u64, key: u32, addr: u64, length: u32, sent: u32 },
    Atomic(AtomicResponse),
}
