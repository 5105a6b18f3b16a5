//! The registry's information about a socket on Weft.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{getpeername, getsockname};
use weft_stream::{ConnectionSnapshot, DirectionSnapshot, Registry, directory};

/// A socket's connection, and which of its ends the socket is.
#[derive(Debug)]
pub(super) struct SharedConnection {
    connection: ConnectionSnapshot,
    is_client: bool,
}

impl SharedConnection {
    /// Finds the slot of a connected socket; `None` if Weft does not know the connection.
    pub(super) fn of(socket: impl AsFd) -> Option<Self> {
        let own = SocketAddr::try_from(getsockname(&socket).ok()?).ok()?;
        let peer = SocketAddr::try_from(getpeername(&socket).ok()??).ok()?;
        let registries = Registry::existing(&directory());
        let mut connections = registries.iter().flat_map(Registry::connections);
        connections.find_map(|connection| {
            let ends = (connection.client.address, connection.server.address);
            let is_client = ends == (own, peer);
            (is_client || ends == (peer, own)).then_some(Self { connection, is_client })
        })
    }

    /// Returns whether memory carries at least one direction.
    pub(super) fn is_in_memory(&self) -> bool {
        self.connection.to_server.in_memory || self.connection.to_client.in_memory
    }

    /// Returns the average memory for what this side sends, in bytes, as its last stalls have found
    /// it.
    pub(super) fn allotted(&self) -> u64 {
        let DirectionSnapshot { stalls, stalled_allotted, .. } =
            if self.is_client { &self.connection.to_server } else { &self.connection.to_client };
        stalled_allotted.checked_div(*stalls).unwrap_or(0)
    }
}
