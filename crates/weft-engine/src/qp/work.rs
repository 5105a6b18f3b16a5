//! Kinds of work that a queue pair may have: the bits of `Qp::pending_work`.

/// Read from the socket.
pub(super) const WORK_RECEIVE: u32 = 1;
/// Send what is posted or due.
pub(super) const WORK_SEND: u32 = 1 << 1;
/// Move waiting messages to posted receives.
pub(super) const WORK_RETRY_RNR: u32 = 1 << 2;
/// Read until the socket is empty.
pub(super) const WORK_DRAIN: u32 = 1 << 3;
/// Process what is in shared memory.
pub(super) const WORK_RING: u32 = 1 << 4;
