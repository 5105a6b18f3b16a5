//! TCP: one connection for the control channel, and one for each data channel.
//!
//! On a data channel each block is a header followed by its payload. The sink reads the header, has
//! the session check it, and reads the payload directly into the granted buffer.

mod beside;
mod congestion;
mod data;
mod granted;
mod socket;

#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

pub use beside::{BesideListener, connect_beside};
pub use congestion::{Congestion, CongestionError};
pub use data::{TcpSink, TcpSource};
pub use granted::{accept_granted, confirm_granted, connect_granted};
pub use socket::TcpSettings;
pub use socket::round_trip;

use super::channel::TransportError;
use super::greeting::{greet, greeting};
use super::stream::StreamControl;
use crate::secure::{Tls, TlsClient, TlsServer};
use crate::wire::{Kind, Mode, Preface, Token};

/// An accepted connection, by the kind in its preface.
#[derive(Debug)]
pub enum Accepted {
    /// A control channel.
    Control(Box<StreamControl>),
    /// A data channel of the session with this token.
    Data {
        /// The token.
        token: Token,
        /// The number of the data channel.
        channel: u16,
        /// The connection, for [`TcpSource::new`] or [`TcpSink::new`].
        stream: TcpStream,
    },
}

/// Connects a control channel, with TLS if `tls` is given.
///
/// # Errors
/// If the server does not answer in time or is not accepted, or if a system call fails.
pub fn connect_control(
    server: SocketAddr,
    tls: Option<&TlsClient>,
    settings: &TcpSettings,
) -> Result<StreamControl, TransportError> {
    let stream = TcpStream::connect_timeout(&server, settings.handshake)?;
    settings.apply_to_control(&stream)?;
    let mode = if tls.is_some() { Mode::Tls } else { Mode::Clear };
    greet(&stream, Kind::Control, mode)?;
    let tls = tls.map(|tls| tls.connect(&stream, settings.handshake)).transpose()?;
    control(stream, tls, settings)
}

/// Connects a data channel of the session with this token.
///
/// # Errors
/// If a system call fails.
pub fn connect_data(
    server: SocketAddr,
    token: Token,
    channel: u16,
    settings: &TcpSettings,
) -> Result<TcpStream, TransportError> {
    let stream = TcpStream::connect_timeout(&server, settings.handshake)?;
    settings.apply_to_data(&stream)?;
    greet(&stream, Kind::Data { token, channel }, Mode::Clear)?;
    Ok(stream)
}

/// Reads the preface of an accepted connection. Control channels must use TLS if `tls` is given,
/// and must not otherwise. It waits for the peer, so the accepting thread should not call it.
///
/// # Errors
/// If the peer does not speak the protocol in time or is not accepted, or if a system call fails.
pub fn accept(
    stream: TcpStream,
    tls: Option<&TlsServer>,
    settings: &TcpSettings,
) -> Result<Accepted, TransportError> {
    let end = Instant::now() + settings.handshake;
    let Preface { kind, mode, .. } = greeting(&stream, settings.handshake)?;
    match (kind, mode, tls) {
        (Kind::Data { token, channel }, Mode::Clear, _) => {
            settings.apply_to_data(&stream)?;
            Ok(Accepted::Data { token, channel, stream })
        }
        (Kind::Control, Mode::Tls, Some(tls)) => {
            settings.apply_to_control(&stream)?;
            let tls = tls.accept(&stream, end.saturating_duration_since(Instant::now()))?;
            Ok(Accepted::Control(Box::new(control(stream, Some(tls), settings)?)))
        }
        (Kind::Control, Mode::Clear, None) => {
            settings.apply_to_control(&stream)?;
            Ok(Accepted::Control(Box::new(control(stream, None, settings)?)))
        }
        (Kind::Control, Mode::Clear, Some(_)) => {
            Err(TransportError::Protocol("the control channel must use TLS"))
        }
        (Kind::Control, Mode::Tls, None) => {
            Err(TransportError::Protocol("the client asks for TLS, which this end does not use"))
        }
        (Kind::Data { .. }, Mode::Tls, _) => Err(TransportError::Protocol(
            "a data channel must not use TLS: each block is sealed by itself",
        )),
    }
}

fn control(
    stream: TcpStream,
    tls: Option<Tls>,
    settings: &TcpSettings,
) -> Result<StreamControl, TransportError> {
    match tls {
        Some(tls) => StreamControl::in_tls(stream.into(), tls, settings.stall),
        None => Ok(StreamControl::new(stream.into(), settings.stall)),
    }
}
