//! Data channels over TCP beside a pipe. Each end proves to the other one that it has the secret
//! that went through the pipe: the initiator by the token in its preface, the acceptor by its
//! answer.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use super::socket::TcpSettings;
use crate::limits::{ACCEPT_PAUSE, CHANNELS_EACH_MAX, STRANGERS_MAX};
use crate::secure::PipeKeys;
use crate::transport::channel::TransportError;
use crate::transport::greeting::{greet, greeting, receive_few, send_few};
use crate::wire::{Kind, Mode, Preface};
use weft_sys::lock;

/// Connects the data channel with this number within `time`.
///
/// # Errors
/// If the listener does not answer in time, or is not the acceptor of the pipe.
pub fn connect_beside(
    listener: SocketAddr,
    channel: u16,
    keys: &PipeKeys,
    settings: &TcpSettings,
    time: Duration,
) -> Result<TcpStream, TransportError> {
    let stream = TcpStream::connect_timeout(&listener, time)?;
    settings.apply_to_data(&stream)?;
    greet(&stream, Kind::Data { token: keys.token(channel)?, channel }, Mode::Clear)?;
    let answer = receive_few(&stream, time)?;
    match keys.is_answer(channel, &answer) {
        true => Ok(stream),
        false => Err(TransportError::Protocol("another program answers there")),
    }
}

/// A listener for the data channels beside a pipe. It closes when it is dropped.
#[derive(Debug)]
pub struct BesideListener {
    shared: Arc<Beside>,
    address: SocketAddr,
    channels: Receiver<(u16, TcpStream)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Beside {
    listener: TcpListener,
    keys: PipeKeys,
    settings: TcpSettings,
    is_closed: AtomicBool,
    /// The channel numbers that have not connected. Each is accepted once.
    numbers: Mutex<BTreeSet<u16>>,
    /// The number of connections whose preface has not come.
    strangers: AtomicUsize,
}

impl BesideListener {
    /// Listens at an address, on a port that the system chooses.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn open(
        address: IpAddr,
        keys: PipeKeys,
        settings: TcpSettings,
    ) -> Result<Self, TransportError> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Beside {
            listener,
            keys,
            settings,
            is_closed: AtomicBool::new(false),
            numbers: Mutex::new((0..CHANNELS_EACH_MAX).collect()),
            strangers: AtomicUsize::new(0),
        });
        let (to, channels) = channel();
        let accepting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("listener".into());
        let thread = Some(thread.spawn(move || accepting.run(&to))?);
        Ok(Self { shared, address, channels, thread })
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the keys.
    #[must_use]
    pub fn keys(&self) -> &PipeKeys {
        &self.shared.keys
    }

    /// Closes the listener, and returns the data channels that have connected.
    #[must_use]
    pub fn close(&mut self) -> Vec<(u16, TcpStream)> {
        self.shared.is_closed.store(true, SeqCst);
        // This wakes the thread that accepts connections.
        let _ = shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
        self.channels.try_iter().collect()
    }
}

