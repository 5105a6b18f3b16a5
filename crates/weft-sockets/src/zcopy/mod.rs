//! Zero copy: long messages that the receiver pulls out of the sender's memory (SDP's Source
//! Avail). The call returns when that has happened, as `send(2)` must: the buffer is the program's
//! again. Or it returns at once, and the buffer is write-protected meanwhile (AZ-SDP): that is
//! [`deferred`].

pub(crate) mod deferred;
mod guard;
mod sender;

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use weft_stream::{FaultBackoff, PathSelector};
use weft_sys::{SectionLock, Spin};

use crate::kernel::End;
use crate::table::Place;

/// What a connection knows of zero copy.
#[derive(Debug)]
pub(crate) struct Sender {
    path_selector: SectionLock<PathSelector>,
    fault_backoff: SectionLock<FaultBackoff>,
    /// Deferred sends whose bytes the program has written to too early, since the last message.
    touches: AtomicU32,
}

/// The socket that a message is sent by.
#[derive(Debug)]
pub(crate) struct Lender<'a> {
    pub(crate) end: &'a End,
    /// Where the socket stands in the table, with the [`Sender`] in it.
    pub(crate) place: Option<&'a Place>,
    pub(crate) fd: RawFd,
    /// How long a sender looks for room before it sleeps.
    pub(crate) spin: &'a Spin,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            path_selector: SectionLock::new(PathSelector::default()),
            fault_backoff: SectionLock::new(FaultBackoff::default()),
            touches: AtomicU32::new(0),
        }
    }
}
