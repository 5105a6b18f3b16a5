//! A copy with a server on another host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::initiate::{Initiating, Wish, initiate};
use super::places::local_destination;
use super::request::{Flags, Request};
use crate::end::{EndError, Finished, Observer, Progress, SinkChannel, SourceChannel};
use crate::limits::TCP_CHANNELS;
use crate::secure::TlsClient;
use crate::transport::tcp::{self, TcpSettings, TcpSink, TcpSource};
use crate::tree::source::Start;

/// Which way a copy goes.
#[derive(Debug)]
pub enum Way {
    /// These go to the server.
    To(Vec<Start>),
    /// What the request names comes from the server, and goes to this path.
    From(PathBuf),
}

/// Copies to or from a server.
///
/// # Errors
/// If the copy is not complete.
pub fn copy_with(
    server: SocketAddr,
    tls: &TlsClient,
    request: Request,
    way: Way,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Finished, EndError> {
    let (settings, is_folder) = (TcpSettings::default(), request.flags.has(Flags::FOLDER));
    let control = Arc::new(tcp::connect_control(server, Some(tls), &settings)?);
    let wish = match way {
        Way::To(starts) => Wish::Send {
            starts,
            connect: Box::new(move |token, number| {
                let stream = tcp::connect_data(server, token, number, &settings)?;
                Ok(Box::new(TcpSource::new(stream, &settings, true)) as SourceChannel)
            }),
        },
        Way::From(path) => Wish::Fetch {
            root: Box::new(move |is_one| Ok(local_destination(&path, is_folder || is_one)?.root)),
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
        observer,
        progress,
    })
}
