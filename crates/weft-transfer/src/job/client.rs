//! Copies to and from a server on another host.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use super::fabric::FabricOptions;
use super::initiate::{Initiating, InitiatorRole, OpenTarget, initiate};
use super::places::{Naming, Target, local_destination_outside};
use super::rdma::{Over, RdmaPath};
use super::request::{Flags, Request};
use super::settings::threads;
use super::task::CopyTask;
use crate::end::{EndError, Finished, SinkChannel, SourceChannel};
use crate::limits::{BLOCK_SIZE, RDMA_CHANNELS};
use crate::placement::settle;
use crate::secure::TlsClient;
use crate::transport::tcp::{self, TcpSettings, TcpSink, TcpSource};
use crate::transport::{Control as _, StreamControl, TransportError};
use crate::tree::source::Content;
use crate::wire::Terms;

/// The direction of a copy.
#[derive(Debug)]
pub enum CopyDirection {
    /// Copies this to the other host.
    Upload(Content),
    /// Copies what the request names from the other host.
    Download(DownloadTo),
}

/// The place of a download.
#[derive(Debug)]
pub enum DownloadTo {
    /// A path of this user.
    Path(PathBuf),
    /// A descriptor that gets the bytes of a single file.
    Output(OwnedFd),
    /// None: the observer learns what the other end has.
    Listing,
}

impl DownloadTo {
    pub(super) fn opening(self, request: &Request) -> OpenTarget {
        let (flags, extras) = (request.flags, request.extras.clone());
        Box::new(move |is_one, origins| match self {
            Self::Path(path) => {
                let flags = flags.with(Flags::FOLDER, is_one);
                let to = local_destination_outside(&path, flags, origins)?;
                Ok(Target::Directory(to.with_own_asides(&extras)?))
            }
            Self::Output(fd) => Ok(Target::Output(fd)),
            Self::Listing => Ok(Target::Listing),
        })
    }
}

/// A server and how it is reached.
#[derive(Clone, Copy, Debug)]
pub struct ServerAt<'a> {
    /// Its addresses, of which the first that answers is used.
    pub addresses: &'a [SocketAddr],
    /// Checks its key.
    pub tls: &'a TlsClient,
}

/// Connects to the first address of a server that answers.
pub(super) fn connect(
    server: ServerAt<'_>,
    settings: &TcpSettings,
) -> Result<(SocketAddr, StreamControl), TransportError> {
    let mut failure = None;
    for &address in server.addresses {
        match tcp::connect_control(address, Some(server.tls), settings) {
            Ok(control) => return Ok((address, control)),
            // The address does not answer or is unreachable, so the next one is tried.
            Err(TransportError::System(error)) => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()).into())
}

/// Whether the server at this address, to which a control channel is open, is on another host.
pub(super) fn is_another_host(control: &StreamControl, server: SocketAddr) -> bool {
    // The system connects from the address itself to an address of its own.
    control.local_address().map(|local| local.ip().to_canonical())
        != Some(server.ip().to_canonical())
}

/// Connects the data channels of a copy over TCP.
pub(super) struct Streams {
    server: SocketAddr,
    settings: TcpSettings,
    /// Whether all channels are connected at once, because each takes a round trip.
    is_parallel: bool,
    connected: BTreeMap<u16, Result<TcpStream, TransportError>>,
}

impl Streams {
    pub(super) fn new(server: SocketAddr, is_parallel: bool) -> Self {
        Self { server, settings: TcpSettings::default(), is_parallel, connected: BTreeMap::new() }
    }

    /// Returns the connection of a channel.
    pub(super) fn take(&mut self, terms: &Terms, number: u16) -> Result<TcpStream, TransportError> {
        let connect = |number| tcp::connect_data(self.server, terms.token, number, &self.settings);
        if number == 0 && self.is_parallel {
            self.connected = thread::scope(|scope| {
                let connecting: Vec<_> = (0..terms.channels)
                    .map(|number| (number, scope.spawn(move || connect(number))))
                    .collect();
                let failed = |_| Err(TransportError::Closed);
                let ends = connecting.into_iter();
                ends.map(|(number, thread)| (number, thread.join().unwrap_or_else(failed)))
                    .collect()
            });
        }
        self.connected.remove(&number).unwrap_or_else(|| connect(number))
    }
}

impl CopyTask {
    /// Copies to or from a server, with the data over this transport.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn with_server(
        mut self,
        server: ServerAt<'_>,
        direction: CopyDirection,
        over: Over,
    ) -> Result<Finished, EndError> {
        let (settings, flags) = (self.tcp_settings()?, self.request.flags);
        let (server, control) = connect(server, &settings)?;
        let is_another_host = is_another_host(&control, server);
        self.between_hosts(is_another_host);
        // All threads of the copy are started by this one.
        let local = control.local_address().map(|local| local.ip());
        let binding = settle(&self.sysfs, local, threads());
        let fabric = FabricOptions::find(over, is_another_host, server);
        let rdma = RdmaPath::find(over, &control, server)?;
        let channels = match rdma {
            Some(_) => RDMA_CHANNELS,
            None => self.channels(control.round_trip()),
        };
        // Those that replace channels over RDMA are connected when one fails.
        let mut streams = Streams::new(server, rdma.is_none());
        let control = Arc::new(control);
        let role = match direction {
            CopyDirection::Upload(content) => InitiatorRole::Send {
                content,
                connect: Box::new(move |terms, number| {
                    let stream = streams.take(terms, number)?;
                    let source = TcpSource::new(stream, &settings, !flags.has(Flags::CLEAR))?;
                    Ok(Box::new(source) as SourceChannel)
                }),
            },
            CopyDirection::Download(to) => InitiatorRole::Receive {
                target: to.opening(&self.request),
                connect: Box::new(move |terms, number| {
                    let stream = streams.take(terms, number)?;
                    Ok(Box::new(TcpSink::new(stream, &settings)) as SinkChannel)
                }),
            },
        };
        initiate(Initiating {
            task: self,
            control: Arc::clone(&control) as _,
            keys: &|session, cipher| control.block_secrets(session, cipher),
            role,
            channels,
            block_size: BLOCK_SIZE,
            copies: None,
            naming: Naming::Shares,
            beside: None,
            placement: binding.placement(),
            rdma,
            fabric,
        })
    }
}
