//! A listener: accepts TCP connections, reads their MPA requests, and answers port queries.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::Lock;
use weft_sys::calls;
use weft_sys::calls::net::{RecvFlags, SendFlags, SocketFlags, sockopt};
use weft_wire::mpa::negotiate::Request;

use super::claim::{self, PortHolder};
use super::incoming::{self, Acceptor, Incoming};
use super::limits::{ANSWERS_MAX, PORT_GRACE};
use super::option::Options;
use super::port::{self, Port, Sockets};
use super::query;
use super::socket::{self, canonical};
use crate::reactor::{self, Handle, Source};
use crate::strangers::{Gate, HALF_OPEN, Permit};
use crate::timer::Timer;
use crate::watched::Watched;
use crate::{Errno, Result};

/// The identifier that listens.
pub(super) trait Callee: Send + Sync {
    /// Called with a peer's connection request, which waits until it is accepted, rejected or
    /// abandoned.
    fn requested(&self, incoming: Arc<Incoming>, request: Request, now: Instant);
}

/// The sockets and half-open connections of a listening identifier.
pub(super) struct Listener {
    this: Weak<Self>,
    reactor: Handle,
    callee: Weak<dyn Callee>,
    address: SocketAddr,
    options: Options,
    gate: Gate,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    datagram: Option<Watched>,
    /// The TCP port that answers to port queries name.
    stream_port: u16,
    /// The listening sockets: first that of `stream_port`, and then the RDMA port itself, if it is
    /// open.
    streams: Vec<Watched>,
    /// A socket bound to the RDMA port, which will listen when the program has had time to take the
    /// port.
    foreign: Option<Foreign>,
    /// Connections whose request is incomplete.
    half_open: HashMap<u64, Arc<Incoming>>,
    /// Runs if port queries are left, because the edge-triggered event will not come again.
    more_queries: Option<Timer>,
    accepted: u64,
    closed: bool,
}

struct Foreign {
    stream: OwnedFd,
    /// Runs while the program may take the port; `None` once that time has passed.
    grace: Option<Timer>,
}

