//! The passive side of one connection: from an accepted TCP connection to our MPA reply.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::frame;
use weft_wire::mpa::negotiate::{Limits, NegotiateError, Params, Request, Responder};

use super::handshake::Greeted;
use super::id::Id;
use super::limits::{PEER_PRIVATE_DATA_MAX, REQUEST_TIMEOUT, UNTAKEN_TIMEOUT};
use super::listen::Listener;
use crate::reactor::{Reactor, Source, TimerId};
use crate::strangers::{Place, Stranger};
use crate::watched::Watched;
use crate::{Errno, Result};

/// A connection that has not been answered.
pub(super) struct Incoming {
    local: SocketAddr,
    peer: SocketAddr,
    /// Number in the listener's set of half-open connections.
    pub(super) number: u64,
    this: Weak<Self>,
    listener: Weak<Listener>,
    /// What the program sees of the request.
    request: Lock<Option<Weak<Id>>>,
    phase: Lock<Phase>,
}

enum Phase {
    /// The request is coming in.
    Reading {
        stream: Watched,
        responder: Responder,
        timer: TimerId,
        deadline: Instant,
        /// Among those that are half open.
        _place: Place,
    },
    /// The program is to answer.
    Waiting { stream: Watched, responder: Responder, timer: TimerId, deadline: Instant },
    /// Answered, failed or given up.
    Done,
}

/// What reading has led to.
enum Read {
    /// More has to come.
    More,
    /// The request.
    Request(Box<Request>),
    /// The peer left, or broke the protocol.
    Failed,
}

impl Incoming {
    /// Takes a connection.
    ///
    /// # Errors
    /// What the reactor reports; the connection is closed then.
    pub(super) fn start(
        stream: OwnedFd,
        [local, peer]: [SocketAddr; 2],
        number: u64,
        listener: Weak<Listener>,
        place: Place,
    ) -> Result<Arc<Self>> {
        let incoming = Arc::new_cyclic(|this| Self {
            local,
            peer,
            number,
            this: Weak::clone(this),
            listener,
            request: Lock::new(None),
            phase: Lock::new(Phase::Done),
        });
        let mut phase = incoming.phase.lock();
        let owner: Arc<dyn Source> = Arc::clone(&incoming) as _;
        let stream = Watched::new(stream, Arc::clone(&owner))?;
        let limits = Limits { private_data_max: PEER_PRIVATE_DATA_MAX };
        let responder = Responder::new(limits);
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let timer = Reactor::get().start_timer(deadline, owner);
        place.give_to(Weak::clone(&incoming.this) as _);
        *phase = Phase::Reading { stream, responder, timer, deadline, _place: place };
        drop(phase);
        Ok(incoming)
    }

    /// Our address and the peer's.
    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        [self.local, self.peer]
    }

    /// Accepts the request and hands over the stream.
    ///
    /// # Errors
    /// `ECONNRESET` when the peer has given up; `EPROTO` when it wants what we do not have, and was
    /// told so.
    pub(super) fn accept(&self, params: Params, private_data: &[u8]) -> Result<Greeted> {
        let Phase::Waiting { stream, mut responder, .. } = self.phase.lock().take() else {
            return Err(Errno::CONNRESET);
        };
        let (reply, negotiated) = match responder.accept(params, private_data) {
            Ok(answer) => answer,
            Err(NegotiateError::PrivateData { .. }) => return Err(Errno::INVAL),
            Err(_) => {
                refuse(&stream, &mut responder, &[]);
                return Err(Errno::PROTO);
            }
        };
        send_all(&stream, &reply)?;
        let stream = stream.release();
        Ok(Greeted::new(stream, self.addresses(), false, negotiated, Vec::new()))
    }

    /// Refuses the request and closes the connection; a connection that is over already is left.
    pub(super) fn reject(&self, private_data: &[u8]) {
        if let Phase::Waiting { stream, mut responder, .. } = self.phase.lock().take() {
            refuse(&stream, &mut responder, private_data);
        }
    }

    /// Closes the connection without a word.
    pub(super) fn abandon(&self) {
        let abandoned = self.phase.lock().take();
        drop(abandoned);
    }

    /// The program is to be told of `request`, or has been. It need not be told if the peer leaves
    /// first.
    pub(super) fn announce(&self, request: &Arc<Id>) {
        *self.request.lock() = Some(Arc::downgrade(request));
        if matches!(*self.phase.lock(), Phase::Done) {
            request.withdraw_request();
        }
    }

    /// The peer has left, or waited for too long. Returns whether the program has not been told.
    fn withdraw(&self) -> bool {
        let request = self.request.lock().as_ref().and_then(Weak::upgrade);
        request.is_some_and(|request| request.withdraw_request())
    }

    fn read(&self) -> Read {
        let mut phase = self.phase.lock();
        let step = match &mut *phase {
            Phase::Reading { stream, responder, .. } => read_request(stream, responder),
            // Nothing may come before our reply (RFC 5044 section 7.1.2) but the end of the stream.
            Phase::Waiting { stream, .. } => match read_some(stream, 1) {
                Ok(_) => Read::Failed,
                Err(Errno::AGAIN) => Read::More,
                Err(_) => Read::Failed,
            },
            Phase::Done => Read::More,
        };
        match &step {
            Read::More => {}
            Read::Failed => drop(phase.take()),
            Read::Request(_) => {
                if let (Phase::Reading { stream, responder, .. }, Some(owner)) =
                    (phase.take(), self.this.upgrade())
                {
                    let deadline = Instant::now() + UNTAKEN_TIMEOUT;
                    let timer = Reactor::get().start_timer(deadline, owner);
                    *phase = Phase::Waiting { stream, responder, timer, deadline };
                }
            }
        }
        step
    }
}

