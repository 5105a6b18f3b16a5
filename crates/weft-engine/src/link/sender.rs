//! The requests of this side: what is being sent, and what has not been answered yet.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::header::MessageHeader;
use crate::wr::Sge;

/// What has been sent, and how much of it is complete.
#[derive(Debug)]
pub(super) struct Sender<K> {
    /// Finds the memory of this side's lists, and of what is read for the peer.
    pub(super) keys: K,
    pub(super) outgoing: Outgoing,
    /// Reads and atomics without an answer, the oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) send_msn: u32,
    pub(super) request_msn: u32,
    pub(super) next_read_id: u32,
    /// Messages sent, and placed by the peer as far as it has said.
    pub(super) messages: u64,
    pub(super) peer_placed: u64,
    /// Bytes made for the peer, and taken by what carries them.
    pub(super) appended: u64,
    pub(super) taken: u64,
    /// It has been reported to the program that the queue is drained.
    pub(super) drain_reported: bool,
}

impl<K: Default> Default for Sender<K> {
    fn default() -> Self {
        Self {
            keys: K::default(),
            outgoing: Outgoing::default(),
            outstanding: VecDeque::new(),
            send_msn: 1,
            request_msn: 1,
            next_read_id: 0,
            messages: 0,
            peer_placed: 0,
            appended: 0,
            taken: 0,
            drain_reported: false,
        }
    }
}

/// The message that is being cut into segments.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) active: bool,
    pub(super) number: u64,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) header: Option<MessageHeader>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
}

/// A read or atomic under way.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// Number of its work request; `None` for the connection's own ready-to-receive message.
    pub(super) work: Option<u64>,
    pub(super) id: u32,
    pub(super) atomic: bool,
    /// What it concerns at the peer, `length` bytes.
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) received: u32,
    pub(super) sges: SmallVec<[Sge; 2]>,
}

impl Outstanding {
    /// Whether it reads any of these bytes at the peer.
    pub(super) fn reads(&self, key: u32, addr: u64, length: u32) -> bool {
        let is_before = |addr: u64, length: u32, other| addr.saturating_add(length.into()) <= other;
        !self.atomic
            && self.key == key
            && !is_before(self.addr, self.length, addr)
            && !is_before(addr, length, self.addr)
    }
}
