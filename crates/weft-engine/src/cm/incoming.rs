//! The passive side of a listener's connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::negotiate::{Params, Request};

use super::handshake::Handshaken;
use super::limits::{PEER_PRIVATE_DATA_MAX, REQUEST_TIMEOUT, UNTAKEN_TIMEOUT};
use crate::mpa::incoming::{self, Host};
use crate::mpa::responder::Limits;
use crate::reactor::Handle;
use crate::strangers::Permit;
use crate::{Errno, Result};

/// A connection request that has not been answered.
pub(super) type Incoming = incoming::Incoming<ListenerLink>;

const LIMITS: Limits = Limits {
    private_data_max: PEER_PRIVATE_DATA_MAX,
    request_time: REQUEST_TIMEOUT,
    answer_time: UNTAKEN_TIMEOUT,
};

/// The listener that accepted a connection.
pub(super) trait Acceptor: Send + Sync {
    /// Removes a half-open connection that has failed.
    fn forget(&self, number: u64);

    /// Handles a half-open connection whose request is complete.
    fn requested(&self, number: u64, request: Request, now: Instant);
}

/// The identifier that represents a connection request to the program.
pub(super) trait ProgramRequest: Send + Sync {
    /// Rejects a request that has waited for too long, unless the program has taken its event.
    fn lapse(&self);
}

/// Links a connection to its listener and to its identifier.
pub(super) struct ListenerLink {
    listener: Weak<dyn Acceptor>,
    /// Number in the listener's set of half-open connections.
    number: u64,
    /// The identifier of the request.
    request: Lock<Option<Weak<dyn ProgramRequest>>>,
}

/// Starts to read the request of an accepted connection.
///
/// # Errors
/// The reactor's errors; the connection is closed then.
pub(super) fn start(
    reactor: Handle,
    stream: OwnedFd,
    ends: [SocketAddr; 2],
    number: u64,
    listener: Weak<dyn Acceptor>,
    permit: Permit,
) -> Result<Arc<Incoming>> {
    Incoming::start(
        reactor,
        stream,
        ends,
        LIMITS,
        permit,
        ListenerLink { listener, number, request: Lock::new(None) },
    )
}

/// Accepts the request and returns the stream.
///
/// # Errors
/// `ECONNRESET` if the peer has given up; `EPROTO` if it requires what we do not support, and has
/// been rejected; `EINVAL` for private data that does not fit: the request then still waits.
pub(super) fn accept(
    incoming: &Incoming,
    params: Params,
    private_data: &[u8],
) -> Result<Handshaken> {
    let accepted = incoming.accept(params, private_data);
    if matches!(accepted, Err(Errno::PROTO)) {
        incoming.reject(&[]);
    }
    let (stream, negotiated) = accepted?;
    Ok(Handshaken::new(stream, incoming.addresses(), false, negotiated, Vec::new()))
}

/// Notes that the request has been reported to the program as `request`. It may wait as long as the
/// program likes once the program has taken the event.
pub(super) fn announced(incoming: &Incoming, request: &Arc<dyn ProgramRequest>) {
    *incoming.host.request.lock() = Some(Arc::downgrade(request));
}

impl Host for ListenerLink {
    fn requested(incoming: &Arc<Incoming>, request: Request, now: Instant) {
        let Self { listener, number, .. } = &incoming.host;
        if let Some(listener) = listener.upgrade() {
            listener.requested(*number, request, now);
        }
    }

    fn ended(incoming: &Incoming) {
        let link = &incoming.host;
        if let Some(listener) = link.listener.upgrade() {
            listener.forget(link.number);
        }
    }

    /// A request that the program has taken may wait for its answer without a limit.
    fn overdue(incoming: &Incoming) {
        let request = incoming.host.request.lock().as_ref().and_then(Weak::upgrade);
        if let Some(request) = request {
            request.lapse();
        }
    }
}
