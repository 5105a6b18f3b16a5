//! Runs a [`Responder`] with its socket and timer.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::negotiate::{NegotiateError, Negotiated, Params, Request};

use super::limits::REQUEST_READ_LEN;
use super::responder::{Effect, Limits, Responder};
use crate::reactor::{self, Handle, Source};
use crate::strangers::{Permit, Stranger};
use crate::timer::Timer;
use crate::watched::Watched;
use crate::{Errno, Result};

/// The owner of an incoming connection. Its functions are called without a lock.
pub(crate) trait Host: Send + Sync + Sized + 'static {
    /// Called when the request is complete. It waits until it is accepted, rejected or abandoned.
    fn requested(incoming: &Arc<Incoming<Self>>, request: Request, now: Instant);

    /// Called when the connection has been closed: the peer closed it, broke the protocol or was
    /// too slow, or the connection was evicted.
    fn ended(incoming: &Incoming<Self>);

    /// Called when the request has waited for too long. It keeps waiting.
    fn overdue(incoming: &Incoming<Self>);
}

/// An incoming connection that has not been answered.
pub(crate) struct Incoming<H> {
    this: Weak<Self>,
    reactor: Handle,
    local: SocketAddr,
    peer: SocketAddr,
    pub(crate) host: H,
    state: Lock<State>,
}

struct State {
    responder: Responder,
    stream: Option<Watched>,
    timer: Option<Timer>,
    /// The permit of a half-open or held connection; a connection without one is not evicted.
    permit: Option<Permit>,
}

impl<H: Host> Incoming<H> {
    /// Starts to read the request of a connection, whose time runs since it got its permit. Another
    /// thread may complete the request at once.
    ///
    /// # Errors
    /// The reactor's errors; the connection is closed then.
    pub(crate) fn start(
        reactor: Handle,
        stream: OwnedFd,
        [local, peer]: [SocketAddr; 2],
        limits: Limits,
        permit: Permit,
        host: H,
    ) -> Result<Arc<Self>> {
        let responder = Responder::new(permit.since(), limits);
        let incoming = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            local,
            peer,
            host,
            state: Lock::new(State { responder, stream: None, timer: None, permit: None }),
        });
        let owner: Arc<dyn Source> = Arc::clone(&incoming) as _;
        let mut state = incoming.state.lock();
        state.stream = Some(Watched::new(reactor, stream, Arc::clone(&owner))?);
        permit.set_holder(Weak::clone(&incoming.this) as _);
        state.permit = Some(permit);
        state.set_timer(reactor, &owner);
        drop(state);
        Ok(incoming)
    }

    /// Our address and the peer's.
    pub(crate) fn addresses(&self) -> [SocketAddr; 2] {
        [self.local, self.peer]
    }

    /// Whether the connection has been answered or closed.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().responder.is_done()
    }

    /// Gives a request that waits for its answer another permit, with which it may be evicted.
    /// Returns whether it still waits.
    pub(crate) fn hold(&self, permit: Permit) -> bool {
        let mut state = self.state.lock();
        if !state.responder.is_waiting() {
            return false;
        }
        permit.set_holder(Weak::clone(&self.this) as _);
        state.permit = Some(permit);
        true
    }

    /// Accepts the request and returns the stream.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer has given up. After `EINVAL`, for private data that does not fit,
    /// and `EPROTO`, if the peer requires what `params` do not offer, the request still waits.
    pub(crate) fn accept(
        &self,
        params: Params,
        private_data: &[u8],
    ) -> Result<(OwnedFd, Negotiated)> {
        let mut state = self.state.lock();
        let negotiated =
            state.responder.accept(params, private_data).map_err(|error| match error {
                NegotiateError::PrivateData { .. } => Errno::INVAL,
                NegotiateError::NoRequest => Errno::CONNRESET,
                _ => Errno::PROTO,
            })?;
        let sent = state.transmit();
        let stream = state.close().ok_or(Errno::CONNRESET)?;
        sent?;
        Ok((stream.release(), negotiated))
    }

    /// Rejects the request and closes the connection. Does nothing if it has already ended.
    pub(crate) fn reject(&self, private_data: &[u8]) {
        let mut state = self.state.lock();
        if state.responder.is_waiting() {
            state.responder.reject(private_data);
            // The peer may be gone; the connection is closed in any case.
            let _ = state.transmit();
            state.close();
        }
    }

    /// Closes the connection without an answer.
    pub(crate) fn abandon(&self) {
        self.state.lock().close();
    }

    /// Reads what has arrived. Returns the next effect for the host.
    fn read(&self, now: Instant, owner: &Arc<dyn Source>) -> Option<Effect> {
        let mut state = self.state.lock();
        loop {
            if let Some(effect) = state.responder.poll_effect() {
                match effect {
                    Effect::Ended => drop(state.close()),
                    // The connection is no longer half-open.
                    Effect::Requested(_) => state.permit = None,
                    Effect::Overdue | Effect::Transmit(_) => {}
                }
                state.set_timer(self.reactor, owner);
                return Some(effect);
            }
            let mut bytes = Vec::with_capacity(REQUEST_READ_LEN);
            match weft_sys::recv(state.stream.as_ref()?.as_fd(), &mut bytes) {
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Ok(0) | Err(_) => state.responder.ended(),
                Ok(_) => state.responder.received(now, &bytes),
            }
        }
    }
}

