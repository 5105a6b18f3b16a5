//! The active side of an identifier's connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_sys::calls;
use weft_wire::mpa::negotiate::Params;

use super::ask::{self, Asking};
use super::handshake::Handshaken;
use super::limits::{CONNECT_TIMEOUT, REFUSED_RETRY_DELAYS, REPLY_TIMEOUT};
use super::option::Options;
use super::socket;
use crate::hello::{self, Identity};
use crate::mpa::dial::{self, Dial, Outcome};
use crate::mpa::dialer::{Agreed, Answer, Failure, Path, Plan, Retry};
use crate::reactor::{self, Handle, Source};
use crate::{Errno, Result, tcp};

/// The identifier that dials.
pub(super) trait Caller: Send + Sync {
    /// Called once with the outcome, unless the attempt was cancelled.
    fn dialled(&self, outcome: std::result::Result<Handshaken, Failure>);
}

/// The parameters of a connection attempt.
pub(super) struct Call {
    pub(super) caller: Weak<dyn Caller>,
    /// Our address; if there is a `stream`, with the port that it is bound to.
    pub(super) local: SocketAddr,
    /// The RDMA address of the listener.
    pub(super) peer: SocketAddr,
    /// A bound TCP socket, if there already is one.
    pub(super) stream: Lock<Option<OwnedFd>>,
    pub(super) options: Options,
    pub(super) params: Params,
    /// The program's private data.
    pub(super) private_data: Vec<u8>,
    /// Our identity, for a Weft peer.
    pub(super) identity: Identity,
}

impl Call {
    /// Starts to dial.
    ///
    /// # Errors
    /// The system's immediate errors, such as `ENETUNREACH`.
    pub(super) fn start(self, reactor: Handle) -> Result<Arc<Dial<Self>>> {
        let plan = Plan {
            connect_time: Some(CONNECT_TIMEOUT),
            reply_time: Some(REPLY_TIMEOUT),
            retry: Retry::Refused(&REFUSED_RETRY_DELAYS),
            wanted: None,
        };
        let dial = Dial::new(reactor, plan, self);
        dial.start(reactor::now()).map_err(|failure| failure.errno())?;
        Ok(dial)
    }

    fn bound_stream(&self) -> Result<OwnedFd> {
        let mut local = self.local;
        local.set_port(0);
        let stream = socket::stream(&local, &self.options)?;
        calls::net::bind(&stream, &local)?;
        Ok(stream)
    }
}

impl dial::Caller for Call {
    type PendingQuery = Asking;

    fn path(&self, now: Instant) -> Option<Path> {
        let is_local = tcp::is_local(self.local.ip(), self.peer.ip());
        Some(Path { is_local, was_closed: ask::was_closed(self.peer, now) })
    }

    fn ask(&self, reactor: Handle, owner: &Arc<dyn Source>) -> Result<Asking> {
        Asking::start(reactor, [self.local, self.peer], owner)
    }

    fn learn(&self, now: Instant, answer: Answer) {
        ask::learn(self.peer, answer, now);
    }

    fn open(&self, port: Option<u16>, spare: Option<OwnedFd>) -> Result<OwnedFd> {
        let mut target = self.peer;
        if let Some(port) = port {
            target.set_port(port);
        }
        let stream = match spare.or_else(|| self.stream.lock().take()) {
            Some(stream) => stream,
            None => self.bound_stream()?,
        };
        if let Some(tos) = self.options.tos {
            socket::set_tos(&stream, &target, tos)?;
        }
        let mut connecting = calls::net::connect(&stream, &target);
        if connecting == Err(Errno::CONNABORTED) {
            // `connect` returns this error once on a socket whose last attempt was refused.
            connecting = calls::net::connect(&stream, &target);
        }
        match connecting {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(stream),
            Err(error) => Err(error),
        }
    }

    /// For a Weft peer the private data has our trailer.
    fn mpa_request(&self, weft: bool) -> Result<(Params, Vec<u8>)> {
        let private_data = match weft {
            true => hello::append(&self.private_data, &self.identity, 0),
            false => self.private_data.clone(),
        };
        Ok((self.params, private_data))
    }

    fn retries(&self, _: &Failure) {}

    fn dialled(dial: &Dial<Self>, outcome: Outcome) {
        let call = &dial.caller;
        let handshaken = outcome.and_then(|(stream, Agreed { negotiated, early })| {
            let local = socket::local_address(&stream).map_err(Failure::System)?;
            Ok(Handshaken::new(stream, [local, call.peer], true, negotiated, early))
        });
        if let Some(caller) = call.caller.upgrade() {
            caller.dialled(handshaken);
        }
    }
}
