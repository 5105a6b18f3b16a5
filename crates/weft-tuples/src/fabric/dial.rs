//! Connecting to a server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use weft_fabric::{Connected, Error, Fabric};

use super::{FabricStream, GREETING, open};
use crate::limits::FABRIC_MESSAGE_LEN_LEAST;

/// Connects to a server at a host and a port.
///
/// # Errors
///
/// If the host has no address, or no server listens at any of them.
pub(crate) fn connect(address: &str) -> io::Result<FabricStream> {
    let fabric = open().map_err(io::Error::other)?;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match connect_to(&fabric, address) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = io::Error::other(error),
        }
    }
    Err(failure)
}

fn connect_to(fabric: &Fabric, peer: SocketAddr) -> Result<FabricStream, Error> {
    established(fabric, fabric.connect(peer, GREETING)?.wait()?)
}

/// The stream of a new connection, if the peer is a tuple server.
pub(super) fn established(fabric: &Fabric, connected: Connected) -> Result<FabricStream, Error> {
    let endpoint = connected.endpoint;
    if connected.private_data != GREETING || endpoint.message_max() < FABRIC_MESSAGE_LEN_LEAST {
        return Err(Error::Protocol { peer: endpoint.peer() });
    }
    Ok(FabricStream::new(fabric.clone(), endpoint))
}