impl State {
    fn set_timer(&mut self, reactor: Handle, owner: &Arc<dyn Source>) {
        let timeout = self.responder.timeout();
        self.timer = timeout.map(|deadline| Timer::at(reactor, deadline, Arc::clone(owner)));
    }

    /// Sends a reply. A fresh socket has room for some kilobytes.
    fn transmit(&mut self) -> Result<()> {
        while let Some(effect) = self.responder.poll_effect() {
            let Effect::Transmit(reply) = effect else { continue };
            let stream = self.stream.as_ref().ok_or(Errno::CONNRESET)?;
            match weft_sys::send(stream.as_fd(), &reply) {
                Ok(sent) if sent == reply.len() => {}
                Ok(_) | Err(Errno::AGAIN) => return Err(Errno::NOBUFS),
                Err(_) => return Err(Errno::CONNRESET),
            }
        }
        Ok(())
    }

    /// Ends everything but the stream, which is returned.
    fn close(&mut self) -> Option<Watched> {
        self.responder.cancel();
        self.timer = None;
        self.permit = None;
        self.stream.take()
    }
}

impl<H: Host> Incoming<H> {
    /// Does everything that does not block.
    fn advance(&self, now: Instant) {
        let Some(me) = self.this.upgrade() else { return };
        let owner: Arc<dyn Source> = Arc::clone(&me) as _;
        // Read on: the peer may have closed behind its request, and the edge-triggered event does
        // not come again.
        while let Some(effect) = self.read(now, &owner) {
            match effect {
                Effect::Requested(request) => H::requested(&me, request, now),
                Effect::Ended => H::ended(self),
                Effect::Overdue => H::overdue(self),
                Effect::Transmit(_) => {}
            }
        }
    }
}

impl<H: Host> Source for Incoming<H> {
    fn ready(&self) {
        self.advance(reactor::now());
    }

    fn expired(&self, now: Instant) {
        // Handle what has arrived first: on a busy machine it may have waited for longer than the
        // timeout.
        self.advance(now);
        self.state.lock().responder.timed_out(now);
        self.advance(now);
    }
}

impl<H: Host> Stranger for Incoming<H> {
    fn evict(&self) {
        let closed = {
            let mut state = self.state.lock();
            // The request may have become complete at the last moment.
            state.permit.is_some().then(|| state.close())
        };
        if closed.is_some() {
            H::ended(self);
        }
    }
}

impl<H> fmt::Debug for Incoming<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer).finish_non_exhaustive()
    }
}
