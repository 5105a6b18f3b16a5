//! Listening for clients.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use weft_fabric::{Error, Fabric, Listener};

use super::{FabricStream, GREETING, open};
use crate::limits::FABRIC_MESSAGE_LEN_LEAST;

/// Why peers of other programs are refused.
const STRANGE: &[u8] = b"this is a tuple server of another version";
const FULL: &[u8] = b"the server has no place for another connection";

/// Accepts connections by the fabric.
#[derive(Debug)]
pub struct FabricListener {
    fabric: Fabric,
    listener: Listener,
    /// Called when there may be a connection to accept.
    waker: Waker,
}

impl FabricListener {
    /// Listens at an address. A TCP socket may listen there, too: the ports of the fabric are
    /// others.
    ///
    /// # Errors
    ///
    /// If the host has no network interface, or the port is in use.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        Self::bind_on(&open()?, address)
    }

    pub(super) fn bind_on(fabric: &Fabric, address: SocketAddr) -> Result<Self, Error> {
        let listener = fabric.listen(address)?;
        Ok(Self { fabric: fabric.clone(), listener, waker: Waker::noop().clone() })
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Has a waker called when it is worth accepting again.
    pub(crate) fn call(&mut self, waker: Waker) {
        self.waker = waker;
    }

    /// Accepts a connection, or refuses it if there is no place.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`] if there is none; [`ErrorKind::ConnectionAborted`] if it is not
    /// made.
    pub(crate) fn accept(&self, has_place: bool) -> io::Result<FabricStream> {
        let accepted = pin!(self.listener.accept()).poll(&mut Context::from_waker(&self.waker));
        let incoming = match accepted {
            Poll::Pending => return Err(ErrorKind::WouldBlock.into()),
            Poll::Ready(incoming) => incoming.map_err(io::Error::other)?,
        };
        let reason = match incoming.private_data() {
            GREETING if has_place => None,
            GREETING => Some(FULL),
            _ => Some(STRANGE),
        };
        let endpoint = match reason {
            None => incoming.accept(GREETING).ok(),
            Some(reason) => {
                // It fails if the peer is gone, which is as well.
                let _ = incoming.refuse(reason);
                None
            }
        };
        let endpoint = endpoint.filter(|it| it.message_max() >= FABRIC_MESSAGE_LEN_LEAST);
        let endpoint = endpoint.ok_or(ErrorKind::ConnectionAborted)?;
        Ok(FabricStream::new(self.fabric.clone(), endpoint))
    }
}
