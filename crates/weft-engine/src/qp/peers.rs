//! The registry of this process's queue pairs by number, and the callbacks through which queue
//! pairs get connected. The module that connects them ([`crate::rendezvous`]) is a layer above this
//! one.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use weft_sys::Forkable;

use super::Qp;
use crate::numbers::Numbers;
use crate::{Errno, Result, tcp, ud};

/// Functions that connect queue pairs to their peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rendezvous {
    /// Accepts connections on a port of queue pair numbers.
    pub(crate) serve: fn(OwnedFd) -> Result<()>,
    /// Connects a queue pair that has reached RTR.
    pub(crate) connect: fn(&Qp),
    /// Stops connecting a queue pair that no longer wants its peer.
    pub(crate) forget: fn(&Qp),
}

static RENDEZVOUS: OnceLock<Rendezvous> = OnceLock::new();

/// Sets the functions, before the first queue pair is created.
pub(crate) fn set_rendezvous(rendezvous: Rendezvous) {
    RENDEZVOUS.get_or_init(|| rendezvous);
}

pub(super) fn connect(qp: &Qp) {
    if let Some(rendezvous) = RENDEZVOUS.get() {
        (rendezvous.connect)(qp);
    }
}

pub(super) fn forget(qp: &Qp) {
    if let Some(rendezvous) = RENDEZVOUS.get() {
        (rendezvous.forget)(qp);
    }
}

/// The queue pair numbers of this process.
pub(super) fn numbers() -> &'static Numbers<Qp, ud::Port> {
    static NUMBERS: Forkable<Numbers<Qp, ud::Port>> = Forkable::new(|| Numbers::new(listen));
    NUMBERS.get()
}

fn listen() -> Result<u16> {
    let (socket, number) = tcp::listen_everywhere(0)?;
    let rendezvous = RENDEZVOUS.get().ok_or(Errno::NODEV)?;
    (rendezvous.serve)(socket)?;
    Ok(number)
}

/// Finds a queue pair of this process by its number.
#[must_use]
pub fn find(number: u32) -> Option<Arc<Qp>> {
    numbers().find(number)
}

/// All queue pairs of this process, for `weft dump`.
#[must_use]
pub fn all() -> Vec<Arc<Qp>> {
    numbers().all()
}
