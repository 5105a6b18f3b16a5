//! Connects the copies of filters.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{Consumer, Place};
use crate::failure::Failure;
use crate::limits::{HELLO_TIME, SETUP_TIME, STRANGERS_MAX};
use crate::outputs::ConsumerLink;
use crate::wire::{HEADER_LEN, HELLO_LEN, Header, Hello, Kind, Token, VERSION, WireError};

/// Creates the socket at which producers arrive: those of this host, or also those of others.
pub(crate) fn listen(listens_to_hosts: bool) -> io::Result<TcpListener> {
    if !listens_to_hosts {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    }
    // The host may not support IPv6.
    let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0));
    both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
}

/// Connects to the copies of all consumers. They need not have accepted yet.
pub(crate) fn connect(
    consumers: &[Consumer],
    copy: u16,
    token: Token,
) -> Result<Vec<Vec<ConsumerLink>>, Failure> {
    let stream = |consumer: &Consumer| {
        let hello = Hello { input: consumer.input, copy, token }.encode();
        let link = |place: &Place| {
            let socket =
                TcpStream::connect((&place.host[..], place.port)).and_then(|mut socket| {
                    socket.set_nodelay(true)?;
                    socket.write_all(&hello)?;
                    Ok(socket)
                });
            let named = |error| {
                let Place { name, host, port } = place;
                Failure::Filter(format!("cannot connect to {name} at {host}:{port}: {error}"))
            };
            Ok(ConsumerLink::new(socket.map_err(named)?, place.name.clone()))
        };
        consumer.copies.iter().map(link).collect()
    };
    consumers.iter().map(stream).collect()
}

/// Reads the first answers of the consumers.
pub(crate) fn await_welcome(streams: &[Vec<ConsumerLink>]) -> Result<(), Failure> {
    for link in streams.iter().flatten() {
        let mut header = [0; HEADER_LEN];
        let result = link.socket.set_read_timeout(Some(SETUP_TIME));
        let result = result.and_then(|()| (&link.socket).read_exact(&mut header));
        let result = result.and_then(|()| link.socket.set_read_timeout(None));
        result.map_err(|error| Failure::lost(&link.peer, error))?;
        match Header::decode(header) {
            Ok(Header { kind: Kind::Welcome, unit, .. }) if unit == u32::from(VERSION) => {}
            Ok(Header { kind: Kind::Welcome, unit, .. }) => {
                return Err(Failure::lost(&link.peer, WireError::Version(unit)));
            }
            Ok(header) => {
                return Err(Failure::lost(&link.peer, WireError::Unexpected(header.kind)));
            }
            Err(error) => return Err(Failure::lost(&link.peer, error)),
        }
    }
    Ok(())
}

/// Accepts one connection of each copy of each producer. Ignores connections that do not know the
/// secret, and waits for none of them. Returns the connections with the names of the copies.
pub(crate) fn accept(
    listener: &TcpListener,
    inputs: &[Vec<String>],
    token: &Token,
) -> Result<Vec<(TcpStream, String)>, Failure> {
    let end = Instant::now() + SETUP_TIME;
    listener.set_nonblocking(true).map_err(Failure::filter)?;
    let mut found: Vec<Vec<Option<TcpStream>>> =
        inputs.iter().map(|copies| copies.iter().map(|_| None).collect()).collect();
    let mut missing: usize = inputs.iter().map(Vec::len).sum();
    let mut strangers: VecDeque<Stranger> = VecDeque::new();
    while missing > 0 {
        let now = Instant::now();
        if now >= end {
            let mut names = inputs.iter().flatten().zip(found.iter().flatten());
            let (name, _) = names.find(|(_, socket)| socket.is_none()).unzip();
            let name = name.map_or("", |name| name);
            return Err(Failure::Lost(format!("{name} has not connected in time")));
        }
        wait(listener, &strangers, end - now);
        for _ in 0..STRANGERS_MAX {
            let Ok((socket, _)) = listener.accept() else { break };
            if strangers.len() == STRANGERS_MAX {
                // A producer says at once which stream it is.
                strangers.pop_front();
            }
            strangers.extend(Stranger::new(socket));
        }
        for _ in 0..strangers.len() {
            let Some(mut stranger) = strangers.pop_front() else { break };
            match stranger.meet(token) {
                Ok(None) if Instant::now() < stranger.end => strangers.push_back(stranger),
                Ok(Some(hello)) => {
                    let slot = found.get_mut(usize::from(hello.input));
                    let slot = slot.and_then(|copies| copies.get_mut(usize::from(hello.copy)));
                    if let Some(slot @ None) = slot {
                        *slot = Some(stranger.socket);
                        missing -= 1;
                    }
                }
                _ => {}
            }
        }
    }
    let named = found.into_iter().flatten().flatten().zip(inputs.iter().flatten().cloned());
    Ok(named.collect())
}

