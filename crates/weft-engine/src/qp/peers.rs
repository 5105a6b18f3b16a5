//! How queue pairs whose programs exchanged numbers and GIDs themselves find their peers: the
//! numbers of this process, and what brings connections about, which stands above queue pairs.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use weft_sys::Forkable;

use super::Qp;
use crate::numbers::Numbers;
use crate::{Errno, Result, tcp, ud};

/// What brings the connections of queue pairs about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rendezvous {
    /// Accepts connections on a port of queue pair numbers.
    pub(crate) serve: fn(OwnedFd) -> Result<()>,
    /// The queue pair has reached RTR: brings its connection about.
    pub(crate) connect: fn(&Qp),
    /// The queue pair does not want its peer any more.
    pub(crate) forget: fn(&Qp),
}

static RENDEZVOUS: OnceLock<Rendezvous> = OnceLock::new();

/// Says what brings connections about, before there are queue pairs.
pub(crate) fn meet_by(rendezvous: Rendezvous) {
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

/// The numbers of this process.
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

/// Every queue pair of this process, for the debug dump.
#[must_use]
pub fn all() -> Vec<Arc<Qp>> {
    numbers().all()
}
