//! What carries the connections of a fabric: Weft's own engine by connections or by reliable
//! datagrams, the system's libraries, or a simulation.
//!
//! Everything above is the same for all: the state of an endpoint, credits, waiting. Requests and
//! completions are in the terms of verbs, for which the engine's modules `wr` and `wc` have types.

mod datagrams;
mod engine;
pub(crate) mod simulated;
mod system;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::rd::ConnectionEnd;
use weft_engine::wc::Completion;
use weft_engine::wr::{RecvRequest, SendRequest};
use weft_sys::{Region, Unused};

use self::simulated::Network;
use crate::error::{Error, Result};
use crate::options::{Carrier, Options};

/// Where memory is registered and connections are made.
#[derive(Clone, Debug)]
pub(crate) enum Domain {
    Engine(engine::Domain),
    Datagrams(datagrams::Domain),
    System(system::Domain),
    Simulated(simulated::Domain),
}

/// How much a link has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Requests to send, to write, to read.
    pub(crate) sends: usize,
    /// Receives.
    pub(crate) receives: usize,
    /// Bytes of a request by value.
    pub(crate) value: usize,
}

impl Domain {
    /// Opens what the options name.
    pub(crate) fn open(options: &Options) -> Result<Self> {
        let interface = options.interface.as_deref();
        match options.carrier {
            // Only a simulation has one.
            Carrier::Simulated => Err(Error::NoDevice { name: options.interface.clone() }),
            Carrier::Engine => engine::Domain::open(interface).map(Self::Engine),
            Carrier::Datagrams => datagrams::Domain::open(interface).map(Self::Datagrams),
            Carrier::System => system::Domain::open(interface).map(Self::System),
            Carrier::Automatic => match system::Domain::open(interface) {
                Ok(domain) => Ok(Self::System(domain)),
                Err(Error::NoCard { .. }) => engine::Domain::open(interface).map(Self::Engine),
                Err(error) => Err(error),
            },
        }
    }

    /// Which it is.
    pub(crate) fn carrier(&self) -> Carrier {
        match self {
            Self::Engine(_) => Carrier::Engine,
            Self::Datagrams(_) => Carrier::Datagrams,
            Self::System(_) => Carrier::System,
            Self::Simulated(_) => Carrier::Simulated,
        }
    }

    /// Bytes of private data that a connection carries.
    pub(crate) fn private_data_max(&self) -> usize {
        match self {
            Self::Engine(_) | Self::Datagrams(_) | Self::Simulated(_) => {
                weft_engine::limits::WEFT_PRIVATE_DATA_MAX
            }
            Self::System(domain) => domain.private_data_max(),
        }
    }

    /// Whether atomics can be asked for.
    pub(crate) fn has_atomics(&self) -> bool {
        match self {
            Self::Engine(_) | Self::Datagrams(_) | Self::Simulated(_) => true,
            Self::System(domain) => domain.has_atomics(),
        }
    }

    /// Whether the memory into which a Read brings bytes has to be open for Writes of the peer.
    pub(crate) fn reads_need_writes(&self) -> bool {
        match self {
            Self::Engine(_) | Self::Datagrams(_) | Self::Simulated(_) => false,
            Self::System(domain) => domain.reads_need_writes(),
        }
    }

    /// Whether peers of the same host map what is registered by whole pages.
    pub(crate) fn maps_pages(&self) -> bool {
        matches!(self, Self::Engine(_))
    }

    /// Registers memory.
    pub(crate) fn register(&self, region: Region, access: Access) -> Result<Registration, Errno> {
        match self {
            Self::Engine(domain) => domain.register(region, access).map(Registration::Engine),
            Self::Datagrams(domain) => domain.register(region, access).map(Registration::Engine),
            Self::System(domain) => {
                domain.register(region, access).map(Box::new).map(Registration::System)
            }
            Self::Simulated(domain) => {
                Ok(Registration::Simulated(Box::new(domain.register(region, access))))
            }
        }
    }

