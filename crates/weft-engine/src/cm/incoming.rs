//! The passive side of one connection: from an accepted TCP connection to our MPA reply.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_wire::mpa::frame;
use weft_wire::mpa::negotiate::{Limits, NegotiateError, Params, Request, Responder};

use super::handshake::Greeted;
use super::limits::{PEER_PRIVATE_DATA_MAX, REQUEST_TIMEOUT};
use super::listen::Listener;
use super::watched::Watched;
use crate::reactor::{Reactor, Source, TimerId};
use crate::{Errno, Result};

/// A connection that has not been answered.
pub(super) struct Incoming {
    local: SocketAddr,
    peer: SocketAddr,
    /// Number in the listener's set of half-open connections.
    pub(super) number: u64,
    listener: Weak<Listener>,
    phase: Lock<Phase>,
}

enum Phase {
    /// The request is coming in.
    Reading { stream: Watched, responder: Responder, timer: TimerId, deadline: Instant },
    /// The program is to answer.
    Waiting { stream: Watched, responder: Responder },
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
    ) -> Result<Arc<Self>> {
        let phase = Lock::new(Phase::Done);
        let incoming = Arc::new(Self { local, peer, number, listener, phase });
        let mut phase = incoming.phase.lock();
        let owner: Arc<dyn Source> = Arc::clone(&incoming) as _;
        let stream = Watched::new(stream, Arc::clone(&owner))?;
        let limits = Limits { private_data_max: PEER_PRIVATE_DATA_MAX };
        let responder = Responder::new(limits);
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let timer = Reactor::get().start_timer(deadline, owner);
        *phase = Phase::Reading { stream, responder, timer, deadline };
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
        let Phase::Waiting { stream, mut responder } = self.phase.lock().take() else {
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
        if let Phase::Waiting { stream, mut responder } = self.phase.lock().take() {
            refuse(&stream, &mut responder, private_data);
        }
    }

    /// Closes the connection without a word.
    pub(super) fn abandon(&self) {
        let abandoned = self.phase.lock().take();
        drop(abandoned);
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
                if let Phase::Reading { stream, responder, .. } = phase.take() {
                    *phase = Phase::Waiting { stream, responder };
                }
            }
        }
        step
    }
}

impl Source for Incoming {
    fn ready(&self) {
        let step = self.read();
        let Some(listener) = self.listener.upgrade() else { return };
        match step {
            Read::More => {}
            Read::Request(request) => listener.requested(self.number, *request),
            Read::Failed => listener.forget(self.number),
        }
    }

    fn expired(&self) {
        let mut phase = self.phase.lock();
        let late =
            matches!(&*phase, Phase::Reading { deadline, .. } if Instant::now() >= *deadline);
        if late {
            drop(phase.take());
        }
        drop(phase);
        if late && let Some(listener) = self.listener.upgrade() {
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
        if let Self::Reading { timer, .. } = &phase {
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
