//! Data channels between two servers, with a grant. Each end proves to the other one that it is the
//! server that the client has named, and that the client has approved the copy, before any data.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::socket::TcpSettings;
use crate::secure::grant::{Nonce, nonce};
use crate::secure::{GrantKeys, Identity};
use crate::transport::channel::TransportError;
use crate::transport::greeting::{greet, receive_few, send_few};
use crate::wire::{Kind, Mode};

/// The byte by which the destination's server says that it has taken a data channel.
const TAKEN: [u8; 1] = [1];

/// Connects the data channel with this number, as the source's server. Connecting and the proofs
/// take at most `time` each.
///
/// # Errors
/// If the other end does not answer in time, or is not the server of the grant.
pub fn connect_granted(
    server: SocketAddr,
    channel: u16,
    (keys, own): (&GrantKeys, &Identity),
    settings: &TcpSettings,
    time: Duration,
) -> Result<TcpStream, TransportError> {
    let stream = TcpStream::connect_timeout(&server, time)?;
    settings.apply_to_data(&stream)?;
    greet(&stream, Kind::Data { token: keys.token(channel)?, channel }, Mode::Clear)?;
    let initiator = nonce()?;
    send_few(&stream, &initiator)?;
    let proof = receive_few(&stream, time)?;
    send_few(&stream, &keys.prove_initiator(own, channel, &initiator, &proof)?)?;
    match receive_few(&stream, time)? {
        TAKEN => Ok(stream),
        _ => Err(TransportError::Protocol("a data channel was not taken")),
    }
}

/// Accepts the data channel with this number, as the destination's server, after its preface.
///
/// # Errors
/// If the other end does not answer in time, or is not the server of the grant.
pub fn accept_granted(
    stream: &TcpStream,
    channel: u16,
    (keys, own): (&GrantKeys, &Identity),
    time: Duration,
) -> Result<(), TransportError> {
    let initiator: Nonce = receive_few(stream, time)?;
    let (acceptor, proof) = keys.prove_acceptor(own, channel, &initiator)?;
    send_few(stream, &proof)?;
    let answer = receive_few(stream, time)?;
    Ok(keys.check_initiator(channel, [&initiator, &acceptor], &answer)?)
}

/// Tells the source's server that its data channel has been taken.
///
/// # Errors
/// If a system call fails.
pub fn confirm_granted(stream: &TcpStream) -> Result<(), TransportError> {
    send_few(stream, &TAKEN)
}