    /// Registers memory that nobody uses until that has happened.
    pub(crate) fn register_unused(
        &self,
        region: Region,
        access: Access,
        unused: Unused,
    ) -> Result<Registration, Errno> {
        match self {
            Self::Engine(domain) => {
                domain.register_unused(region, access, unused).map(Registration::Engine)
            }
            _ => self.register(region, access),
        }
    }

    /// Listens at an address.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<Listening, Errno> {
        match self {
            Self::Engine(_) => engine::Listening::new(address).map(Listening::Engine),
            Self::Datagrams(domain) => {
                datagrams::Listening::new(domain, address).map(Listening::Datagrams)
            }
            Self::System(_) => system::Listening::new(address).map(Listening::System),
            Self::Simulated(domain) => domain.listen(address).map(Listening::Simulated),
        }
    }

    /// Prepares a connection to a listener.
    pub(crate) fn link(&self, peer: SocketAddr, room: &Room) -> Result<EndpointLink, Errno> {
        match self {
            Self::Engine(domain) => {
                engine::EngineLink::to(domain, peer, room).map(EndpointLink::Engine)
            }
            Self::Datagrams(domain) => domain.link(peer, room).map(EndpointLink::Datagrams),
            Self::System(domain) => domain.link(peer, room).map(EndpointLink::System),
            Self::Simulated(domain) => Ok(EndpointLink::Simulated(domain.link(peer, room))),
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(crate) enum Registration {
    Engine(engine::Registration),
    // Boxed, so that buffers stay small.
    System(Box<system::Registration>),
    Simulated(Box<simulated::Registration>),
}

impl Registration {
    /// The key for requests of this process.
    pub(crate) fn local_key(&self) -> u32 {
        match self {
            Self::Engine(registration) => registration.key(),
            Self::System(registration) => registration.local_key(),
            Self::Simulated(registration) => registration.key(),
        }
    }

    /// The key for requests of peers.
    pub(crate) fn remote_key(&self) -> u32 {
        match self {
            Self::Engine(registration) => registration.key(),
            Self::System(registration) => registration.remote_key(),
            Self::Simulated(registration) => registration.key(),
        }
    }

    /// Whether it lets peers write, for Reads of this process.
    pub(crate) fn is_exposed(&self) -> bool {
        match self {
            // Their Reads need no such right.
            Self::Engine(_) | Self::Simulated(_) => false,
            Self::System(registration) => {
                Access::from_bits_retain(registration.rights()).contains(Access::REMOTE_WRITE)
            }
        }
    }

    /// Whether a peer may keep a mapping of the memory after the registration has ended.
    pub(crate) fn is_mappable(&self) -> bool {
        matches!(self, Self::Engine(registration) if registration.is_mappable())
    }

    /// Ends the registration. Afterwards nobody accesses the memory by it.
    pub(crate) fn end(&self) -> Result<(), Errno> {
        match self {
            Self::Engine(registration) => registration.end(),
            Self::System(registration) => system::ended(registration),
            Self::Simulated(registration) => {
                registration.end();
                Ok(())
            }
        }
    }
}

/// An event of a listener or of a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer wants to connect, and says so much.
    Called(Caller, Vec<u8>),
    /// The connection is made; the peer's private data.
    Established(Vec<u8>),
    /// The peer has refused.
    Refused {
        /// Whether its program has.
        by_program: bool,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// The connection cannot be made.
    Failed(Errno),
    /// The connection has ended.
    Disconnected,
}

/// A listener.
#[derive(Debug)]
pub(crate) enum Listening {
    Engine(engine::Listening),
    Datagrams(datagrams::Listening),
    System(system::Listening),
    Simulated(simulated::Listening),
}

impl Listening {
    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Engine(listening) => listening.address,
            Self::Datagrams(listening) => listening.address,
            Self::System(listening) => listening.address,
            Self::Simulated(listening) => listening.address,
        }
    }

    /// Readable when there is an event.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Engine(listening) => listening.events_fd(),
            Self::Datagrams(listening) => listening.events_fd(),
            Self::System(listening) => listening.events_fd(),
            Self::Simulated(listening) => listening.events_fd(),
        }
    }

    /// The next event that is there.
    pub(crate) fn event(&self) -> Option<Event> {
        match self {
            Self::Engine(listening) => listening.event(),
            Self::Datagrams(listening) => listening.event(),
            Self::System(listening) => listening.event(),
            Self::Simulated(listening) => listening.event(),
        }
    }
}

