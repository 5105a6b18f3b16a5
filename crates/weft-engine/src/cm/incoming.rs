//! The passive side of a connection of a listener.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::negotiate::{Params, Request};

use super::handshake::Greeted;
use super::limits::{PEER_PRIVATE_DATA_MAX, REQUEST_TIMEOUT, UNTAKEN_TIMEOUT};
use crate::mpa::incoming::{self, Host};
use crate::mpa::responder::Limits;
use crate::reactor::Handle;
use crate::strangers::Place;
use crate::{Errno, Result};

/// A connection that has not been answered.
pub(super) type Incoming = incoming::Incoming<Door>;

const LIMITS: Limits = Limits {
    private_data_max: PEER_PRIVATE_DATA_MAX,
    request_time: REQUEST_TIMEOUT,
    answer_time: UNTAKEN_TIMEOUT,
};

/// The listener at which a connection has come in.
pub(super) trait Acceptor: Send + Sync {
    /// A half-open connection has failed.
    fn forget(&self, number: u64);

    /// A half-open connection's request is whole; it is `now`.
    fn requested(&self, number: u64, request: Request, now: Instant);
}

/// What the program sees of a connection request.
pub(super) trait ProgramRequest: Send + Sync {
    /// It has waited for too long: refuses it, unless the program has taken its event.
    fn lapse(&self);
}

/// Where a connection has come in.
pub(super) struct Door {
    listener: Weak<dyn Acceptor>,
    /// Number in the listener's set of half-open connections.
    number: u64,
    /// What the program sees of the request.
    request: Lock<Option<Weak<dyn ProgramRequest>>>,
}

/// Takes a connection.
///
/// # Errors
/// What the reactor reports; the connection is closed then.
pub(super) fn start(
    reactor: Handle,
    stream: OwnedFd,
    ends: [SocketAddr; 2],
    number: u64,
    listener: Weak<dyn Acceptor>,
    place: Place,
) -> Result<Arc<Incoming>> {
    Incoming::start(
        reactor,
        stream,
        ends,
        LIMITS,
        place,
        Door { listener, number, request: Lock::new(None) },
    )
}

/// Accepts the request and hands over the stream.
///
/// # Errors
/// `ECONNRESET` when the peer has given up; `EPROTO` when it wants what we do not have, and has
/// been rejected; `EINVAL` for private data that does not fit, and then the request goes on
/// waiting.
pub(super) fn accept(incoming: &Incoming, params: Params, private_data: &[u8]) -> Result<Greeted> {
    let accepted = incoming.accept(params, private_data);
    if matches!(accepted, Err(Errno::PROTO)) {
        incoming.reject(&[]);
    }
    let (stream, negotiated) = accepted?;
    Ok(Greeted::new(stream, incoming.addresses(), false, negotiated, Vec::new()))
}

/// `request` has been reported to the program, which may take its time only if it takes the event.
pub(super) fn announced(incoming: &Incoming, request: &Arc<dyn ProgramRequest>) {
    *incoming.host.request.lock() = Some(Arc::downgrade(request));
}

impl Host for Door {
    fn requested(incoming: &Arc<Incoming>, request: Request, now: Instant) {
        let Self { listener, number, .. } = &incoming.host;
        if let Some(listener) = listener.upgrade() {
            listener.requested(*number, request, now);
        }
    }

    fn ended(incoming: &Incoming) {
        let door = &incoming.host;
        if let Some(listener) = door.listener.upgrade() {
            listener.forget(door.number);
        }
    }

    /// A request that the program has taken is its own to answer.
    fn overdue(incoming: &Incoming) {
        let request = incoming.host.request.lock().as_ref().and_then(Weak::upgrade);
        if let Some(request) = request {
            request.lapse();
        }
    }
}
