//! Whether the data of a copy goes over RDMA.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use weft_rdma::{Device, Listener};

use crate::end::{Carrier, EndError, Observer, SinkChannel, SourceChannel, Spare};
use crate::limits::POOL_BLOCKS;
use crate::transport::rdma::{self, Landing};
use crate::transport::{StreamControl, TransportError};
use crate::wire::Terms;
use weft_sys::lock;

/// Feature bit: data channels may go over RDMA.
pub(super) const FEATURE_RDMA: u64 = 8;

/// Connects the data channel with this number of a connection with these terms.
pub(super) type Connect<C> = Box<dyn FnMut(&Terms, u16) -> Result<C, TransportError> + Send>;

/// Connects a data channel, and returns it with its number, which may be another one.
pub(super) type Numbered<C> =
    Box<dyn FnMut(&Terms, u16) -> Result<(u16, C), TransportError> + Send>;

/// Returns a function that gives channels the numbers that it is asked for.
pub(super) fn numbered<C: 'static>(mut connect: Connect<C>) -> Numbered<C> {
    Box::new(move |terms, number| Ok((number, connect(terms, number)?)))
}

/// Data channels over TCP in the place of those over RDMA. They have other numbers, because the
/// server may have seen the first ones.
pub(super) struct Instead<C> {
    connect: Connect<C>,
    /// The first of their numbers.
    from: u16,
    used: Vec<u16>,
}

impl<C> Instead<C> {
    /// Connects the one for the channel with this number.
    fn connect(&mut self, terms: &Terms, number: u16) -> Result<(u16, C), TransportError> {
        let number = number + self.from;
        self.used.push(number);
        Ok((number, (self.connect)(terms, number)?))
    }
}

/// What connects data channels over TCP when those over RDMA have failed.
pub(super) struct Late<C> {
    instead: Arc<Mutex<Instead<C>>>,
    report: Box<dyn FnOnce() + Send>,
}

impl<C: Send + 'static> Late<C> {
    /// Returns a function that passes these channels on.
    pub(super) fn spare(
        self,
        terms: &Terms,
        to: Sender<(u16, C)>,
        limited: impl Fn(C) -> C + Send + 'static,
    ) -> Spare {
        let terms = terms.clone();
        Box::new(move || {
            let mut instead = lock(&self.instead);
            let is_free = |number: &u16| !instead.used.contains(&(number + instead.from));
            let free: Vec<u16> = (0..terms.channels).filter(is_free).collect();
            if free.is_empty() {
                return;
            }
            (self.report)();
            for number in free {
                // Without one of them the others are used; without any the copy fails.
                if let Ok((number, channel)) = instead.connect(&terms, number) {
                    let _ = to.send((number, limited(channel)));
                }
            }
        })
    }
}

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

/// The sink's ends of data channels over RDMA.
pub(super) struct Sinks {
    /// The memory to which the source writes; `None` if they go over TCP.
    pub(super) landing: Option<Arc<Landing>>,
    pub(super) connect: Numbered<SinkChannel>,
    pub(super) late: Option<Late<SinkChannel>>,
}

/// The way of an initiator's data channels over RDMA.
pub(super) struct RdmaPath {
    device: Arc<Device>,
    server: SocketAddr,
    is_required: bool,
    has_failed: bool,
    /// Channels that fail over RDMA get numbers from here on over TCP.
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
    /// fails and is not required. If it fails later, the other function does.
    pub(super) fn sources(
        mut self,
        block_len: usize,
        tcp: Connect<SourceChannel>,
        observer: Arc<dyn Observer>,
    ) -> (Numbered<SourceChannel>, Option<Late<SourceChannel>>) {
        let (instead, late) = self.instead(tcp, &observer);
        let connect: Numbered<SourceChannel> = Box::new(move |terms, number| {
            self.connect((terms, number), &instead, &*observer, |path| {
                let channel = (terms.token, number);
                let source = rdma::connect_source(&path.device, path.server, channel, block_len)?;
                Ok(Box::new(source) as SourceChannel)
            })
        });
        (connect, late)
    }

    /// Returns the memory of a sink, and functions that connect the sink's ends of data channels as
    /// [`RdmaPath::sources`] does.
    ///
    /// # Errors
    /// If the memory cannot be registered, and RDMA is required.
    pub(super) fn sinks(
        mut self,
        block_len: usize,
        tcp: Connect<SinkChannel>,
        observer: Arc<dyn Observer>,
    ) -> Result<Sinks, TransportError> {
        let landing = match Landing::new(&self.device, POOL_BLOCKS, block_len) {
            Ok(landing) => landing,
            Err(error) => {
                self.fall_back(error.into(), &*observer)?;
                return Ok(Sinks { landing: None, connect: numbered(tcp), late: None });
            }
        };
        let granted = Some(Arc::clone(&landing));
        let (instead, late) = self.instead(tcp, &observer);
        let connect: Numbered<SinkChannel> = Box::new(move |terms, number| {
            self.connect((terms, number), &instead, &*observer, |path| {
                let sink = rdma::connect_sink(&landing, path.server, (terms.token, number))?;
                Ok(Box::new(sink) as SinkChannel)
            })
        });
        Ok(Sinks { landing: granted, connect, late })
    }

    /// Returns the channels over TCP, and what connects them later unless RDMA is required.
    fn instead<C>(
        &self,
        connect: Connect<C>,
        observer: &Arc<dyn Observer>,
    ) -> (Arc<Mutex<Instead<C>>>, Option<Late<C>>) {
        let instead = Instead { connect, from: self.spare, used: Vec::new() };
        let instead = Arc::new(Mutex::new(instead));
        let (observer, device) = (Arc::clone(observer), Arc::clone(&self.device));
        let report = move || {
            let why = reason(&device, &"the server has ended the connections");
            observer.chosen(Carrier::Tcp, Some(&why));
        };
        let late = Late { instead: Arc::clone(&instead), report: Box::new(report) };
        (instead, (!self.is_required).then_some(late))
    }

    fn connect<C>(
        &mut self,
        (terms, number): (&Terms, u16),
        instead: &Mutex<Instead<C>>,
        observer: &dyn Observer,
        connect: impl FnOnce(&Self) -> Result<C, TransportError>,
    ) -> Result<(u16, C), TransportError> {
        if !self.has_failed {
            match connect(self) {
                Ok(channel) => {
                    if number == 0 {
                        observer.chosen(Carrier::Rdma, None);
                    }
                    return Ok((number, channel));
                }
                Err(error) => self.fall_back(error, observer)?,
            }
        }
        lock(instead).connect(terms, number)
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
