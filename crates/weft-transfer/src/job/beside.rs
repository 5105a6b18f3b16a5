//! Data channels by TCP beside a pipe. The acceptor listens at the address by which the remote
//! shell reached it, and the secret of the channels goes through the pipe, so only the two ends
//! have it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::agree::{FEATURE_BESIDE, ask_to_listen};
use super::connecting::{Channels, connect_channels};
use super::lines::{Connected, TcpLine};
use crate::end::{EndError, SinkChannel, SourceChannel};
use crate::limits::{BESIDE_ROUND_TRIPS, BESIDE_TIME_MAX, BESIDE_TIME_MIN};
use crate::secure::pipe::new_secret;
use crate::secure::{Cipher, Direction, PipeKeys, Secret, SecureError};
use crate::session::Connection;
use crate::transport::tcp::{
    BesideListener, TcpSettings, TcpSink, TcpSource, connect_beside, round_trip,
};
use crate::transport::{Control, TransportError};
use crate::wire::{ListenReply, Refusal, Terms};
use weft_sys::lock;

/// Which way the data of a copy by a remote shell goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataWay {
    /// By TCP if the other host can be reached, otherwise through the shell.
    Auto,
    /// By TCP; if that is not possible, the copy fails.
    Tcp,
    /// Through the shell.
    Shell,
}

/// The options of data channels beside a pipe.
#[derive(Clone, Debug)]
pub(super) struct BesideOptions {
    /// The most channels.
    pub channels: u16,
    /// Which way the data goes.
    pub way: DataWay,
    /// Whether the other end is certainly not this host.
    pub is_remote: bool,
    /// The settings of the channels.
    pub settings: TcpSettings,
}

/// The initiator's data channels beside a pipe.
pub(super) struct Beside {
    keys: PipeKeys,
    streams: VecDeque<TcpStream>,
    channels: u16,
    round_trip: Option<Duration>,
    settings: TcpSettings,
}

impl Beside {
    /// Asks the acceptor to listen, and connects data channels. Returns the reason if that is not
    /// possible.
    ///
    /// # Errors
    /// If the pipe fails, or the acceptor breaks the protocol.
    pub(super) fn connect(
        control: &dyn Control,
        connection: &mut Connection,
        epoch: Instant,
        terms: &Terms,
        options: &BesideOptions,
    ) -> Result<Result<Self, String>, EndError> {
        if terms.features & FEATURE_BESIDE == 0 {
            return Ok(Err("the other host's weft cannot do it".into()));
        }
        let asked = Instant::now();
        let (port, secret, address) = match ask_to_listen(control, connection, epoch)? {
            ListenReply::Accepted { port, secret, address } => (port, secret, address),
            ListenReply::Refused { text, .. } => return Ok(Err(text)),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return Err(EndError::Protocol("the address of a listener".into()));
        };
        // The other host chooses the address, and must not reach services of this one by it.
        if options.is_remote && (address.is_loopback() || address.is_unspecified()) {
            return Ok(Err(format!("the other host listens at {address} only")));
        }
        let time = asked.elapsed() * BESIDE_ROUND_TRIPS;
        let time = time.clamp(BESIDE_TIME_MIN, BESIDE_TIME_MAX);
        let (keys, settings) = (PipeKeys::new(&secret), options.settings.clone());
        let place = SocketAddr::new(address, port);
        let connect = |channel| connect_beside(place, channel, &keys, &settings, time);
        let most = terms.channels.min(options.channels);
        let Channels { streams, round_trip } = match connect_channels(most, &connect) {
            Ok(connected) => connected,
            Err(error) => return Ok(Err(format!("{place}: {error}"))),
        };
        let channels = u16::try_from(streams.len()).unwrap_or(u16::MAX);
        Ok(Ok(Self { keys, streams, channels, round_trip, settings }))
    }

    /// The round trip between the ends, if it is known.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// The number of channels.
    pub(super) fn channels(&self) -> u16 {
        self.channels
    }

    /// Returns the secrets of a session's blocks, outgoing and incoming.
    pub(super) fn secrets(
        &self,
        session: u32,
        cipher: Cipher,
    ) -> Result<(Secret, Secret), SecureError> {
        let secret = |direction| self.keys.block_secret(session, cipher, direction);
        Ok((secret(Direction::ToServer)?, secret(Direction::ToClient)?))
    }

    fn next(&mut self) -> Result<TcpStream, TransportError> {
        self.streams.pop_front().ok_or(TransportError::Closed)
    }

    /// Returns the next channel as the source's end.
    pub(super) fn source(&mut self) -> Result<SourceChannel, TransportError> {
        Ok(Box::new(TcpSource::new(self.next()?, &self.settings, true)?))
    }

    /// Returns the next channel as the sink's end.
    pub(super) fn sink(&mut self) -> Result<SinkChannel, TransportError> {
        Ok(Box::new(TcpSink::new(self.next()?, &self.settings)))
    }
}

/// The acceptor's data channels beside a pipe.
#[derive(Debug)]
pub(super) struct BesideAcceptor {
    /// The address by which the remote shell has reached this host.
    address: Option<IpAddr>,
    listener: Mutex<Option<BesideListener>>,
}

impl BesideAcceptor {
    pub(super) fn new(address: Option<IpAddr>) -> Self {
        Self { address, listener: Mutex::default() }
    }

    /// Begins to listen, and returns the answer for the initiator.
    pub(super) fn listen(&self) -> ListenReply {
        let refused = |text: String| ListenReply::Refused { refusal: Refusal::System, text };
        let Some(address) = self.address else {
            let text = "the remote shell does not name the address of its host (SSH_CONNECTION)";
            return refused(text.into());
        };
        let open = || {
            let secret = new_secret()?;
            let keys = PipeKeys::new(&secret);
            let listener = BesideListener::open(address, keys, TcpSettings::default())?;
            Ok::<_, TransportError>((secret, listener))
        };
        match open() {
            Ok((secret, listener)) => {
                let port = listener.port();
                *lock(&self.listener) = Some(listener);
                ListenReply::Accepted { port, secret, address: address.to_string() }
            }
            Err(error) => refused(format!("the other host cannot listen at {address}: {error}")),
        }
    }

    /// Closes the listener, and returns the channels that have connected, with the round trip
    /// between the ends; `None` if there was no listener.
    pub(super) fn close(&self) -> Option<Connected> {
        let (to, lines) = channel();
        let streams = lock(&self.listener).as_mut()?.close();
        let round_trip = streams.first().and_then(|(_, stream)| round_trip(stream));
        for (number, stream) in streams {
            let _ = to.send((number, Box::new(TcpLine(stream, TcpSettings::default())) as _));
        }
        Some((lines, round_trip))
    }

    /// Returns the secrets of a session's blocks, outgoing and incoming.
    pub(super) fn secrets(
        &self,
        session: u32,
        cipher: Cipher,
    ) -> Result<Option<(Secret, Secret)>, SecureError> {
        let listener = lock(&self.listener);
        let Some(listener) = &*listener else { return Ok(None) };
        let secret = |direction| listener.keys().block_secret(session, cipher, direction);
        Ok(Some((secret(Direction::ToClient)?, secret(Direction::ToServer)?)))
    }
}
