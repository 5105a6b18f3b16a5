//! Connects the data channels of a copy: the first one alone, which shows how long the path is, and
//! then the others together.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::path;
use crate::transport::TransportError;
use crate::transport::tcp::round_trip;

/// Connected data channels, in the order of their numbers.
pub(super) struct Channels {
    pub(super) streams: VecDeque<TcpStream>,
    pub(super) round_trip: Option<Duration>,
}

/// Connects as many data channels as the path needs, `most` at most. `connect` connects the one
/// with a number.
///
/// # Errors
/// That of the first channel. If another one fails, those before it suffice.
pub(super) fn connect_channels(
    most: u16,
    connect: &(impl Fn(u16) -> Result<TcpStream, TransportError> + Sync),
) -> Result<Channels, TransportError> {
    let first = connect(0)?;
    let round_trip = round_trip(&first);
    let mut streams = VecDeque::from([first]);
    // Each of them takes some round trips.
    let others: Vec<_> = thread::scope(|scope| {
        let connecting: Vec<_> = (1..path::channels(round_trip).min(most))
            .map(|number| scope.spawn(move || connect(number)))
            .collect();
        connecting.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    // Their numbers have no gap.
    streams.extend(others.into_iter().map_while(|other| other.ok()?.ok()));
    Ok(Channels { streams, round_trip })
}