impl Source for Incoming {
    fn ready(&self) {
        let mut step = self.read();
        let Some(listener) = self.listener.upgrade() else { return };
        if let Read::Request(request) = step {
            listener.requested(self.number, *request);
            // The peer may have left behind its request; the socket does not tell again.
            step = self.read();
        }
        if matches!(step, Read::Failed) {
            listener.forget(self.number);
            self.withdraw();
        }
    }

    fn expired(&self) {
        let now = Instant::now();
        let is_waiting = match &*self.phase.lock() {
            Phase::Reading { deadline, .. } if now >= *deadline => false,
            Phase::Waiting { deadline, .. } if now >= *deadline => true,
            _ => return,
        };
        if is_waiting {
            // What the program has been told of is its own to answer.
            self.withdraw();
        } else {
            self.turn_out();
        }
    }
}

impl Stranger for Incoming {
    fn turn_out(&self) {
        let mut phase = self.phase.lock();
        // Its request may have come in at the last moment.
        let is_reading = matches!(&*phase, Phase::Reading { .. });
        if is_reading {
            drop(phase.take());
        }
        drop(phase);
        if is_reading && let Some(listener) = self.listener.upgrade() {
            listener.forget(self.number);
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Phase {
    /// Leaves `Done` behind and stops the timer.
    fn take(&mut self) -> Self {
        let phase = std::mem::replace(self, Self::Done);
        if let Self::Reading { timer, .. } | Self::Waiting { timer, .. } = &phase {
            Reactor::get().stop_timer(*timer);
        }
        phase
    }
}

fn read_request(stream: &Watched, responder: &mut Responder) -> Read {
    loop {
        let bytes = match read_some(stream, frame::HEADER_LEN + PEER_PRIVATE_DATA_MAX) {
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => return Read::More,
            Err(_) => return Read::Failed,
        };
        match responder.input(&bytes) {
            Ok((_, None)) => {}
            // Something behind the request, before our reply.
            Ok((used, Some(_))) if used < bytes.len() => return Read::Failed,
            Ok((_, Some(request))) => return Read::Request(Box::new(request)),
            Err(_) => return Read::Failed,
        }
    }
}

/// Reads up to `room` bytes; the end of the stream is `ECONNRESET`.
fn read_some(stream: &Watched, room: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(room);
    match weft_sys::recv(stream.as_fd(), &mut bytes)? {
        0 => Err(Errno::CONNRESET),
        _ => Ok(bytes),
    }
}

fn refuse(stream: &Watched, responder: &mut Responder, private_data: &[u8]) {
    if let Ok(reply) = responder.reject(private_data) {
        // The peer may be gone; the connection is closed in any case.
        let _ = send_all(stream, &reply);
    }
}

/// Sends a reply; a fresh socket has room for some kilobytes.
fn send_all(stream: &Watched, reply: &[u8]) -> Result<()> {
    match weft_sys::send(stream.as_fd(), reply) {
        Ok(sent) if sent == reply.len() => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => Err(Errno::NOBUFS),
        Err(_) => Err(Errno::CONNRESET),
    }
}
