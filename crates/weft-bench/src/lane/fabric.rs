//! Endpoints of `weft-fabric`, as a tool uses them: blocking calls, buffers that go and come back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fabric::limits::{MESSAGE_MAX, VALUE_MAX, WINDOW_MAX};
use weft_fabric::{
    Buffer, Connected, Endpoint, Fabric, Listener, Message, Options, Outcome, RemoteKey, Rights,
    SharedBuffer,
};

use super::{Arrival, Blocking, Lane};
use crate::limits::{INLINE_MAX, SILENCE_MAX};
use crate::plan::{Address, LaneSpec, Operation};

/// Bytes of the ticket in front of the key in a request's private data.
const TICKET_LEN: usize = 8;
/// Bytes that an atomic changes.
const WORD: usize = 8;

/// Endpoints that are not connected yet.
#[derive(Debug)]
pub(super) struct Opening {
    spec: LaneSpec,
    fabric: Fabric,
    listener: Option<Listener>,
    /// The memory that the peers read and write.
    shared: SharedBuffer,
}

impl Opening {
    pub(super) fn new(spec: &LaneSpec) -> Result<Self> {
        let longest = spec.receive_size.max(spec.send_size);
        let options = Options {
            window: (2 * spec.window).clamp(2, WINDOW_MAX),
            // What is longer is measured with one-sided operations.
            message_max: longest.min(MESSAGE_MAX),
            depth: spec.window + 1,
            ..Options::default()
        };
        let fabric = Fabric::open(options)?;
        let any = (spec.address, 0).into();
        let listener = spec.listens.then(|| fabric.listen(any)).transpose()?;
        let shared = fabric.alloc(longest.max(WORD))?.share(Rights::ALL, ..)?;
        Ok(Self { spec: spec.clone(), fabric, listener, shared })
    }

