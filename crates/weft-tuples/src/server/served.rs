//! A connection with its socket.

use std::io::{ErrorKind, Read as _, Write as _};

use mio::Registry;

use super::socket::Socket;
use crate::access::Guard;
use crate::input::Input;
use crate::limits::{INPUT_LEN_MAX, OUTPUT_LEN_MAX};
use crate::model::{ClientId, Name, Now, Outcome, Refusal, Service, Ticket};
use crate::resp::{self, Roster};
use crate::wire::TailPlace;
use crate::{native, wire};

/// Which protocol the peer speaks. Its first byte says it.
#[derive(Debug)]
enum Protocol {
    Unknown,
    Redis(resp::Connection),
    Native(native::Connection),
}

/// The first bytes of an iWARP connection (RFC 5044 section 7.1.1). They would be the beginning of
/// a command that never ends, and the peer would wait for the answer.
const IWARP_REQUEST: &[u8] = b"MPA ID Req Frame";

#[derive(Debug)]
pub(super) struct Served {
    socket: Socket,
    input: Input,
    guard: Guard,
    protocol: Protocol,
    /// The socket may have bytes that were not received.
    pub(super) is_readable: bool,
    /// The peer sends nothing more: what is left has to be received up to the end.
    pub(super) is_closing: bool,
    /// The client that has made the connection its own.
    pub(super) entered: Option<ClientId>,
    /// The length of the output that tells of nothing but what is in the log. `None` for all of it.
    logged: Option<usize>,
    /// The peer is gone, or does not speak a protocol.
    pub(super) is_gone: bool,
}

impl Served {
    pub(super) fn new(socket: Socket, guard: Guard) -> Self {
        let (input, protocol) = (Input::default(), Protocol::Unknown);
        Self {
            socket,
            input,
            guard,
            protocol,
            is_readable: true,
            is_closing: false,
            entered: None,
            logged: None,
            is_gone: false,
        }
    }

    /// Whether it is a connection by the fabric, which has to be looked at.
    pub(super) fn is_by_fabric(&self) -> bool {
        matches!(self.socket, Socket::Fabric(_))
    }

    /// Whether the client has shown that it may use the server.
    pub(super) fn is_admitted(&self) -> bool {
        match &self.protocol {
            Protocol::Unknown => self.guard.is_open() && !self.socket.is_handshaking(),
            Protocol::Redis(it) => it.is_admitted(),
            Protocol::Native(it) => it.is_admitted(),
        }
    }

    /// Takes an event of a connection by the fabric.
    pub(super) fn take_event(&self) {
        if let Socket::Fabric(stream) = &self.socket {
            stream.turn();
        }
    }

    /// Looks at a connection by the fabric. Returns whether it has become readable, or can go on to
    /// write.
    pub(super) fn look(&mut self) -> bool {
        let Socket::Fabric(stream) = &mut self.socket else { return false };
        let has_input = !self.is_readable && stream.has_input();
        self.is_readable |= has_input;
        has_input | stream.may_go_on()
    }

    /// Has an event come when a connection by the fabric has news. Returns whether it may have some
    /// already: then it is looked at and armed again before the server sleeps.
    pub(super) fn arm(&self) -> bool {
        matches!(&self.socket, Socket::Fabric(stream) if stream.arm())
    }

    /// Has no more events come.
    pub(super) fn deregister(&self, registry: &Registry) {
        self.socket.deregister(registry);
    }

    /// Receives a bounded number of bytes, so that other connections have their turn.
    pub(super) fn receive(&mut self) {
        let mut left = INPUT_LEN_MAX;
        while self.may_receive() && left != 0 {
            let space = self.input.space();
            let room = space.len();
            match self.socket.read(space) {
                Ok(0) => self.is_gone = true,
                Ok(len) => {
                    self.input.received(len);
                    left = left.saturating_sub(len);
                    // A short read has emptied the socket; more bytes are a new event. The end may
                    // have been reported together with the bytes.
                    self.is_readable = len == room || self.is_closing;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                Err(_) => self.is_gone = true,
            }
        }
    }

    /// Whether there is something to receive, and a place for it.
    pub(super) fn may_receive(&self) -> bool {
        let is_able = !self.is_stopped() || self.input.bytes().len() < INPUT_LEN_MAX;
        self.is_readable && !self.is_gone && is_able
    }

    /// Whether it begins no more operations for now.
    fn is_stopped(&self) -> bool {
        let waits = matches!(&self.protocol, Protocol::Redis(it) if it.waiting().is_some());
        waits || self.output().len() >= self.output_len_max()
    }

    /// While the connection has this much output, it begins no more operations.
    fn output_len_max(&self) -> usize {
        match &self.protocol {
            Protocol::Redis(it) => it.output_len_max(),
            Protocol::Unknown | Protocol::Native(_) => OUTPUT_LEN_MAX,
        }
    }

    /// Does what the peer has asked for. Returns the operations that begin to wait.
    pub(super) fn handle(
        &mut self,
        now: Now,
        service: &mut Service,
        roster: &Roster,
    ) -> Vec<Ticket> {
        self.hold();
        self.recognise(now, roster);
        match &mut self.protocol {
            Protocol::Unknown => Vec::new(),
            Protocol::Redis(it) => {
                it.handle(now, &mut self.input, service.space()).into_iter().collect()
            }
            Protocol::Native(it) => it.handle(now, &mut self.input, service).unwrap_or_else(|_| {
                self.is_gone = true;
                Vec::new()
            }),
        }
    }

    /// Finds out which protocol the peer speaks, when there is a first byte.
    fn recognise(&mut self, now: Now, roster: &Roster) {
        if !matches!(self.protocol, Protocol::Unknown) {
            return;
        }
        // A peer of the fabric that has found no listener of it at this port.
        if self.input.bytes().starts_with(IWARP_REQUEST) {
            self.is_gone = true;
            return;
        }
        self.protocol = match self.input.bytes().first() {
            None => return,
            Some(&wire::FIRST) => Protocol::Native(native::Connection::new(self.guard.clone())),
            Some(_) => {
                let addresses = self.socket.addresses();
                Protocol::Redis(resp::Connection::new(now, roster, addresses, self.guard.clone()))
            }
        };
    }

    /// Refuses what the peer asks for, because another server is the leader.
    pub(super) fn refuse(
        &mut self,
        now: Now,
        service: &mut Service,
        roster: &Roster,
        leader: Option<&str>,
    ) {
        self.recognise(now, roster);
        match &mut self.protocol {
            Protocol::Unknown => {}
            Protocol::Redis(it) => it.refuse(now, &mut self.input, service.space(), leader),
            Protocol::Native(it) => {
                self.is_gone |= it.refuse(&mut self.input, leader).is_err();
            }
        }
    }

    /// Whether there is output that tells of what may not be on disk.
    pub(super) fn tells(&self) -> bool {
        self.logged.is_some_and(|len| self.output().len() > len)
    }

    /// Writes the outcome of an operation that has waited.
    pub(super) fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        self.hold();
        match &mut self.protocol {
            Protocol::Unknown => {}
            Protocol::Redis(it) => it.answer(ticket, outcome),
            Protocol::Native(it) => it.answer(ticket, outcome),
        }
    }