impl Drop for BesideListener {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl Beside {
    fn run(self: &Arc<Self>, to: &Sender<(u16, TcpStream)>) {
        while !self.is_closed.load(SeqCst) {
            let Ok((stream, _)) = self.listener.accept() else {
                if !self.is_closed.load(SeqCst) {
                    // The process is out of descriptors or memory.
                    thread::sleep(ACCEPT_PAUSE);
                }
                continue;
            };
            if self.strangers.fetch_add(1, SeqCst) >= STRANGERS_MAX {
                self.strangers.fetch_sub(1, SeqCst);
                continue;
            }
            let (shared, to) = (Arc::clone(self), to.clone());
            let thread = thread::Builder::new().name("stranger".into()).spawn(move || {
                // A stranger's connection is closed.
                let _ = shared.meet(stream, &to);
                shared.strangers.fetch_sub(1, SeqCst);
            });
            if thread.is_err() {
                self.strangers.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Accepts the connection if it is a data channel of the initiator.
    fn meet(&self, stream: TcpStream, to: &Sender<(u16, TcpStream)>) -> Result<(), TransportError> {
        let Preface { kind: Kind::Data { token, channel }, mode: Mode::Clear, .. } =
            greeting(&stream, self.settings.handshake)?
        else {
            return Err(TransportError::Protocol("not a data channel"));
        };
        if !self.keys.is_token(channel, &token) || !lock(&self.numbers).remove(&channel) {
            return Err(TransportError::Protocol("an unknown token, or a used number"));
        }
        self.settings.apply_to_data(&stream)?;
        let answering = stream.try_clone()?;
        // The initiator uses the channel as soon as it has the answer.
        let _ = to.send((channel, stream));
        send_few(&answering, &self.keys.answer(channel)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::Ipv4Addr;

    use super::*;
    use crate::secure::pipe::new_secret;
    use crate::wire::{PipeSecret, Token};

    const TIME: Duration = Duration::from_secs(240);

    fn open(settings: TcpSettings) -> (BesideListener, SocketAddr, PipeSecret) {
        let secret = new_secret().expect("random bytes");
        let address = Ipv4Addr::LOCALHOST.into();
        let listener = BesideListener::open(address, PipeKeys::new(&secret), settings);
        let listener = listener.expect("a port");
        let address = listener.address;
        (listener, address, secret)
    }

    fn connect(
        address: SocketAddr,
        channel: u16,
        secret: &PipeSecret,
    ) -> Result<TcpStream, TransportError> {
        let settings = TcpSettings::default();
        connect_beside(address, channel, &PipeKeys::new(secret), &settings, TIME)
    }

    /// Whether the other end has closed a connection.
    fn is_closed(mut stream: &TcpStream) -> bool {
        stream.set_read_timeout(Some(TIME)).expect("a socket");
        match stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn channels_with_the_secret_are_accepted_once_each() {
        let (mut listener, address, secret) = open(TcpSettings::default());
        let mut near = connect(address, 1, &secret).expect("a listener");
        let other = connect(address, 0, &secret).expect("a listener");
        assert!(connect(address, 1, &secret).is_err(), "used");
        assert!(connect(address, CHANNELS_EACH_MAX, &secret).is_err(), "beyond the limit");
        near.write_all(b"block").expect("a peer");
        let mut channels = listener.close();
        channels.sort_by_key(|(number, _)| *number);
        let numbers: Vec<u16> = channels.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1]);
        let mut came = [0; 5];
        channels[1].1.read_exact(&mut came).expect("a peer");
        assert_eq!(&came, b"block");
        drop(other);
    }

    #[test]
    fn strangers_are_closed_and_do_not_keep_out_the_initiator() {
        // The silent one is closed after this time, which the initiator must not need.
        let settings = TcpSettings { handshake: Duration::from_secs(3), ..settings() };
        let (mut listener, address, secret) = open(settings);
        // They come first: one says nothing, others what they have made up or seen elsewhere.
        let silent = TcpStream::connect(address).expect("a listener");
        let mut talker = TcpStream::connect(address).expect("a listener");
        talker.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n").expect("room");
        let guess = TcpStream::connect(address).expect("a listener");
        let kind = Kind::Data { token: Token([7; 16]), channel: 0 };
        greet(&guess, kind, Mode::Clear).expect("room");
        let control = TcpStream::connect(address).expect("a listener");
        greet(&control, Kind::Control, Mode::Clear).expect("room");
        // A token is of use for its own channel only.
        let keys = PipeKeys::new(&secret);
        let token = keys.token(1).expect("a token");
        let thief = TcpStream::connect(address).expect("a listener");
        greet(&thief, Kind::Data { token, channel: 0 }, Mode::Clear).expect("room");
        for stranger in [&silent, &talker, &guess, &control, &thief] {
            assert!(is_closed(stranger));
        }
        let near = connect(address, 0, &secret).expect("a listener");
        assert_eq!(listener.close().len(), 1);
        drop(near);
    }

    fn settings() -> TcpSettings {
        TcpSettings::default()
    }

    #[test]
    fn more_strangers_than_the_limit_are_closed_at_once() {
        // So long that the limit alone can have closed a connection.
        let settings = TcpSettings { handshake: Duration::from_secs(3_600), ..settings() };
        let (mut listener, address, _) = open(settings);
        let connect = |_| TcpStream::connect(address).expect("a listener");
        let strangers: Vec<TcpStream> = (0..=STRANGERS_MAX).map(connect).collect();
        assert!(is_closed(&strangers[STRANGERS_MAX]));
        assert!(listener.close().is_empty());
    }

    #[test]
    fn closed_listener_takes_no_connection() {
        let (mut listener, address, secret) = open(settings());
        assert!(listener.close().is_empty());
        assert!(connect(address, 0, &secret).is_err());
        drop(listener);
        let refused = TcpStream::connect(address).expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn other_program_at_the_address_is_not_used() {
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = other.local_addr().expect("a port");
        let secret = new_secret().expect("random bytes");
        let answering = thread::spawn(move || {
            let (mut stream, _) = other.accept().expect("a client");
            let mut preface = [0; Preface::LEN];
            stream.read_exact(&mut preface).expect("a client");
            // It sends back the token that it has got.
            stream.write_all(&preface[16..]).expect("a client");
        });
        let refused = connect(address, 0, &secret).expect_err("a stranger");
        assert!(matches!(refused, TransportError::Protocol(_)), "{refused}");
        answering.join().expect("no panic");
    }
}
