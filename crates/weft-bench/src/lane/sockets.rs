//! Plain sockets, used as an efficient program would: one `send` for each message, one `recv` for
//! as much as there is, epoll for several sockets, and blocking calls where the lane may block.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::calls::{self, Epoll};
use super::shared::SharedConnection;
use super::{Arrival, Blocking, Deadline, Lane, Rotation};
use crate::limits::EVENTS_MAX;
use crate::limits::SILENCE_MAX;
use crate::plan::{LaneSpec, Operation, Over};

/// The least number of bytes that one `recv` asks a stream for, so that small messages share the
/// call.
const CHUNK_MIN: usize = 64 << 10;
/// First byte of a stream's last message; in all others it is 0.
const LAST: u8 = 1;

#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    /// The message that has not been sent completely.
    rest: Option<Rest>,
    /// Bytes of an incomplete message that have arrived.
    arrived: usize,
    /// Whether that message is the last one.
    ending: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    slot: usize,
    sent: usize,
    last: bool,
}

/// Connected sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    over: Over,
    poll: bool,
    connections: Vec<Connection>,
    receive_size: usize,
    outgoing: Buffers,
    last_message: Vec<u8>,
    /// Number of bytes that have been sent.
    sent: u64,
    incoming: Buffers,
    epoll: Epoll,
    /// Readable connections of the last wait.
    ready: Vec<usize>,
}

/// Buffers of one size, used in turn.
#[derive(Debug)]
struct Buffers {
    slots: Vec<Vec<u8>>,
    rotation: Rotation,
}

impl Buffers {
    fn new(spec: &LaneSpec, size: usize) -> Self {
        let slots = (0..spec.slots).map(|_| vec![0; size]).collect();
        Self { slots, rotation: Rotation::new(spec.reuse, spec.slots) }
    }
}

