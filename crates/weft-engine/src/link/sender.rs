//! The sending side's requests: what is being sent, and what has not been answered yet.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::header::MessageHeader;
use crate::wr::Sge;

/// The state of sending.
#[derive(Debug)]
pub(super) struct Sender<K> {
    /// Finds the memory of our requests' lists, and of the peer's reads.
    pub(super) keys: K,
    pub(super) outgoing: Outgoing,
    /// Reads and atomics without a response, oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) send_msn: u32,
    pub(super) request_msn: u32,
    pub(super) next_read_id: u32,
    /// Number of messages sent, and of those that the peer has reported as placed.
    pub(super) messages: u64,
    pub(super) peer_placed: u64,
    /// Number of bytes produced for the peer, and of those that the transport has taken.
    pub(super) appended: u64,
    pub(super) taken: u64,
    /// Whether the drained queue has been reported to the program.
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

impl<K> Sender<K> {
    /// Whether the peer has still to carry out, or to answer, an atomic that went through the ring.
    /// What follows it must not come before it.
    pub(super) fn awaits_atomic(&self) -> bool {
        self.outstanding.iter().any(|before| before.atomic)
    }
}

/// The message that is being sent in segments.
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

/// A read or atomic without a response.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// The number of its work request; `None` for the connection's own ready-to-receive message.
    pub(super) work: Option<u64>,
    pub(super) id: u32,
    pub(super) atomic: bool,
    /// The peer's memory: `length` bytes at `addr` of the region `key`.
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) received: u32,
    pub(super) sges: SmallVec<[Sge; 2]>,
}

impl Outstanding {
    /// Whether this is a read of any of these bytes of the peer's memory.
    pub(super) fn reads(&self, key: u32, addr: u64, length: u32) -> bool {
        let is_before = |addr: u64, length: u32, other| addr.saturating_add(length.into()) <= other;
        !self.atomic
            && self.key == key
            && !is_before(self.addr, self.length, addr)
            && !is_before(addr, length, self.addr)
    }
}
