//! Events that a server reports to its user.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::session::Closed;

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// An initiator has connected.
    Connected(SocketAddr),
    /// A connection has ended, with the reason. `None` if the initiator has closed it.
    Ended(SocketAddr, Option<Closed>),
    /// A connection was closed at once, since too many have not logged in.
    Refused(SocketAddr),
    /// A connection could not be accepted.
    NotAccepted(io::Error),
}

/// Is called with each event, from several threads.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;
