//! A [`Responder`] with its socket and timer.

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

/// Who is called. Always without a lock.
pub(crate) trait Host: Send + Sync + Sized + 'static {
    /// The request is whole at the time `now`. It waits until it is accepted, rejected or
    /// abandoned.
    fn requested(incoming: &Arc<Incoming<Self>>, request: Request, now: Instant);

    /// The peer left, broke the protocol or was too slow, or had to leave for another: the
    /// connection is closed.
    fn ended(incoming: &Incoming<Self>);

    /// The request has waited for too long. It waits on.
    fn overdue(incoming: &Incoming<Self>);
}

/// A connection that has not been answered.
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
    /// Among those that are half open or held. Without one, nobody asks it to leave.
    permit: Option<Permit>,
}

impl<H: Host> Incoming<H> {
    /// Takes a connection, which came when it got its permit. Its request may be read by another
    /// thread at once.
    ///
    /// # Errors
    /// What the reactor reports; the connection is closed then.
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

    /// Whether it has been answered or closed.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().responder.is_done()
    }

    /// Gives a request that waits for its answer a permit that it can be asked to leave. Returns
    /// whether it still waits.
    pub(crate) fn hold(&self, permit: Permit) -> bool {
        let mut state = self.state.lock();
        if !state.responder.is_waiting() {
            return false;
        }
        permit.set_holder(Weak::clone(&self.this) as _);
        state.permit = Some(permit);
        true
    }

    /// Accepts the request and hands over the stream.
    ///
    /// # Errors
    /// `ECONNRESET` when the peer has given up. The request goes on waiting with `EINVAL`, for
    /// private data that does not fit, and with `EPROTO`, when the peer wants what `params` do not
    /// have.
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

    /// Refuses the request and closes the connection; a connection that is over already is left.
    pub(crate) fn reject(&self, private_data: &[u8]) {
        let mut state = self.state.lock();
        if state.responder.is_waiting() {
            state.responder.reject(private_data);
            // The peer may be gone; the connection is closed in any case.
            let _ = state.transmit();
            state.close();
        }
    }

    /// Closes the connection without a word.
    pub(crate) fn abandon(&self) {
        self.state.lock().close();
    }

    /// Reads what has come; it is `now`. Returns what the host is to hear.
    fn read(&self, now: Instant, owner: &Arc<dyn Source>) -> Option<Effect> {
        let mut state = self.state.lock();
        loop {
            if let Some(effect) = state.responder.poll_effect() {
                match effect {
                    Effect::Ended => drop(state.close()),
                    // It leaves the permit of those that are half open.
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

    /// Sends a reply; a fresh socket has room for some kilobytes.
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

    /// Ends everything but the stream, which is closed if it is not taken.
    fn close(&mut self) -> Option<Watched> {
        self.responder.cancel();
        self.timer = None;
        self.permit = None;
        self.stream.take()
    }
}

impl<H: Host> Incoming<H> {
    /// Does everything that does not block; it is `now`.
    fn advance(&self, now: Instant) {
        let Some(me) = self.this.upgrade() else { return };
        let owner: Arc<dyn Source> = Arc::clone(&me) as _;
        // The peer may have left behind its request; the socket does not tell again.
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
        // What has come by now counts: on a busy machine it may have waited for longer than that.
        self.advance(now);
        self.state.lock().responder.timed_out(now);
        self.advance(now);
    }
}

impl<H: Host> Stranger for Incoming<H> {
    fn evict(&self) {
        let closed = {
            let mut state = self.state.lock();
            // Its request may have come in at the last moment.
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
