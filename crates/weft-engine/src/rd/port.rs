//! Ports: endpoints whose peers are connected, for many peers by one socket, or over a path that
//! loses datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use weft_sys::{Spin, wait_readable};

use super::connections::{Call, Change, LISTENER, Room, Wakeup};
use super::endpoint::{Desk, Endpoint, Options, canonical};
use super::limits::{LINGER, LINGER_STEP};
use super::request::PeerAddress;
use crate::pd::Pd;
use crate::wc::Completion;
use crate::wr::{RecvRequest, SendRequest};
use crate::{Errno, Result, reactor};

/// A UDP socket with any number of connections. Dropping the last handle of it, and of its
/// connections, waits for a moment until the peers have what was sent.
#[derive(Debug)]
pub struct Port {
    endpoint: Endpoint,
}

impl Port {
    /// Binds a port to a UDP address of the host; an unspecified address means all of them, and
    /// port 0 any port. Connected peers may access memory that is registered in `pd`.
    ///
    /// # Errors
    /// `EADDRINUSE` and similar.
    pub fn bind(pd: &Arc<Pd>, local: SocketAddr) -> Result<Arc<Self>> {
        let endpoint = Endpoint::bind_port(pd, local, Options::default())?;
        Ok(Arc::new(Self { endpoint }))
    }

    /// The bound address: as requested, with the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address().socket
    }

    /// Takes requests to connect from now on, until the returned value is dropped.
    ///
    /// # Errors
    /// `EMFILE` and similar if no descriptor is left.
    pub fn listen(self: &Arc<Self>) -> Result<PortListener> {
        let fd = self.at_desk(|desk| {
            let fd = desk.wakeups.add(Wakeup::Calls)?;
            desk.connections.listen();
            Ok(fd)
        })?;
        Ok(PortListener { port: Arc::clone(self), fd })
    }

    /// Makes an end that will connect to a port that listens.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there are too many to that port; `EMFILE` and similar.
    pub fn end_to(self: &Arc<Self>, peer: SocketAddr, room: Room) -> Result<ConnectionEnd> {
        let peer = PeerAddress { socket: canonical(peer), endpoint: LISTENER };
        self.end(|desk| desk.connections.add(desk.machine, peer, room))
    }

    fn end(
        self: &Arc<Self>,
        add: impl FnOnce(&mut Desk<'_>) -> Result<u32>,
    ) -> Result<ConnectionEnd> {
        let (number, completions, changes) = self.at_desk(|desk| {
            let number = add(desk)?;
            let completions = desk.wakeups.add(Wakeup::Completions(number));
            match completions.and_then(|fd| Ok((fd, desk.wakeups.add(Wakeup::Changes(number))?))) {
                Ok((completions, changes)) => Ok((number, completions, changes)),
                Err(errno) => {
                    discard(desk, number);
                    Err(errno)
                }
            }
        })?;
        let (port, spin) = (Arc::clone(self), Spin::new());
        Ok(ConnectionEnd { port, number, completions, changes, spin })
    }

    fn at_desk<T>(&self, work: impl FnOnce(&mut Desk<'_>) -> Result<T>) -> Result<T> {
        self.endpoint.at_desk(work).unwrap_or(Err(Errno::INVAL))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let end = reactor::now() + LINGER;
        let is_quiet = || self.endpoint.at_desk(|desk| desk.machine.is_quiet()).unwrap_or(true);
        while !is_quiet() && reactor::now() < end {
            self.endpoint.reactor().get().about_to_wait();
            sleep(LINGER_STEP);
        }
    }
}

/// Ends what remains of a connection at this side.
fn discard(desk: &mut Desk<'_>, number: u32) {
    desk.connections.remove(desk.now, desk.machine, number);
    desk.wakeups.remove(Wakeup::Completions(number));
    desk.wakeups.remove(Wakeup::Changes(number));
}

/// A port that takes requests to connect.
#[derive(Debug)]
pub struct PortListener {
    port: Arc<Port>,
    fd: Arc<OwnedFd>,
}

impl PortListener {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Readable while there are requests.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next request, with its private data, if there is one.
    #[must_use]
    pub fn next_call(&self) -> Option<(Caller, Vec<u8>)> {
        let take = |desk: &mut Desk<'_>| {
            let next = desk.connections.next_call();
            if !desk.connections.has_calls() {
                desk.wakeups.drain(Wakeup::Calls);
            }
            next
        };
        let (call, private_data) = self.port.endpoint.at_desk(take)??;
        Some((Caller { port: Arc::clone(&self.port), call: Some(call) }, private_data))
    }
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.port.endpoint.at_desk(|desk| {
            desk.connections.stop_listening(desk.now, desk.machine);
            desk.wakeups.remove(Wakeup::Calls);
        });
    }
}

/// A request to connect. Dropping it refuses the connection.
#[derive(Debug)]
pub struct Caller {
    port: Arc<Port>,
    /// `None` once it is answered.
    call: Option<Call>,
}