impl Sockets {
    pub(super) fn new(spec: &LaneSpec, sockets: Vec<OwnedFd>) -> Result<Self> {
        let fresh = |fd| Connection { fd, rest: None, arrived: 0, ending: false };
        let connections: Vec<_> = sockets.into_iter().map(fresh).collect();
        let chunk = if spec.over != Over::UdpSockets && spec.slots == 1 {
            spec.receive_size.max(CHUNK_MIN)
        } else {
            spec.receive_size
        };
        let mut last_message = vec![0; spec.send_size];
        last_message[0] = LAST;
        let lane = Self {
            over: spec.over,
            poll: spec.poll,
            connections,
            receive_size: spec.receive_size,
            outgoing: Buffers::new(spec, spec.send_size),
            last_message,
            sent: 0,
            incoming: Buffers::new(spec, chunk),
            epoll: Epoll::new()?,
            ready: Vec::new(),
        };
        for (index, connection) in lane.connections.iter().enumerate() {
            lane.epoll.add(&connection.fd, index as u64)?;
            let limit = Some(lane.silence());
            for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
                sockopt::set_socket_timeout(&connection.fd, direction, limit)?;
            }
        }
        Ok(lane)
    }

    /// Continues to send the current message; returns `false` if some of it is left.
    fn push(&mut self, index: usize, may_block: bool) -> Result<bool> {
        let connection = &mut self.connections[index];
        let Some(rest) = &mut connection.rest else { return Ok(true) };
        let message = match rest.last {
            true if self.over == Over::UdpSockets => &[][..],
            true => &self.last_message[..],
            false => &self.outgoing.slots[rest.slot][..],
        };
        match calls::send(&connection.fd, &message[rest.sent..], may_block) {
            Ok(count) => {
                rest.sent += count;
                self.sent += count as u64;
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(false),
            // A datagram without a receiver counts as lost.
            Err(Errno::CONNREFUSED) if self.over == Over::UdpSockets => rest.sent = message.len(),
            Err(error) => return Err(error).context("cannot send"),
        }
        let done = rest.sent == message.len();
        if done {
            connection.rest = None;
        }
        Ok(done)
    }

    fn push_until_sent(&mut self, index: usize) -> Result<()> {
        let mut deadline = Deadline::new(SILENCE_MAX, self.poll);
        while !self.push(index, !self.poll)? {
            ensure!(!deadline.is_over(), "the peer does not read");
        }
        Ok(())
    }

    /// Receives with one `recv`; returns `Err(AGAIN)` if nothing has come (in time).
    fn pull(&mut self, index: usize, may_block: bool) -> Result<Result<Arrival, Errno>> {
        let slot = self.incoming.rotation.next();
        let buffer = &mut self.incoming.slots[slot][..];
        let connection = &mut self.connections[index];
        let count = match calls::recv(&connection.fd, buffer, may_block) {
            Ok(count) => count,
            Err(error @ (Errno::AGAIN | Errno::INTR)) => return Ok(Err(error)),
            Err(Errno::CONNREFUSED) if self.over == Over::UdpSockets => {
                return Ok(Err(Errno::AGAIN));
            }
            Err(error) => return Err(error).context("cannot receive"),
        };
        if self.over == Over::UdpSockets {
            return Ok(Ok(Arrival { connection: index, messages: 1, last: count == 0 }));
        }
        if count == 0 {
            bail!("the peer has closed the connection");
        }
        let messages = connection.advance(&buffer[..count], self.receive_size);
        let last = connection.ending && connection.arrived == 0;
        Ok(Ok(Arrival { connection: index, messages, last }))
    }

    /// Finds readable connections, and waits for some if `blocking` allows it.
    fn look(&mut self, blocking: Blocking) -> Result<()> {
        let may_block = blocking == Blocking::Wait && !self.poll;
        let timeout = if may_block { self.silence() } else { Duration::ZERO };
        match self.epoll.wait::<EVENTS_MAX>(timeout) {
            Ok(found) => self.ready.extend(found.filter_map(|index| usize::try_from(index).ok())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn receive_from_one(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        let may_block = blocking == Blocking::Wait && !self.poll;
        let mut deadline = Deadline::new(self.silence(), self.poll);
        loop {
            match self.pull(0, may_block)? {
                Ok(arrival) if arrival.messages != 0 => return Ok(Some(arrival)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) if blocking == Blocking::Now || may_block => return Ok(None),
                Err(_) if deadline.is_over() => return Ok(None),
                Err(_) => {}
            }
        }
    }
}

impl Connection {
    /// Notes a stream's next bytes, and returns how many messages they complete.
    fn advance(&mut self, bytes: &[u8], size: usize) -> u64 {
        let first = (size - self.arrived) % size;
        self.ending |= bytes.iter().skip(first).step_by(size).any(|&byte| byte == LAST);
        let all = self.arrived + bytes.len();
        self.arrived = all % size;
        (all / size) as u64
    }
}

impl Lane for Sockets {
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool> {
        ensure!(operation == Operation::Send, "sockets can only send");
        if blocking == Blocking::Wait {
            self.push_until_sent(connection)?;
        } else if !self.push(connection, false)? {
            return Ok(false);
        }
        let slot = self.outgoing.rotation.next();
        self.connections[connection].rest = Some(Rest { slot, sent: 0, last });
        if blocking == Blocking::Wait {
            self.push_until_sent(connection)?;
        } else {
            self.push(connection, false)?;
        }
        Ok(true)
    }

    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        if self.connections.len() == 1 {
            return self.receive_from_one(blocking);
        }
        let mut deadline = Deadline::new(self.silence(), self.poll);
        loop {
            while let Some(index) = self.ready.pop() {
                if let Ok(arrival) = self.pull(index, false)?
                    && arrival.messages != 0
                {
                    return Ok(Some(arrival));
                }
            }
            self.look(blocking)?;
            let gives_up = blocking == Blocking::Now || !self.poll || deadline.is_over();
            if self.ready.is_empty() && gives_up {
                return Ok(None);
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        (0..self.connections.len()).try_for_each(|index| self.push_until_sent(index))
    }

    fn wait(&mut self) -> Result<()> {
        if self.poll {
            return Ok(());
        }
        let pending = self.connections.iter().filter(|connection| connection.rest.is_some());
        let entry =
            |fd: BorrowedFd<'_>, events| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let out = pending.map(|connection| entry(connection.fd.as_fd(), libc::POLLOUT));
        let mut all: Vec<_> = out.collect();
        all.push(entry(self.epoll.as_fd(), libc::POLLIN));
        match calls::poll(&mut all, self.silence()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn ended(&self) -> u64 {
        0
    }

    fn transport(&self) -> (String, Option<String>) {
        let socket = &self.connections[0].fd;
        let name = match self.over {
            Over::UdpSockets => "udp",
            Over::UnixSockets => "unix",
            over if over.flow().is_some()
                && SharedConnection::of(socket).is_some_and(|shared| shared.is_in_memory()) =>
            {
                "shm"
            }
            _ => "tcp",
        };
        let congestion = self.over.is_tcp().then(|| sockopt::tcp_congestion(socket).ok());
        (name.into(), congestion.flatten())
    }

    fn buffers(&self) -> Option<[u64; 2]> {
        let socket = &self.connections[0].fd;
        let allotted = match self.over {
            Over::TcpSockets if self.sent > 0 => sockopt::socket_send_buffer_size(socket).ok()?,
            // The receiver's buffer holds what the peer sends.
            Over::TcpSockets => sockopt::socket_recv_buffer_size(socket).ok()?,
            over if over.flow().is_some() => {
                return Some([self.sent, SharedConnection::of(socket)?.allotted()]);
            }
            _ => return None,
        };
        Some([self.sent, allotted as u64])
    }

    fn touch(&mut self) {
        // All messages but the last begin with 0.
        for slot in &mut self.outgoing.slots {
            slot[1..].fill(self.sent as u8);
        }
    }

    fn is_lossy(&self) -> bool {
        self.over.is_lossy()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn connection() -> Connection {
        let fd = File::open("/dev/null").expect("a file").into();
        Connection { fd, rest: None, arrived: 0, ending: false }
    }

    #[test]
    fn messages_are_counted_for_any_split_of_the_stream() {
        let mut stream = [0; 40];
        stream[30] = LAST;
        stream[5] = LAST; // Not the first byte of a ten-byte message.
        for cut in 1..=40 {
            let mut connection = connection();
            let mut messages = 0;
            for part in stream.chunks(cut) {
                assert!(!connection.ending || connection.arrived != 0);
                messages += connection.advance(part, 10);
            }
            assert_eq!(messages, 4, "cut at {cut}");
            assert!(connection.ending && connection.arrived == 0, "cut at {cut}");
        }
    }
}
