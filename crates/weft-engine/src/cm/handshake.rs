//! The parts of the MPA exchange that both sides share.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use weft_wire::mpa::negotiate::{Negotiated, Params, RtrKinds};

use crate::hello::{self, Identity};
use crate::qp::Connection;
use crate::tcp;

/// A stream whose MPA exchange is complete, with its addresses and private data.
#[derive(Debug)]
pub(super) struct Handshaken {
    /// The stream and the result of the negotiation.
    pub(super) connection: Connection,
    /// Our address.
    pub(super) local: SocketAddr,
    /// The peer's address.
    pub(super) peer: SocketAddr,
    /// The private data of the peer's program.
    pub(super) private_data: Vec<u8>,
}

impl Handshaken {
    pub(super) fn new(
        socket: OwnedFd,
        [local, peer]: [SocketAddr; 2],
        initiator: bool,
        mut negotiated: Negotiated,
        early: Vec<u8>,
    ) -> Self {
        let frame = std::mem::take(&mut negotiated.peer_private_data);
        let (private_data, peer_identity) = split(&frame);
        let connection = Connection {
            socket,
            read_from: None,
            local: Some(local),
            peer: Some(peer),
            initiator,
            negotiated,
            peer_identity,
            early,
        };
        Self { connection, local, peer, private_data }
    }
}

/// Splits a peer's private data into its program's data and its identity.
pub(super) fn split(frame: &[u8]) -> (Vec<u8>, Option<Identity>) {
    let (programs, hello) = hello::split(frame);
    (programs.to_vec(), hello.map(|hello| hello.identity))
}

/// The ready-to-receive messages that the active side offers: those that consume no receive of the
/// passive side's program.
pub(super) const RTR_OFFERED: RtrKinds = RtrKinds { send: false, write: true, read: true };

/// The MPA parameters that we propose for a connection between two addresses, with these read
/// depths.
///
/// Peer-to-peer setup (RFC 6581 section 9.2) lets the passive side's program send first, as
/// programs written for InfiniBand do.
pub(super) fn params(local: IpAddr, peer: IpAddr, ird: u8, ord: u8, rtr: RtrKinds) -> Params {
    Params {
        crc: tcp::crc_wanted(local, peer),
        markers_wanted: tcp::markers_wanted(),
        ird: ird.into(),
        ord: ord.into(),
        enhanced: true,
        peer_to_peer: true,
        rtr,
    }
}
