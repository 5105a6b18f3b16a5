//! Where a connection comes from and goes to.

use std::net::SocketAddr;

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Where the initiator has connected to, which discovery returns.
    pub local: SocketAddr,
    /// The initiator's own address.
    pub remote: SocketAddr,
}
