//! Listeners, and the requests of peers that connect to them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_abi::RDMA_CM_EVENT_DEVICE_REMOVAL;

use crate::connection::Connection;
use crate::device::Device;
use crate::id::{Event, Id, RawId, wait_for};
use crate::libraries::functions;
use crate::limits::READS_MAX;
use crate::pair::{Pair, Room};

/// A listener.
#[derive(Debug)]
pub struct Listener {
    id: Id,
}

impl Listener {
    /// Listens at an address of this host. The unspecified address stands for all devices.
    ///
    /// # Errors
    /// If the libraries are missing, or the address is in use or has no device.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let mut id = Id::new(functions().map_err(io::Error::other)?)?;
        id.bind(address)?;
        id.listen()?;
        Ok(Self { id })
    }

    /// The address at which it listens, with the port that was chosen if none was given.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.id.local()
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// If the listener has failed.
    pub fn request(&mut self) -> io::Result<Request> {
        loop {
            match self.try_request()? {
                Some(request) => return Ok(request),
                None => drop(wait_for([self.id.fd()], None)?),
            }
        }
    }

    /// Returns the next request, if there is one; the listener's descriptor is readable then.
    ///
    /// # Errors
    /// If the listener has failed.
    pub fn try_request(&mut self) -> io::Result<Option<Request>> {
        while let Some(event) = self.id.event()? {
            if event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL && event.is_own {
                return Err(event.error());
            }
            // Other events belong to requests whose peers have gone.
            if let Some(id) = event.request {
                let Event { private_data, reads, .. } = event;
                return Ok(Some(Request { id, private_data, reads: reads.min(READS_MAX) }));
            }
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

/// The request of a peer for a connection. Dropping it refuses the connection.
#[derive(Debug)]
pub struct Request {
    id: RawId,
    private_data: Vec<u8>,
    /// How many reads at a time the connection may have.
    reads: u8,
}

impl Request {
    /// The private data of the peer. Some transports append zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// Refuses the connection, with private data for the peer.
    pub fn refuse(self, private_data: &[u8]) {
        self.id.refuse(private_data);
    }

    /// Prepares to accept the connection on a device. Post the first receives, then call
    /// [`Pair::accept`].
    ///
    /// # Errors
    /// If the connection came on another device, or that has no resources.
    pub fn pair(self, device: &Arc<Device>, room: &Room) -> io::Result<Pair> {
        Pair::on(device, Id::of(self.id)?, room)
    }

    /// Accepts the connection on a device, with room for this many messages to send and to receive
    /// at a time. `prepare` posts the first receives.
    ///
    /// # Errors
    /// If the connection came on another device, that has no resources, or the peer has gone.
    pub fn accept(
        self,
        device: &Arc<Device>,
        (sends, receives): (u32, u32),
        time: Duration,
        prepare: impl FnOnce(&mut Connection) -> io::Result<()>,
    ) -> io::Result<Connection> {
        let mut connection = Connection::on(device, Id::of(self.id)?, sends, receives)?;
        prepare(&mut connection)?;
        connection.accept(self.reads, time)?;
        Ok(connection)
    }
}
