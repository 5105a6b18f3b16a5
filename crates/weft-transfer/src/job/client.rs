//! Copies to and from a server on another host.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::initiate::{Initiating, Wish, initiate};
use super::places::{Naming, local_destination};
use super::request::{Flags, Request};
use crate::end::{EndError, Finished, Observer, Progress, SinkChannel, SourceChannel};
use crate::limits::{BLOCK_SIZE, TCP_CHANNELS};
use crate::secure::TlsClient;
use crate::transport::tcp::{self, TcpSettings, TcpSink, TcpSource};
use crate::transport::{StreamControl, TransportError};
use crate::tree::source::Start;

/// The direction of a copy.
#[derive(Debug)]
pub enum Way {
    /// Copies these files and directories to the server.
    To(Vec<Start>),
    /// Copies what the request names from the server to this path.
    From(PathBuf),
}

/// Connects to the first address of a server that answers.
fn connect(
    addresses: &[SocketAddr],
    tls: &TlsClient,
    settings: &TcpSettings,
) -> Result<(SocketAddr, StreamControl), TransportError> {
    let mut failure = None;
    for &address in addresses {
        match tcp::connect_control(address, Some(tls), settings) {
            Ok(control) => return Ok((address, control)),
            // The address does not answer or is unreachable, so the next one is tried.
            Err(TransportError::System(error)) => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()).into())
}

/// Copies to or from a server that has one or more addresses.
/// `limit` is the most bytes of blocks per second.
///
/// # Errors
/// If the copy fails.
pub fn copy_with(
    addresses: &[SocketAddr],
    tls: &TlsClient,
    request: Request,
    way: Way,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    limit: Option<u64>,
) -> Result<Finished, EndError> {
    let (settings, flags) = (TcpSettings::default(), request.flags);
    let (server, control) = connect(addresses, tls, &settings)?;
    let control = Arc::new(control);
    let wish = match way {
        Way::To(starts) => Wish::Send {
            starts,
            connect: Box::new(move |token, number| {
                let stream = tcp::connect_data(server, token, number, &settings)?;
                Ok(Box::new(TcpSource::new(stream, &settings, true)) as SourceChannel)
            }),
        },
        Way::From(path) => Wish::Fetch {
            root: Box::new(move |is_one| {
                local_destination(&path, flags.with(Flags::FOLDER, is_one))
            }),
            connect: Box::new(move |token, number| {
                let stream = tcp::connect_data(server, token, number, &settings)?;
                Ok(Box::new(TcpSink::new(stream, &settings)) as SinkChannel)
            }),
        },
    };
    initiate(Initiating {
        control: Arc::clone(&control) as _,
        keys: &|session, cipher| control.block_secrets(session, cipher),
        request,
        wish,
        channels: TCP_CHANNELS,
        block_size: BLOCK_SIZE,
        limit,
        naming: Naming::Shares,
        observer,
        progress,
    })
}