/// Waits for a new connection, for bytes of one that is there, or until one is too late.
fn wait(listener: &TcpListener, strangers: &VecDeque<Stranger>, longest: Duration) {
    let now = Instant::now();
    let times = strangers.iter().map(|stranger| stranger.end.saturating_duration_since(now));
    let left = times.chain([longest]).min().unwrap_or(longest);
    let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(strangers.iter().map(|stranger| PollFd::new(&stranger.socket, PollFlags::IN)));
    // After a signal, no connection has new bytes.
    let _ = poll(&mut fds, Some(&time));
}

/// A connection that has not said which stream it is.
struct Stranger {
    socket: TcpStream,
    bytes: [u8; HELLO_LEN],
    filled: usize,
    /// It is dropped if it has not said it by then.
    end: Instant,
}

impl Stranger {
    fn new(socket: TcpStream) -> Option<Self> {
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, bytes: [0; HELLO_LEN], filled: 0, end: Instant::now() + HELLO_TIME })
    }

    /// Reads which stream it is, and answers. Returns `None` if bytes are missing.
    fn meet(&mut self, token: &Token) -> io::Result<Option<Hello>> {
        while self.filled < HELLO_LEN {
            match self.socket.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let hello = match Hello::decode(&self.bytes) {
            Ok(hello) if !hello.knows(token) => return Err(io::ErrorKind::PermissionDenied.into()),
            Err(WireError::Magic) => return Err(io::ErrorKind::InvalidData.into()),
            hello => hello,
        };
        // A producer of another version learns this version.
        let welcome = Header { kind: Kind::Welcome, unit: VERSION.into(), len: 0 };
        self.socket.set_nonblocking(false)?;
        self.socket.set_nodelay(true)?;
        self.socket.write_all(&welcome.encode())?;
        hello.map(Some).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_producers_that_know_the_secret_are_accepted() {
        let listener = listen(false).expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let token = [7; 16];
        let consumer = move |input| {
            let place = Place { name: "sink".into(), host: "127.0.0.1".into(), port };
            Consumer { input, copies: vec![place] }
        };
        let producers = thread::spawn(move || {
            let text = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            (&text).write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("room");
            let refused = connect(&[consumer(0)], 0, [8; 16]).expect("it listens");
            let unknown = connect(&[consumer(9)], 0, token).expect("it listens");
            let one = connect(&[consumer(0)], 1, token).expect("it listens");
            let all = connect(&[consumer(1), consumer(0)], 0, token).expect("it listens");
            await_welcome(&one).expect("welcome");
            await_welcome(&all).expect("welcome");
            assert!(await_welcome(&refused).is_err());
            drop(unknown);
        });
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let inputs = [names(&["a 1", "a 2"]), names(&["b"])];
        let accepted = accept(&listener, &inputs, &token).expect("all connect");
        let found: Vec<_> = accepted.iter().map(|(_, name)| &name[..]).collect();
        assert_eq!(found, ["a 1", "a 2", "b"]);
        producers.join().expect("no panic");
    }

    /// More silent connections than could be waited for one after the other.
    #[test]
    fn silent_strangers_do_not_keep_producers_out() {
        let listener = listen(false).expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let silent: Vec<_> = (0..STRANGERS_MAX + 8)
            .map(|_| {
                let socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                (&socket).write_all(b"weft").expect("room");
                socket
            })
            .collect();
        let token = [7; 16];
        let place = Place { name: "sink".into(), host: "127.0.0.1".into(), port };
        let consumer = Consumer { input: 0, copies: vec![place] };
        let streams = connect(&[consumer], 0, token).expect("it listens");
        let accepted = accept(&listener, &[vec!["a".to_owned()]], &token).expect("it connects");
        assert_eq!(accepted.len(), 1);
        await_welcome(&streams).expect("welcome");
        drop(silent);
    }
}
