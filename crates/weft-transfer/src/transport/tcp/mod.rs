//! TCP: one connection for the control channel, and one for each data channel.
//!
//! On a data channel each block is its header and its payload, one after the other. The sink reads
//! the header, has it checked, and reads the payload right into the granted buffer.

mod data;
mod socket;

#[cfg(test)]
mod tests;

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub use data::{TcpSink, TcpSource};
pub use socket::TcpSettings;

use super::channel::TransportError;
use super::preface::{PREFACE_LEN, Preface, Token};
use super::stream::StreamControl;
use crate::secure::{Tls, TlsClient, TlsServer};

/// A connection that a server has accepted, by what it begins with.
#[derive(Debug)]
pub enum Accepted {
    /// A control channel.
    Control(Box<StreamControl>),
    /// A data channel of the session with this token.
    Data {
        /// The token.
        token: Token,
        /// Which of the session's channels it is.
        channel: u16,
        /// The connection, for [`TcpSource::new`] or [`TcpSink::new`].
        stream: TcpStream,
    },
}

/// Connects a control channel, in TLS if there is a `tls` to do it with.
///
/// # Errors
/// If the server does not answer in time, or is not accepted; and what the kernel says.
pub fn connect_control(
    server: SocketAddr,
    tls: Option<&TlsClient>,
    settings: &TcpSettings,
) -> Result<StreamControl, TransportError> {
    let mut stream = TcpStream::connect_timeout(&server, settings.handshake)?;
    settings.apply_to_control(&stream)?;
    stream.write_all(&Preface::Control { tls: tls.is_some() }.encode())?;
    let tls = tls.map(|tls| tls.connect(&stream, settings.handshake)).transpose()?;
    control(stream, tls, settings)
}

/// Connects a data channel of the session with this token.
///
/// # Errors
/// What the kernel says.
pub fn connect_data(
    server: SocketAddr,
    token: Token,
    channel: u16,
    settings: &TcpSettings,
) -> Result<TcpStream, TransportError> {
    let mut stream = TcpStream::connect_timeout(&server, settings.handshake)?;
    settings.apply_to_data(&stream)?;
    stream.write_all(&Preface::Data { token, channel }.encode())?;
    Ok(stream)
}

/// Takes a connection that a listener has accepted as what it says that it is. Control channels are
/// in TLS if there is a `tls`, and otherwise in clear; others are refused. It waits for the peer,
/// and so does not belong in the thread that accepts.
///
/// # Errors
/// If the peer does not speak the protocol or not in time, or is not accepted; and what the kernel
/// says.
pub fn accept(
    mut stream: TcpStream,
    tls: Option<&TlsServer>,
    settings: &TcpSettings,
) -> Result<Accepted, TransportError> {
    let end = Instant::now() + settings.handshake;
    let mut bytes = [0; PREFACE_LEN];
    read_until(&mut stream, &mut bytes, end, settings.handshake)?;
    match (Preface::decode(&bytes)?, tls) {
        (Preface::Data { token, channel }, _) => {
            settings.apply_to_data(&stream)?;
            Ok(Accepted::Data { token, channel, stream })
        }
        (Preface::Control { tls: true }, Some(tls)) => {
            settings.apply_to_control(&stream)?;
            let tls = tls.accept(&stream, end.saturating_duration_since(Instant::now()))?;
            Ok(Accepted::Control(Box::new(control(stream, Some(tls), settings)?)))
        }
        (Preface::Control { tls: false }, None) => {
            settings.apply_to_control(&stream)?;
            Ok(Accepted::Control(Box::new(control(stream, None, settings)?)))
        }
        (Preface::Control { tls: false }, Some(_)) => {
            Err(TransportError::Protocol("a control channel in clear"))
        }
        (Preface::Control { tls: true }, None) => {
            Err(TransportError::Protocol("a control channel in TLS, which this end has not"))
        }
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

/// Fills `bytes`, until some instant.
fn read_until(
    stream: &mut TcpStream,
    mut bytes: &mut [u8],
    end: Instant,
    time: Duration,
) -> Result<(), TransportError> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TransportError::Stalled(time));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(TransportError::Truncated),
            Ok(len) => bytes = &mut bytes[len..],
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock => {}
                _ => return Err(error.into()),
            },
        }
    }
    Ok(stream.set_read_timeout(None)?)
}