    /// Accepts a connection from each peer, in the order of their tickets.
    fn accept_all(&self, listener: &Listener) -> Result<Vec<Connection>> {
        let mut found: Vec<Option<Connection>> = Vec::new();
        found.resize_with(self.spec.connections, || None);
        while found.iter().any(Option::is_none) {
            let incoming = listener.accept().wait()?;
            let request = incoming.private_data().split_first_chunk::<TICKET_LEN>();
            let (ticket, key) = request.context("a peer without a ticket")?;
            let place = usize::try_from(u64::from_be_bytes(*ticket))?;
            let place = found.get_mut(place).context("a ticket of nobody")?;
            let key = RemoteKey::from_bytes(key).context("a peer without a key")?;
            let endpoint = incoming.accept(&self.shared.key().to_bytes())?;
            *place = Some(Connection::new(endpoint, key));
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn dial(&self, peer: &Address) -> Result<Connection> {
        let &Address::Inet { address, ticket } = peer else { bail!("the peer does not listen") };
        let request = [&ticket.to_be_bytes()[..], &self.shared.key().to_bytes()].concat();
        let connected = self.fabric.connect(address, &request)?.wait()?;
        let Connected { endpoint, private_data } = connected;
        let key = RemoteKey::from_bytes(&private_data).context("a peer without a key")?;
        Ok(Connection::new(endpoint, key))
    }
}

impl super::Opening for Opening {
    fn addresses(&self) -> Vec<Address> {
        let tickets = 0..self.spec.connections as u64;
        match &self.listener {
            Some(listener) => {
                let address = listener.address();
                tickets.map(|ticket| Address::Inet { address, ticket }).collect()
            }
            None => tickets.map(|_| Address::Dials).collect(),
        }
    }

    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>> {
        let connections = match &self.listener {
            Some(listener) => self.accept_all(listener)?,
            None => peers.iter().map(|peer| self.dial(peer)).collect::<Result<_>>()?,
        };
        ensure!(connections.len() == self.spec.connections, "connections are missing");
        let Self { spec, fabric, shared, .. } = *self;
        let small = vec![0; spec.send_size.min(INLINE_MAX)];
        let (buffers, next) = (Vec::new(), 0);
        Ok(Box::new(FabricLane {
            connections,
            buffers,
            small,
            ended: 0,
            next,
            spec,
            fabric,
            _shared: shared,
        }))
    }
}

/// A connection, and what is under way on it.
#[derive(Debug)]
struct Connection {
    endpoint: Endpoint,
    key: RemoteKey,
    under_way: VecDeque<UnderWay>,
}

impl Connection {
    fn new(endpoint: Endpoint, key: RemoteKey) -> Self {
        Self { endpoint, key, under_way: VecDeque::new() }
    }
}

/// An operation, by what comes back from it.
#[derive(Debug)]
enum UnderWay {
    Value(weft_fabric::Operation<()>),
    Buffer(weft_fabric::Operation<Buffer>),
    Word(weft_fabric::Operation<u64>),
}

impl UnderWay {
    /// Waits for its end, at most for the limit; returns whether it has come, and the buffer.
    fn end(&mut self, limit: Duration) -> Result<Option<Option<Buffer>>> {
        Ok(match self {
            Self::Value(operation) => outcome(operation, limit)?.map(|()| None),
            Self::Buffer(operation) => outcome(operation, limit)?.map(Some),
            Self::Word(operation) => outcome(operation, limit)?.map(|_| None),
        })
    }
}

/// What has become of an operation within the limit.
fn outcome<T: Outcome>(
    operation: &mut weft_fabric::Operation<T>,
    limit: Duration,
) -> weft_fabric::Result<Option<T>> {
    let is_waited_for = !limit.is_zero();
    let ended = if is_waited_for { operation.wait_for(limit) } else { operation.try_wait() };
    ended.transpose()
}

/// Connected endpoints.
#[derive(Debug)]
struct FabricLane {
    connections: Vec<Connection>,
    /// Buffers that are not under way.
    buffers: Vec<Buffer>,
    small: Vec<u8>,
    ended: u64,
    /// The connection to look at first.
    next: usize,
    spec: LaneSpec,
    fabric: Fabric,
    /// Peers use it until the end.
    _shared: SharedBuffer,
}

impl FabricLane {
    /// Takes the operations of a connection that have ended, the first ones first. It waits for the
    /// first one if it may block.
    fn take_ended(&mut self, connection: usize, blocking: Blocking) -> Result<()> {
        let mut limit = if blocking == Blocking::Wait { SILENCE_MAX } else { Duration::ZERO };
        let under_way = &mut self.connections[connection].under_way;
        while let Some(first) = under_way.front_mut() {
            let Some(buffer) = first.end(limit)? else {
                ensure!(limit.is_zero(), "no operation has ended for {SILENCE_MAX:?}");
                break;
            };
            under_way.pop_front();
            self.buffers.extend(buffer);
            self.ended += 1;
            limit = Duration::ZERO;
        }
        Ok(())
    }

    fn buffer(&mut self) -> Result<Buffer> {
        let len = self.spec.send_size.max(WORD);
        self.buffers.pop().map_or_else(|| Ok(self.fabric.alloc(len)?), Ok)
    }

    /// The next message that is there, of any connection.
    fn try_receive(&mut self) -> Result<Option<(usize, Message)>> {
        let count = self.connections.len();
        for turn in 0..count {
            let connection = (self.next + turn) % count;
            if let Some(message) = self.connections[connection].endpoint.receive().try_wait() {
                self.next = (connection + 1) % count;
                return Ok(Some((connection, message?)));
            }
        }
        Ok(None)
    }
}

impl Lane for FabricLane {
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool> {
        // Looking at what has ended costs more than sending: only when there is no room.
        if self.connections[connection].under_way.len() >= self.spec.window {
            self.take_ended(connection, blocking)?;
        }
        if self.connections[connection].under_way.len() >= self.spec.window {
            return Ok(false);
        }
        let len = self.spec.send_size;
        let is_small = len <= INLINE_MAX.min(VALUE_MAX);
        let needs_buffer = match operation {
            Operation::Send => !is_small,
            Operation::Write | Operation::Read => true,
            Operation::Atomic => false,
        };
        let buffer = (needs_buffer && !last).then(|| self.buffer()).transpose()?;
        let Connection { endpoint, key, under_way } = &mut self.connections[connection];
        under_way.push_back(match (operation, buffer) {
            _ if last => UnderWay::Value(endpoint.send(b"")?),
            (Operation::Write, Some(buffer)) => {
                UnderWay::Buffer(endpoint.write(buffer, ..len, key, 0)?)
            }
            (Operation::Read, Some(buffer)) => {
                UnderWay::Buffer(endpoint.read(buffer, ..len, key, 0)?)
            }
            (Operation::Atomic, _) => UnderWay::Word(endpoint.fetch_add(key, 0, 1)?),
            (_, Some(buffer)) => UnderWay::Buffer(endpoint.send_buffer(buffer, ..len)?),
            (_, None) => UnderWay::Value(endpoint.send(&self.small)?),
        });
        Ok(true)
    }

    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        let started = Instant::now();
        let (connection, message) = loop {
            let found = match (blocking, &self.connections[..]) {
                (Blocking::Wait, [only]) if !self.spec.poll => {
                    let message = only.endpoint.receive().wait_for(SILENCE_MAX);
                    message.transpose()?.map(|message| (0, message))
                }
                _ => self.try_receive()?,
            };
            match found {
                Some(found) => break found,
                None if blocking == Blocking::Now || started.elapsed() > SILENCE_MAX => {
                    return Ok(None);
                }
                None => self.wait()?,
            }
        };
        Ok(Some(Arrival { connection, messages: 1, last: message.is_empty() }))
    }

    fn flush(&mut self) -> Result<()> {
        for connection in 0..self.connections.len() {
            while !self.connections[connection].under_way.is_empty() {
                self.take_ended(connection, Blocking::Wait)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        if self.spec.poll {
            return Ok(());
        }
        for connection in &self.connections {
            if connection.endpoint.arm() {
                return Ok(());
            }
        }
        let endpoints = self.connections.iter().map(|connection| &connection.endpoint);
        let mut fds: Vec<_> =
            endpoints.clone().map(|endpoint| PollFd::new(endpoint, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: SILENCE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut fds, Some(&limit))?;
        endpoints.for_each(Endpoint::turn);
        Ok(())
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn transport(&self) -> (String, Option<String>) {
        let first = self.connections.first();
        (first.map_or("none", |connection| connection.endpoint.transport()).into(), None)
    }
}
