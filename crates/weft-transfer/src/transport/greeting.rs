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
    // The send buffer of a new socket has room for all 32 bytes.
    let sent = send(socket, &preface, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    if sent == preface.len() { Ok(()) } else { Err(TransportError::Truncated) }
}

/// Receives a preface, within a time.
///
/// # Errors
/// If no valid preface arrives in time.
pub(super) fn greeting(socket: impl AsFd, time: Duration) -> Result<Preface, TransportError> {
    let end = Instant::now() + time;
    let mut bytes = [0; Preface::LEN];
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
    Ok(Preface::parse(&bytes)?)
}
