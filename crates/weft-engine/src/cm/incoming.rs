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
    /// The peer has given up: takes the request back unless the program has been notified of it.
    fn withdraw(&self);
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

/// Reports `request` to the program, or has done so. It need not be reported if the peer leaves
/// first.
pub(super) fn announce(incoming: &Incoming, request: &Arc<dyn ProgramRequest>) {
    *incoming.host.request.lock() = Some(Arc::downgrade(request));
    if incoming.is_over() {
        request.withdraw();
    }
}

impl Door {
    /// The peer has left, or waited for too long: the request need not be reported any more.
    fn withdraw(&self) {
        let request = self.request.lock().as_ref().and_then(Weak::upgrade);
        if let Some(request) = request {
            request.withdraw();
        }
    }
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
        door.withdraw();
    }

    /// A request that has been reported is the program's to answer.
    fn overdue(incoming: &Incoming) {
        incoming.host.withdraw();
    }
}
