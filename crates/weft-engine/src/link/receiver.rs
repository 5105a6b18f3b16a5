//! The receiving side of a connection: the message being received, and what has been placed.

use weft_wire::ddp::UntaggedQueue;
use weft_wire::rdmap;

use crate::queue::recv::RecvWork;

/// The state of receiving. `K` finds memory by its key; `Q` is a shared receive queue of an
/// extended connection.
#[derive(Debug)]
pub(super) struct Receiver<K, Q> {
    pub(super) keys: K,
    /// Bytes received from the peer.
    pub(super) bytes: u64,
    pub(super) queues: [UntaggedQueue; rdmap::queue::COUNT],
    pub(super) current: Receiving<Q>,
    /// Immediate data of the Send that follows.
    pub(super) send_imm: Option<u32>,
    /// Bytes of the current Write, and of the one before it.
    pub(super) written: u32,
    pub(super) last_write_len: u32,
    /// Number of messages placed, and the number that has been reported to the peer.
    pub(super) placed: u64,
    pub(super) placed_reported: u64,
    /// Whether to report again although the peer has the current number.
    pub(super) repeats_report: bool,
}

impl<K: Default, Q> Default for Receiver<K, Q> {
    fn default() -> Self {
        Self {
            keys: K::default(),
            bytes: 0,
            queues: [UntaggedQueue::new(); rdmap::queue::COUNT],
            current: Receiving::default(),
            send_imm: None,
            written: 0,
            last_write_len: 0,
            placed: 0,
            placed_reported: 0,
            repeats_report: false,
        }
    }
}

/// A message that is being received into a posted receive.
#[derive(Debug)]
pub(super) struct Receiving<Q> {
    pub(super) active: bool,
    pub(super) work: RecvWork,
    pub(super) capacity: u64,
    /// The queue that the receive was taken from, on the target of an extended connection.
    pub(super) queue: Option<Q>,
}

impl<Q> Default for Receiving<Q> {
    fn default() -> Self {
        Self { active: false, work: RecvWork::default(), capacity: 0, queue: None }
    }
}