impl Listener {
    /// Starts to listen on a bound port.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket was first; the reactor's errors.
    pub(super) fn start(
        reactor: Handle,
        port: Port,
        options: Options,
        callee: Weak<dyn Callee>,
    ) -> Result<Arc<Self>> {
        let address = port.address();
        let sockets = port.open()?;
        let listener = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            callee,
            address,
            options,
            gate: Gate::new(reactor, &HALF_OPEN),
            state: Lock::new(State::default()),
        });
        // Watched sockets keep the listener alive, so close it if starting fails half-way.
        listener.open(sockets).inspect_err(|_| listener.close())?;
        Ok(listener)
    }

    fn open(&self, sockets: Sockets) -> Result<()> {
        let mut state = self.state.lock();
        state.stream_port = socket::local_address(&sockets.stream)?.port();
        state.streams.push(Watched::new(self.reactor, sockets.stream, self.owner())?);
        state.datagram =
            sockets.datagram.map(|fd| Watched::new(self.reactor, fd, self.owner())).transpose()?;
        if let Some(stream) = sockets.foreign {
            let grace = (!claim::is_announced())
                .then(|| Timer::after(self.reactor, PORT_GRACE, self.owner()));
            state.foreign = Some(Foreign { stream, grace });
        }
        drop(state);
        claim::register(Weak::clone(&self.this) as _);
        self.open_foreign();
        Ok(())
    }

    /// Stops listening, and drops requests that have not been reported to the program.
    pub(super) fn close(&self) {
        let old = {
            let mut state = self.state.lock();
            std::mem::replace(&mut *state, State { closed: true, ..State::default() })
        };
        for incoming in old.half_open.values() {
            incoming.abandon();
        }
    }

    fn owner(&self) -> Arc<dyn Source> {
        self.this.upgrade().expect("called through an `Arc` of it")
    }

    /// Accepts while there are connections and permits for them.
    fn accept(&self, now: Instant) {
        let me: Weak<dyn Source> = Weak::clone(&self.this) as _;
        self.gate.pass(
            now,
            &me,
            || self.accept_one(),
            |(stream, peer), permit| {
                // Lock until the connection is stored, because its request may be complete already.
                let mut state = self.state.lock();
                if state.closed {
                    return;
                }
                state.accepted += 1;
                let number = state.accepted;
                // If a connection cannot be set up, it is closed, and the next one has its turn.
                if let Ok(incoming) = self.take((stream, peer), number, permit) {
                    state.half_open.insert(number, incoming);
                }
            },
        );
    }

    /// Accepts one connection.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; other errors of the system, after which there may be one.
    fn accept_one(&self) -> Result<(OwnedFd, SocketAddr)> {
        let state = self.state.lock();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        for stream in &state.streams {
            match calls::net::acceptfrom_with(stream, flags) {
                Ok((stream, peer)) => {
                    let peer = peer.ok_or(Errno::CONNABORTED)?;
                    let peer = SocketAddr::try_from(peer).map_err(|_| Errno::CONNABORTED)?;
                    return Ok((stream, canonical(peer)));
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::AGAIN)
    }

    fn take(
        &self,
        (stream, peer): (OwnedFd, SocketAddr),
        number: u64,
        permit: Permit,
    ) -> Result<Arc<Incoming>> {
        sockopt::set_tcp_nodelay(&stream, true)?;
        if let Some(tos) = self.options.tos {
            socket::set_tos(&stream, &self.address, tos)?;
        }
        let mut local = socket::local_address(&stream)?;
        // The program sees the RDMA port.
        local.set_port(self.address.port());
        incoming::start(
            self.reactor,
            stream,
            [local, peer],
            number,
            Weak::clone(&self.this) as _,
            permit,
        )
    }

    /// Answers port queries.
    fn answer(&self) {
        let mut state = self.state.lock();
        let Some(datagram) = &state.datagram else { return };
        let mut buffer = [0; query::LEN + 1];
        for _ in 0..ANSWERS_MAX {
            match calls::net::recvfrom(datagram, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _, Some(client))) => {
                    let query = &buffer[..length.min(buffer.len())];
                    let port = self.address.port();
                    if let Some(answer) = query::answer(query, port, state.stream_port) {
                        // A failure to send counts as a lost datagram.
                        let _ = calls::net::sendto(
                            datagram.as_fd(),
                            &answer,
                            SendFlags::DONTWAIT,
                            &client,
                        );
                    }
                }
                Ok((_, _, None)) => {}
                Err(Errno::AGAIN) => return,
                // An earlier answer met a closed port.
                Err(_) => {}
            }
        }
        state.more_queries = Some(Timer::after(self.reactor, Duration::ZERO, self.owner()));
    }

    /// Listens on the RDMA port itself, if the grace time has passed and the program has not taken
    /// the port.
    fn open_foreign(&self) {
        let mut state = self.state.lock();
        if state.foreign.as_ref().is_some_and(|foreign| foreign.grace.is_some()) {
            return;
        }
        if let Some(Foreign { stream, .. }) = state.foreign.take()
            && port::listen(&stream).is_ok()
            && let Ok(stream) = Watched::new(self.reactor, stream, self.owner())
        {
            state.streams.push(stream);
        }
    }
}

impl PortHolder for Listener {
    fn release_tcp(&self, port: u16) -> bool {
        let (listening, bound) = {
            let mut state = self.state.lock();
            // Without a separate port for Weft peers the listener must keep this one.
            if self.address.port() != port || state.stream_port == port {
                return false;
            }
            let own = state.streams.len().min(1);
            (state.streams.split_off(own), state.foreign.take())
        };
        !listening.is_empty() || bound.is_some()
    }
}

impl Acceptor for Listener {
    fn forget(&self, number: u64) {
        let removed = self.state.lock().half_open.remove(&number);
        drop(removed);
    }

    fn requested(&self, number: u64, request: Request, now: Instant) {
        let removed = self.state.lock().half_open.remove(&number);
        let Some(incoming) = removed else { return };
        match self.callee.upgrade() {
            Some(callee) => callee.requested(incoming, request, now),
            None => incoming.abandon(),
        }
    }
}

impl Source for Listener {
    fn ready(&self) {
        self.answer();
        self.accept(reactor::now());
    }

    fn requeued(&self) {
        self.accept(reactor::now());
    }

    fn expired(&self, now: Instant) {
        self.gate.open();
        if let Some(foreign) = &mut self.state.lock().foreign {
            foreign.grace = foreign.grace.take().filter(|grace| !grace.is_due(now));
        }
        self.open_foreign();
        self.answer();
        self.accept(now);
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}
