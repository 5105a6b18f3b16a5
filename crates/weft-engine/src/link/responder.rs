//! The responder: the peer's reads and atomics that have not been answered.

use std::collections::VecDeque;

use weft_wire::rdmap::AtomicResponse;

/// Responses that are due, oldest first.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) queue: VecDeque<Response>,
    pub(super) msn: u32,
    /// Whether the next message is a response: responses and requests of this side alternate.
    pub(super) turn: bool,
}

impl Default for Responder {
    fn default() -> Self {
        Self { queue: VecDeque::new(), msn: 1, turn: false }
    }
}

/// A response that has not been sent completely.
#[derive(Debug)]
pub(super) enum Response {
    Read { sink_stag: u32, sink_to: u64, key: u32, addr: u64, length: u32, sent: u32 },
    Atomic(AtomicResponse),
}
