//! What there may be to do for a queue pair: bits of `Qp::pending_work`.

/// Take what the socket has.
pub(super) const WORK_RECEIVE: u32 = 1;
/// Send what is posted and due.
pub(super) const WORK_SEND: u32 = 1 << 1;
/// Hand messages that wait to receives.
pub(super) const WORK_RETRY_RNR: u32 = 1 << 2;
/// Receive until the socket says that it is empty.
pub(super) const WORK_DRAIN: u32 = 1 << 3;
/// Look at what is in shared memory.
pub(super) const WORK_RING: u32 = 1 << 4;
