//! Reliable datagrams: many peers by one UDP socket, and paths that lose datagrams.
//!
//! All connections that a fabric makes go by one socket, and all that a listener accepts by the
//! listener's. Memory is registered with the engine, so that its keys are those of connections of
//! the engine, too.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::rd::{self, Change, ConnectionEnd, Port, PortListener};
use weft_sys::{Lock, Region};

use super::engine::{self, Registration};
use super::{Event, Room};
use crate::error::Result;

#[derive(Clone, Debug)]
pub(crate) struct Domain(Arc<Place>);

#[derive(Debug)]
struct Place {
    engine: engine::Domain,
    /// The socket of connections that are made here, once there is one.
    port: Lock<Option<Arc<Port>>>,
}

impl Domain {
    pub(super) fn open(interface: Option<&str>) -> Result<Self> {
        let engine = engine::Domain::open(interface)?;
        Ok(Self(Arc::new(Place { engine, port: Lock::new(None) })))
    }

    pub(super) fn register(&self, region: Region, access: Access) -> Result<Registration, Errno> {
        self.0.engine.register(region, access)
    }

    fn port(&self) -> Result<Arc<Port>, Errno> {
        let mut port = self.0.port.lock();
        if let Some(port) = &*port {
            return Ok(Arc::clone(port));
        }
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let made = Port::bind(self.0.engine.pd(), any)?;
        Ok(Arc::clone(port.insert(made)))
    }

    pub(super) fn link(&self, peer: SocketAddr, room: &Room) -> Result<ConnectionEnd, Errno> {
        self.port()?.end_to(peer, port_room(room))
    }

    pub(super) fn answer(&self, caller: Caller, room: &Room) -> Result<ConnectionEnd, Errno> {
        caller.end(port_room(room))
    }
}

fn port_room(room: &Room) -> rd::Room {
    rd::Room { sends: room.sends, receives: room.receives }
}

#[derive(Debug)]
pub(crate) struct Listening {
    listener: PortListener,
    pub(super) address: SocketAddr,
}

/// A peer that wants to connect.
pub(crate) type Caller = rd::Caller;

impl Listening {
    pub(super) fn new(domain: &Domain, address: SocketAddr) -> Result<Self, Errno> {
        let listener = Port::bind(domain.0.engine.pd(), address)?.listen()?;
        let address = SocketAddr::new(address.ip(), listener.address().port());
        Ok(Self { listener, address })
    }

    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        let (caller, private_data) = self.listener.next_call()?;
        Some(Event::Called(super::Caller::Datagrams(caller), private_data))
    }
}

/// The next event of a connection.
pub(super) fn event(end: &ConnectionEnd) -> Option<Event> {
    Some(match end.change()? {
        Change::Established(private_data) => Event::Established(private_data),
        Change::Refused { by_program, private_data } => Event::Refused { by_program, private_data },
        Change::Failed(errno) => Event::Failed(errno),
        Change::Disconnected => Event::Disconnected,
    })
}
