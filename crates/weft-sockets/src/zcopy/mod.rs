//! Zero copy: the receiver reads long messages directly out of the sender's memory (SDP's Source
//! Avail). The call returns when that has happened, because the program may then reuse the buffer.
//! Or it returns at once, and the buffer is write-protected meanwhile (AZ-SDP): that is
//! [`deferred`].

pub(crate) mod deferred;
mod fault_handler;
mod sender;

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use weft_stream::{FaultBackoff, PathSelector};
use weft_sys::{SectionLock, Spin};

use crate::kernel::End;
use crate::table::Place;

/// The zero-copy state of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    path_selector: SectionLock<PathSelector>,
    fault_backoff: SectionLock<FaultBackoff>,
    /// Deferred sends whose buffers the program has written to too early, since the last message.
    write_faults: AtomicU32,
}

/// The socket by which a message is sent.
#[derive(Debug)]
pub(crate) struct SendContext<'a> {
    pub(crate) end: &'a End,
    /// The table entry of the socket that contains the [`Sender`].
    pub(crate) place: Option<&'a Place>,
    pub(crate) fd: RawFd,
    /// How long a sender spins for room before it sleeps.
    pub(crate) spin: &'a Spin,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            path_selector: SectionLock::new(PathSelector::default()),
            fault_backoff: SectionLock::new(FaultBackoff::default()),
            write_faults: AtomicU32::new(0),
        }
    }
}