impl Caller {
    /// Who calls.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.call.map(|call| call.peer().socket)
    }

    /// Makes an end that will accept the connection.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer has given up; `EMFILE` and similar.
    pub fn end(mut self, room: Room) -> Result<ConnectionEnd> {
        let call = self.call.take().ok_or(Errno::INVAL)?;
        self.port.end(|desk| desk.connections.add_called(call, room))
    }

    /// Refuses the connection.
    pub fn refuse(mut self, private_data: &[u8]) {
        self.answer(private_data);
    }

    fn answer(&mut self, private_data: &[u8]) {
        if let Some(call) = self.call.take() {
            self.port.endpoint.at_desk(|desk| {
                desk.connections.refuse(desk.now, desk.machine, call, true, private_data);
            });
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.answer(&[]);
    }
}

/// One end of a connection: its receives, its requests, its completions. Dropping it ends the
/// connection; nothing uses its memory afterwards.
pub struct ConnectionEnd {
    port: Arc<Port>,
    number: u32,
    completions: Arc<OwnedFd>,
    changes: Arc<OwnedFd>,
    spin: Spin,
}

impl ConnectionEnd {
    /// Connects, and gives the peer's program these bytes.
    ///
    /// # Errors
    /// `EISCONN` if it has done so, `ENOBUFS` if the port has too many peers.
    pub fn connect(&self, private_data: &[u8]) -> Result<()> {
        let Self { port, number, .. } = self;
        port.at_desk(|desk| desk.connections.connect(desk.now, desk.machine, *number, private_data))
    }

    /// Accepts the connection, and gives the peer's program these bytes.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer has given up.
    pub fn accept(&self, private_data: &[u8]) -> Result<()> {
        let Self { port, number, .. } = self;
        port.at_desk(|desk| desk.connections.accept(desk.now, desk.machine, *number, private_data))
    }

    /// Readable while there are changes of the connection.
    #[must_use]
    pub fn changes_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// The next change of the connection, if there is one.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let wakeup = Wakeup::Changes(self.number);
        self.port.endpoint.at_desk(|desk| {
            let (change, has_more) = desk.connections.change(self.number);
            if !has_more {
                desk.wakeups.drain(wakeup);
            }
            change
        })?
    }

    /// Ends the connection, behind what was posted.
    pub fn disconnect(&self) {
        self.port.endpoint.at_desk(|desk| {
            let Desk { connections, machine, memory, now, .. } = desk;
            connections.disconnect(*now, machine, *memory, self.number);
        });
    }

    /// Ends the connection at this side: nothing is posted or completes any more, and nothing uses
    /// the memory of requests.
    pub fn destroy(&self) {
        self.port.endpoint.at_desk(|desk| discard(desk, self.number));
    }

    /// Posts a receive, of one piece.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room for it, `EINVAL` if it has not one piece.
    pub fn post_receive(&self, request: &RecvRequest<'_>) -> Result<()> {
        let RecvRequest { wr_id, sges } = *request;
        self.port.at_desk(|desk| desk.connections.post_receive(self.number, wr_id, sges))
    }

    /// Posts a request: a Send without immediate data, a Write, a Read, or an atomic, of at most
    /// two pieces.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room for it, `EINVAL` and `EOPNOTSUPP` for others.
    pub fn post(&self, request: &SendRequest<'_>) -> Result<()> {
        self.port.at_desk(|desk| {
            let Desk { connections, machine, memory, now, .. } = desk;
            connections.post(*now, machine, *memory, self.number, request)
        })
    }

    /// Moves completions into `space`, and returns how many. Makes progress if there is none yet.
    pub fn poll(&self, space: &mut [Completion]) -> usize {
        let mut poll =
            || self.port.endpoint.at_desk(|desk| desk.connections.poll(self.number, space));
        match poll().unwrap_or(0) {
            0 => {
                self.port.endpoint.reactor().get().poll();
                poll().unwrap_or(0)
            }
            count => count,
        }
    }

    /// Has the next completion make the descriptor readable.
    pub fn arm(&self) {
        self.port.endpoint.at_desk(|desk| desk.connections.arm(self.number));
        self.port.endpoint.reactor().get().about_to_wait();
    }

    /// Readable when an armed end has completions.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }

    /// Makes the descriptor not readable. Returns whether it was.
    pub fn take_event(&self) -> bool {
        let wakeup = Wakeup::Completions(self.number);
        self.port.endpoint.at_desk(|desk| desk.wakeups.drain(wakeup)).unwrap_or(false)
    }

    /// Waits until the descriptor is readable, and takes the event. A signal, and the limit, end
    /// the wait, too.
    pub fn await_event(&self, limit: Option<Duration>) {
        let reactor = self.port.endpoint.reactor().get();
        match limit {
            None => {
                // A signal is as good as an event: the thread looks again.
                let _ = reactor.wait(self.fd(), &self.spin, |pass| {
                    pass();
                    self.take_event().then_some(())
                });
            }
            Some(limit) => {
                reactor.about_to_wait();
                let _ = wait_readable([self.fd()], Some(limit));
                self.take_event();
            }
        }
    }
}

impl Drop for ConnectionEnd {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl fmt::Debug for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionEnd").field("number", &self.number).finish_non_exhaustive()
    }
}
