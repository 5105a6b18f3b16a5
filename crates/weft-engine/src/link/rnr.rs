//! Receiver not ready: messages that have found no receive, in both directions.

use std::collections::VecDeque;

use weft_sys::Piece;
use weft_wire::rdmap;

use super::payload::Payload;
use crate::shm::Peer;

/// The peer's messages that wait for a receive of ours, and what the two sides know of it.
#[derive(Debug, Default)]
pub(super) struct RnrQueue {
    /// The oldest first.
    pub(super) messages: VecDeque<RnrMessage>,
    /// What they take of the bound.
    pub(super) bytes: usize,
    /// The count of placed messages at which it has been reported to the peer that the next one
    /// waits.
    pub(super) reported: Option<u64>,
    /// A message of ours waits for a receive of the peer's.
    pub(super) remote: bool,
}

impl RnrQueue {
    /// Forgets the messages.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }
}

/// A Send or an Immediate that found no receive.
#[derive(Debug)]
pub(super) struct RnrMessage {
    pub(super) opcode: rdmap::Opcode,
    pub(super) bytes: Vec<u8>,
    /// Instead of bytes: where in the peer's memory they are.
    pub(super) pieces: Vec<Piece>,
    pub(super) invalidate: Option<u32>,
    pub(super) imm: Option<u32>,
    /// Immediate data of a Write: length of the Write.
    pub(super) written: Option<u32>,
    /// The shared receive queue that it is for, on the target of an extended connection.
    pub(super) srqn: u32,
    pub(super) complete: bool,
    /// Writes placed behind it. They count as placed only with it: what is reported to the peer
    /// is a number of messages, which are complete in order.
    pub(super) behind: u64,
}

impl RnrMessage {
    /// What it takes of the bound on waiting bytes. An empty message is bounded, too; one under way
    /// only by its bytes, so that its room does not run out at its last segment.
    pub(super) fn cost(&self) -> usize {
        let pieces = self.pieces.len() * size_of::<Piece>();
        self.bytes.len() + pieces + if self.complete { size_of::<Self>() } else { 0 }
    }

    pub(super) fn payload<'a>(&'a self, peer: Option<&'a Peer>) -> Payload<'a> {
        match peer {
            Some(peer) if !self.pieces.is_empty() => {
                let len = self.pieces.iter().map(|(_, len)| len).sum();
                Payload::Remote { peer, pieces: &self.pieces, len }
            }
            _ => Payload::Bytes(&self.bytes),
        }
    }
}
