//! A relay between two TCP connections. It delays the stream in pieces as the seed says, and
//! forwards both kinds of end behind them.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

const NEVER: u64 = u64::MAX;

/// How a direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayEnd {
    Fin,
    Reset,
}

/// One direction of the relay.
#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<(u64, Vec<u8>)>,
    end: Option<(u64, RelayEnd)>,
    /// Nothing more is read from the sender, or delivered.
    is_over: bool,
    last: u64,
}

#[derive(Debug)]
pub(super) struct Relay {
    /// The sockets towards the two ends; `None` once that connection has been reset.
    sockets: [Option<TcpStream>; 2],
    pipes: [Pipe; 2],
}

impl Relay {
    /// Creates the relay, and the sockets of both ends.
    pub(super) fn new(listener: &TcpListener) -> (Self, [TcpStream; 2]) {
        let pairs = [(); 2].map(|()| {
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("accepts");
            let (accepted, _) = listener.accept().expect("connected");
            for socket in [&near, &accepted] {
                socket.set_nodelay(true).expect("a TCP socket");
            }
            accepted.set_nonblocking(true).expect("a socket");
            (near, accepted)
        });
        let [(one, near_one), (other, near_other)] = pairs;
        let sockets = [Some(near_one), Some(near_other)];
        (Self { sockets, pipes: Default::default() }, [one, other])
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        let due = |pipe: &Pipe| {
            let first = pipe.pieces.front().map(|(due, _)| *due);
            first
                .or_else(|| pipe.end.map(|(due, _)| due))
                .filter(|&due| !pipe.is_over && due != NEVER)
        };
        self.pipes.iter().filter_map(due).min()
    }

    /// Reads what the ends have sent, and delivers what is due.
    pub(super) fn advance(&mut self, now: u64, delay: u64, rng: &mut fastrand::Rng) {
        for side in 0..2 {
            self.take(side, now, delay, rng);
            self.deliver(side, now, rng);
        }
    }

    fn take(&mut self, side: usize, now: u64, delay: u64, rng: &mut fastrand::Rng) {
        let pipe = &mut self.pipes[side];
        let Some(socket) = self.sockets[side].as_mut() else { return };
        let mut bytes = [0; 8_192];
        while !pipe.is_over && pipe.end.is_none_or(|(_, end)| end == RelayEnd::Fin) {
            let due = pipe.last.max(now + rng.u64(..=delay));
            match socket.read(&mut bytes) {
                Ok(0) if pipe.end.is_some() => break,
                Ok(0) => pipe.end = Some((due, RelayEnd::Fin)),
                Ok(len) => pipe.pieces.push_back((due, bytes[..len].to_vec())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => pipe.end = Some((due, RelayEnd::Reset)),
            }
            pipe.last = due;
        }
    }

    fn deliver(&mut self, side: usize, now: u64, rng: &mut fastrand::Rng) {
        let [one, other] = &mut self.pipes;
        let (pipe, back) = if side == 0 { (one, other) } else { (other, one) };
        let Some(to) = self.sockets[1 - side].as_mut() else {
            pipe.is_over = true;
            pipe.pieces.clear();
            return;
        };
        while let Some((due, bytes)) = pipe.pieces.front_mut()
            && *due <= now
        {
            let len = if rng.u8(..4) == 0 { rng.usize(1..=bytes.len()) } else { bytes.len() };
            match to.write(&bytes[..len]) {
                Ok(sent) if sent == bytes.len() => drop(pipe.pieces.pop_front()),
                Ok(sent) => drop(bytes.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The kernel reports only once that the connection has gone.
                    pipe.pieces.clear();
                    back.end = Some((back.last.max(now), RelayEnd::Reset));
                }
            }
            if len != 0 && rng.u8(..4) == 0 {
                break;
            }
        }
        if pipe.pieces.is_empty()
            && let Some((due, end)) = pipe.end
            && due <= now
            && !pipe.is_over
        {
            match end {
                RelayEnd::Fin => {
                    // It fails if the connection has been reset.
                    let _ = to.shutdown(Shutdown::Write);
                    pipe.end = Some((NEVER, RelayEnd::Fin)); // It has been delivered.
                }
                RelayEnd::Reset => {
                    let _ = sockopt::set_socket_linger(&*to, Some(Duration::ZERO));
                    self.sockets[1 - side] = None;
                    pipe.is_over = true;
                }
            }
        }
    }
}