    /// Takes a request for a tail.
    pub(super) fn next_tail(&mut self) -> Option<(u64, Name)> {
        match &mut self.protocol {
            Protocol::Native(it) => it.next_tail(),
            Protocol::Unknown | Protocol::Redis(_) => None,
        }
    }

    pub(super) fn answer_tail(&mut self, number: u64, place: Option<TailPlace>) {
        if let Protocol::Native(it) = &mut self.protocol {
            it.answer_tail(number, place);
        }
    }

    /// Holds the bytes that are written from now on until the log is on disk.
    fn hold(&mut self) {
        let len = self.output().len();
        self.logged.get_or_insert(len);
    }

    /// Ends the connection because the log has failed, or because another server is the leader, and
    /// tells the peer if it waits for answers.
    pub(super) fn fail(&mut self, refusal: Refusal) {
        let len = self.output().len();
        let kept = self.logged.take().unwrap_or(len);
        match &mut self.protocol {
            Protocol::Unknown => {}
            Protocol::Redis(it) => it.fail(refusal, kept, kept < len),
            Protocol::Native(it) => it.fail(refusal, kept),
        }
        self.send();
    }

    fn output(&self) -> &[u8] {
        match &self.protocol {
            Protocol::Unknown => &[],
            Protocol::Redis(it) => it.output(),
            Protocol::Native(it) => it.output(),
        }
    }

    /// Sends what the socket takes, when all that it tells of is on disk. Returns whether the
    /// connection has begun no more operations because of its output, and can go on now.
    pub(super) fn send(&mut self) -> bool {
        self.logged = None;
        self.flush();
        let was_stopped = self.output().len() >= self.output_len_max();
        while !self.is_gone {
            let output = match &self.protocol {
                Protocol::Unknown => return false,
                Protocol::Redis(it) => it.output(),
                Protocol::Native(it) => it.output(),
            };
            if output.is_empty() {
                self.is_gone = self.is_ended() && self.is_sent();
                break;
            }
            match self.socket.write(output) {
                Ok(len) => match &mut self.protocol {
                    Protocol::Unknown => {}
                    Protocol::Redis(it) => it.sent(len),
                    Protocol::Native(it) => it.sent(len),
                },
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_gone = true,
            }
        }
        was_stopped && !self.is_gone && self.output().len() < self.output_len_max()
    }

    /// Sends what the socket has kept.
    fn flush(&mut self) {
        match self.socket.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => self.is_gone = true,
            _ => {}
        }
    }

    /// Whether closing the socket loses nothing that was sent.
    fn is_sent(&mut self) -> bool {
        match &mut self.socket {
            Socket::Tcp(_) | Socket::Unix(_) => true,
            Socket::Tls(stream) => stream.is_sent(),
            Socket::Fabric(stream) => stream.is_sent(),
        }
    }

    fn is_ended(&self) -> bool {
        match &self.protocol {
            Protocol::Unknown => false,
            Protocol::Redis(it) => it.is_ended(),
            Protocol::Native(it) => it.is_ended(),
        }
    }

    /// The client that is connected, if it speaks Weft's own protocol.
    pub(super) fn client(&self) -> Option<ClientId> {
        match &self.protocol {
            Protocol::Native(it) => it.client(),
            Protocol::Unknown | Protocol::Redis(_) => None,
        }
    }

    /// Ends the connection of a client that has another one.
    pub(super) fn replaced(&mut self) {
        if let Protocol::Native(it) = &mut self.protocol {
            it.replaced();
        }
        self.is_gone = true;
    }

    /// Takes back what waits, since the peer is gone.
    pub(super) fn leave(&mut self, now: Now, service: &mut Service) {
        match &mut self.protocol {
            Protocol::Unknown => {}
            Protocol::Redis(it) => it.leave(now, service.space()),
            Protocol::Native(it) => {
                if let Some(id) = it.client() {
                    service.leave(now, id);
                }
            }
        }
    }
}
