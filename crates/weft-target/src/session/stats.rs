//! Counters of sessions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scsi::Initiator;

/// A session, and what it has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStats {
    /// The name of the target.
    pub target: String,
    /// The initiator.
    pub initiator: Initiator,
    /// The initiator's address.
    pub from: SocketAddr,
    /// SCSI commands that have come.
    pub commands: u64,
    /// Bytes that were sent to the initiator as data of commands.
    pub read_bytes: u64,
    /// Bytes that have come from the initiator as data of commands.
    pub written_bytes: u64,
}

/// Counts what a session does.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) commands: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
}

/// Adds to a counter. Its readers need no order with anything else.
pub(super) fn count(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}
