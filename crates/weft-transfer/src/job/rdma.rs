//! Whether the data of a copy goes over RDMA.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_rdma::{Device, Listener};

use crate::end::{Carrier, EndError, Observer, SinkChannel, SourceChannel};
use crate::limits::POOL_BLOCKS;
use crate::transport::rdma::{self, Landing};
use crate::transport::{StreamControl, TransportError};
use crate::wire::Terms;

/// Feature bit: data channels may go over RDMA.
pub(super) const FEATURE_RDMA: u64 = 8;

/// Connects the data channel with this number of a connection with these terms.
pub(super) type Connect<C> = Box<dyn FnMut(&Terms, u16) -> Result<C, TransportError> + Send>;

/// The transport that the user wants for data between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// RDMA if both ends can, otherwise TCP.
    #[default]
    Auto,
    /// Shared memory with a server of this host and user, otherwise as `Auto`.
    Memory,
    /// TCP.
    Tcp,
    /// RDMA; the copy fails without it.
    Rdma,
    /// The fabric: shared memory on one host, iWARP between two; the copy fails without it.
    Fabric,
}

/// Listens for data channels over RDMA.
#[derive(Debug)]
pub struct RdmaListener(pub(super) Listener);

impl RdmaListener {
    /// Listens at the RDMA address that belongs to a TCP address, and returns that, too.
    ///
    /// # Errors
    /// If the RDMA libraries are missing, there is no device, or the address is in use.
    pub fn bind(tcp: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let none = || io::Error::other("RDMA takes the port after that of TCP, which has none");
        let address = rdma::address(tcp).ok_or_else(none)?;
        Ok((Self(Listener::bind(address)?), address))
    }
}

/// The way of an initiator's data channels over RDMA.
pub(super) struct RdmaPath {
    device: Arc<Device>,
    server: SocketAddr,
    is_required: bool,
    has_failed: bool,
    /// Channels that fail over RDMA get numbers from here on over TCP, because the server may have
    /// seen their first numbers.
    spare: u16,
}

impl RdmaPath {
    /// Finds out whether this host can use RDMA to a server, to which a control channel is open.
    ///
    /// # Errors
    /// If the user demands RDMA, and there is none.
    pub(super) fn find(
        over: Over,
        control: &StreamControl,
        server: SocketAddr,
    ) -> Result<Option<Self>, EndError> {
        if !matches!(over, Over::Auto | Over::Memory | Over::Rdma) {
            return Ok(None);
        }
        let device = match (control.local_address(), rdma::address(server)) {
            (Some(local), Some(server)) => Device::at(local.ip())
                .map(|device| (device, server))
                .map_err(|error| format!("{}: {error}", local.ip().to_canonical())),
            _ => Err("the server's address has no RDMA port".into()),
        };
        match device {
            Ok((device, server)) => {
                let (is_required, has_failed) = (over == Over::Rdma, false);
                Ok(Some(Self { device, server, is_required, has_failed, spare: 0 }))
            }
            Err(why) if over == Over::Rdma => {
                Err(EndError::Here(format!("RDMA is not possible: {why}")))
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns the way if the server has agreed to it, and the number of channels to use.
    ///
    /// # Errors
    /// If the user demands RDMA, and the server does not offer it.
    pub(super) fn agree(
        mut self,
        terms: &mut Terms,
        observer: &dyn Observer,
    ) -> Result<Option<Self>, EndError> {
        terms.channels = terms.channels.div_ceil(2);
        self.spare = terms.channels;
        if terms.features & FEATURE_RDMA != 0 {
            return Ok(Some(self));
        }
        let why = "the server does not offer RDMA (weft serve --rdma)";
        if self.is_required {
            return Err(EndError::Here(why.into()));
        }
        observer.chosen(Carrier::Tcp, Some(why));
        Ok(None)
    }

    /// Returns a function that connects the source's ends of data channels. It uses `tcp` if RDMA
    /// fails and is not required.
    pub(super) fn sources(
        mut self,
        block_len: usize,
        mut tcp: Connect<SourceChannel>,
        observer: Arc<dyn Observer>,
    ) -> Connect<SourceChannel> {
        Box::new(move |terms, number| {
            self.connect((terms, number), &mut tcp, &*observer, |path| {
                let channel = (terms.token, number);
                let source = rdma::connect_source(&path.device, path.server, channel, block_len)?;
                Ok(Box::new(source) as SourceChannel)
            })
        })
    }

    /// Returns the memory of a sink, and a function that connects the sink's ends of data channels.
    /// It uses `tcp` if RDMA fails and is not required.
    ///
    /// # Errors
    /// If the memory cannot be registered, and RDMA is required.
    pub(super) fn sinks(
        mut self,
        block_len: usize,
        mut tcp: Connect<SinkChannel>,
        observer: Arc<dyn Observer>,
    ) -> Result<(Option<Arc<Landing>>, Connect<SinkChannel>), TransportError> {
        let landing = match Landing::new(&self.device, POOL_BLOCKS, block_len) {
            Ok(landing) => landing,
            Err(error) => {
                self.fall_back(error.into(), &*observer)?;
                return Ok((None, tcp));
            }
        };
        let granted = Arc::clone(&landing);
        let connect: Connect<SinkChannel> = Box::new(move |terms, number| {
            self.connect((terms, number), &mut tcp, &*observer, |path| {
                let sink = rdma::connect_sink(&landing, path.server, (terms.token, number))?;
                Ok(Box::new(sink) as SinkChannel)
            })
        });
        Ok((Some(granted), connect))
    }

    fn connect<C>(
        &mut self,
        (terms, number): (&Terms, u16),
        tcp: &mut Connect<C>,
        observer: &dyn Observer,
        connect: impl FnOnce(&Self) -> Result<C, TransportError>,
    ) -> Result<C, TransportError> {
        if !self.has_failed {
            match connect(self) {
                Ok(channel) => {
                    if number == 0 {
                        observer.chosen(Carrier::Rdma, None);
                    }
                    return Ok(channel);
                }
                Err(error) => self.fall_back(error, observer)?,
            }
        }
        tcp(terms, number + self.spare)
    }

    /// Reports that the other channels use TCP.
    fn fall_back(
        &mut self,
        error: TransportError,
        observer: &dyn Observer,
    ) -> Result<(), TransportError> {
        let why = reason(&self.device, &error);
        if self.is_required {
            return Err(io::Error::other(why).into());
        }
        self.has_failed = true;
        observer.chosen(Carrier::Tcp, Some(&why));
        Ok(())
    }
}

/// Returns the text for a failure of RDMA.
pub(super) fn reason(device: &Device, error: &dyn Display) -> String {
    format!("RDMA by {}: {error}", device.name())
}
