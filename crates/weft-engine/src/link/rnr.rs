//! Receiver not ready: messages that found no receive, in both directions.

use std::collections::VecDeque;

use weft_sys::Piece;
use weft_wire::rdmap;

use super::payload::Payload;
use crate::shm::ShmPeer;

/// The peer's messages that wait for a receive, and what has been reported about them.
#[derive(Debug, Default)]
pub(super) struct RnrQueue {
    /// The messages, oldest first.
    pub(super) messages: VecDeque<RnrMessage>,
    /// The sum of their costs.
    pub(super) bytes: usize,
    /// The number of placed messages for which a report to the peer says that the next one waits.
    pub(super) reported: Option<u64>,
    /// Whether a message of ours waits for a receive of the peer.
    pub(super) remote: bool,
}

impl RnrQueue {
    /// Drops the messages.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }
}

/// A Send or Immediate Data that found no receive.
#[derive(Debug)]
pub(super) struct RnrMessage {
    pub(super) opcode: rdmap::Opcode,
    pub(super) bytes: Vec<u8>,
    /// The pieces of the peer's memory that hold the message, instead of `bytes`.
    pub(super) pieces: Vec<Piece>,
    pub(super) invalidate: Option<u32>,
    pub(super) imm: Option<u32>,
    /// For the Immediate Data of a Write, the length of the Write.
    pub(super) written: Option<u32>,
    /// The number of the shared receive queue, on the target of an extended connection.
    pub(super) srqn: u32,
    pub(super) complete: bool,
    /// Number of Writes placed behind this message. They count as placed only after it, because the
    /// peer gets a number of messages that are complete in order.
    pub(super) behind: u64,
}

impl RnrMessage {
    /// The message's cost against the bound. A complete message costs at least its own size, so
    /// that empty ones are bounded, too; an incomplete one costs only its bytes, so that its last
    /// segment cannot exceed the bound.
    pub(super) fn cost(&self) -> usize {
        let pieces = self.pieces.len() * size_of::<Piece>();
        self.bytes.len() + pieces + if self.complete { size_of::<Self>() } else { 0 }
    }

    pub(super) fn payload<'a>(&'a self, peer: Option<&'a ShmPeer>) -> Payload<'a> {
        match peer {
            Some(peer) if !self.pieces.is_empty() => {
                let len = self.pieces.iter().map(|(_, len)| len).sum();
                Payload::Remote { peer, pieces: &self.pieces, len }
            }
            _ => Payload::Bytes(&self.bytes),
        }
    }
}