/// A peer that wants to connect. Dropping it refuses the connection, without a reason.
pub(crate) enum Caller {
    Engine(engine::Caller),
    Datagrams(datagrams::Caller),
    System(system::Caller),
    Simulated(simulated::Caller),
}

impl Caller {
    /// The peer's address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Engine(caller) => caller.peer(),
            Self::Datagrams(caller) => caller.peer(),
            Self::System(caller) => caller.peer(),
            Self::Simulated(caller) => Some(caller.peer()),
        }
    }

    /// Refuses the connection.
    pub(crate) fn refuse(self, private_data: &[u8]) {
        match self {
            Self::Engine(caller) => caller.refuse(private_data),
            Self::Datagrams(caller) => caller.refuse(private_data),
            Self::System(caller) => caller.refuse(private_data),
            Self::Simulated(caller) => caller.refuse(private_data),
        }
    }

    /// Prepares to accept the connection.
    pub(crate) fn link(self, domain: &Domain, room: &Room) -> Result<EndpointLink, Errno> {
        match (self, domain) {
            (Self::Engine(caller), Domain::Engine(domain)) => {
                engine::EngineLink::of(domain, caller, room).map(EndpointLink::Engine)
            }
            (Self::Datagrams(caller), Domain::Datagrams(domain)) => {
                domain.answer(caller, room).map(EndpointLink::Datagrams)
            }
            (Self::System(caller), Domain::System(domain)) => {
                domain.answer(caller, room).map(EndpointLink::System)
            }
            (Self::Simulated(caller), Domain::Simulated(domain)) => {
                Ok(EndpointLink::Simulated(domain.answer(caller, room)))
            }
            // A caller comes from a listener of its own domain.
            _ => Err(Errno::XDEV),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

/// A connection: its queues and its events.
#[derive(Debug)]
pub(crate) enum EndpointLink {
    Engine(engine::EngineLink),
    Datagrams(ConnectionEnd),
    System(system::SystemLink),
    Simulated(simulated::SimulatedLink),
}

impl EndpointLink {
    /// What carries the connection now.
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Self::Engine(link) => link.qp.transport(),
            Self::Datagrams(_) => "datagrams",
            Self::System(_) => "system",
            Self::Simulated(_) => "simulated",
        }
    }

    /// The simulation that it is in.
    pub(crate) fn simulation(&self) -> Option<&Network> {
        match self {
            Self::Engine(_) | Self::Datagrams(_) | Self::System(_) => None,
            Self::Simulated(link) => Some(link.domain().network()),
        }
    }

    /// Begins to connect.
    pub(crate) fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Engine(link) => link.connect(private_data),
            Self::Datagrams(link) => link.connect(private_data),
            Self::System(link) => link.connect(private_data),
            Self::Simulated(link) => link.connect(private_data),
        }
    }

    /// Accepts the connection.
    pub(crate) fn accept(&self, private_data: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Engine(link) => link.accept(private_data),
            Self::Datagrams(link) => link.accept(private_data),
            Self::System(link) => link.accept(private_data),
            Self::Simulated(link) => link.accept(private_data),
        }
    }

    /// Readable when there is an event of the connection.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Engine(link) => link.events_fd(),
            Self::Datagrams(link) => link.changes_fd(),
            Self::System(link) => link.events_fd(),
            Self::Simulated(link) => link.fd(),
        }
    }

    /// The next event of the connection that is there.
    pub(crate) fn event(&self) -> Option<Event> {
        match self {
            Self::Engine(link) => link.event(),
            Self::Datagrams(link) => datagrams::event(link),
            Self::System(link) => link.event(),
            Self::Simulated(link) => link.event(),
        }
    }

    /// Ends the connection, so that the peer gets what has been sent. It fails silently if the
    /// connection is gone, or was never made.
    pub(crate) fn disconnect(&self) {
        match self {
            Self::Engine(link) => link.disconnect(),
            Self::Datagrams(link) => link.disconnect(),
            Self::System(link) => link.disconnect(),
            Self::Simulated(link) => link.disconnect(),
        }
    }

    /// Ends the queues. Afterwards the carrier does not access memory for their requests.
    pub(crate) fn destroy(&self) {
        match self {
            Self::Engine(link) => link.destroy(),
            Self::Datagrams(link) => link.destroy(),
            Self::System(link) => link.destroy(),
            Self::Simulated(link) => link.destroy(),
        }
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&self, request: &RecvRequest<'_>) -> Result<(), Errno> {
        match self {
            Self::Engine(link) => link.qp.post_recv(request),
            Self::Datagrams(link) => link.post_receive(request),
            Self::System(link) => link.post_receive(request),
            Self::Simulated(link) => link.post_receive(request),
        }
    }

    /// Begins to post requests, which start together when the returned value is dropped, or
    /// earlier.
    #[inline]
    pub(crate) fn start_post(&self) -> Poster<'_> {
        match self {
            Self::Engine(link) => Poster::Engine(link.qp.start_post()),
            Self::Datagrams(link) => Poster::Datagrams(link),
            Self::System(link) => Poster::System(link),
            Self::Simulated(link) => Poster::Simulated(link),
        }
    }

    /// Moves completions into `space`, and returns how many.
    #[inline]
    pub(crate) fn poll(&self, space: &mut [Completion]) -> usize {
        match self {
            Self::Engine(link) => link.cq.poll(space),
            Self::Datagrams(link) => link.poll(space),
            Self::System(link) => link.poll(space),
            Self::Simulated(link) => link.poll(space),
        }
    }

    /// Has the next completion make an event.
    pub(crate) fn arm(&self) {
        match self {
            Self::Engine(link) => link.cq.arm(false),
            Self::Datagrams(link) => link.arm(),
            Self::System(link) => link.arm(),
            // It looks after each step.
            Self::Simulated(_) => {}
        }
    }

    /// Readable when an armed link has completions.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Engine(link) => link.fd(),
            Self::Datagrams(link) => link.fd(),
            Self::System(link) => link.fd(),
            Self::Simulated(link) => link.fd(),
        }
    }

    /// Waits until there is an event of completions, and takes it. A signal, and the limit, end the
    /// wait, too.
    pub(crate) fn await_event(&self, limit: Option<Duration>) {
        match self {
            Self::Engine(link) => link.await_event(limit),
            Self::Datagrams(link) => link.await_event(limit),
            Self::System(link) => link.await_event(limit),
            // `simulation` has those who wait make steps instead.
            Self::Simulated(_) => {}
        }
    }

    /// Takes the events of completions that are there, without waiting.
    pub(crate) fn take_events(&self) {
        match self {
            Self::Engine(link) => link.take_events(),
            Self::Datagrams(link) => drop(link.take_event()),
            Self::System(link) => link.take_events(),
            Self::Simulated(_) => {}
        }
    }

    /// Has [`EndpointLink::await_event`] never wait from now on, and [`EndpointLink::take_events`]
    /// take events with fewer system calls.
    pub(crate) fn be_watched(&self) -> Result<(), Errno> {
        match self {
            Self::Engine(link) => link.be_watched(),
            Self::Datagrams(_) | Self::System(_) | Self::Simulated(_) => Ok(()),
        }
    }
}

/// Requests that are being posted.
pub(crate) enum Poster<'a> {
    Engine(weft_engine::qp::Poster<'a>),
    Datagrams(&'a ConnectionEnd),
    System(&'a system::SystemLink),
    Simulated(&'a simulated::SimulatedLink),
}

impl Poster<'_> {
    /// Posts a request.
    #[inline]
    pub(crate) fn push(&mut self, request: &SendRequest<'_>) -> Result<(), Errno> {
        match self {
            Self::Engine(poster) => poster.push(request),
            Self::Datagrams(link) => link.post(request),
            Self::System(link) => link.post(request),
            Self::Simulated(link) => link.post(request),
        }
    }
}
