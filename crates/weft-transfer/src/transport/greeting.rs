//! The preface of a connection, on any kind of socket.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::channel::TransportError;
use super::stream::wait_for;
use crate::limits::VERSION;
use crate::wire::{Kind, Mode, Preface};

/// Sends the preface of a connection. The ends agree on a version in their hellos.
///
/// # Errors
/// If a system call fails.
pub(super) fn greet(socket: impl AsFd, kind: Kind, mode: Mode) -> Result<(), TransportError> {
    let preface = Preface { version_min: VERSION, version_max: VERSION, kind, mode }.emit();
    send_few(socket, &preface)
}

/// Sends some bytes on a new socket, whose send buffer has room for them.
///
/// # Errors
/// If a system call fails.
pub(super) fn send_few(socket: impl AsFd, bytes: &[u8]) -> Result<(), TransportError> {
    let sent = send(socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    if sent == bytes.len() { Ok(()) } else { Err(TransportError::Truncated) }
}

/// Receives a preface, within a time.
///
/// # Errors
/// If no valid preface arrives in time.
pub(super) fn greeting(socket: impl AsFd, time: Duration) -> Result<Preface, TransportError> {
    Ok(Preface::parse(&receive_few(socket, time)?)?)
}

/// Receives the first bytes of a socket, within a time.
///
/// # Errors
/// If they do not arrive in time.
pub(super) fn receive_few<const N: usize>(
    socket: impl AsFd,
    time: Duration,
) -> Result<[u8; N], TransportError> {
    let end = Instant::now() + time;
    let mut bytes = [0; N];
    let mut done = 0;
    while done < bytes.len() {
        let left = end.saturating_duration_since(Instant::now());
        if !wait_for(socket.as_fd(), PollFlags::IN, Some(left))? {
            return Err(TransportError::Stalled(time));
        }
        match recv(&socket, &mut bytes[done..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(TransportError::Truncated),
            Ok((len, _)) => done += len,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(bytes)
}
