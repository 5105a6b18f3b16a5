//! Reliable datagrams of the engine: one endpoint for all peers of a lane, without connections.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context as _, Result, bail, ensure};
use weft_engine::rd::{Buffer, Data, Endpoint, Event, Options, PeerAddress, Request, Status};

use super::queue_pair::Host;
use super::queued::Queued;
use super::{Arrival, Blocking, Lane};
use crate::limits::SILENCE_MAX;
use crate::memory::Memory;
use crate::plan::{Address, LaneSpec, Operation, Registration};

/// An endpoint without peers.
#[derive(Debug)]
pub(super) struct Opening {
    spec: LaneSpec,
    // Declared before the memory, so that it is dropped first.
    endpoint: Endpoint,
    /// A buffer of this side, and one for its peers.
    memory: Memory,
}

impl Opening {
    pub(super) fn new(spec: &LaneSpec) -> Result<Self> {
        let several = spec.connections > 1 && !spec.listens;
        ensure!(!several, "reliable datagrams have no connections to go through");
        let host = Host::open(spec.address)?;
        let size = spec.send_size.max(spec.receive_size);
        let memory = Memory::new(&host.pd, 2, size, Registration::Before)?;
        let local = (spec.address, 0).into();
        let endpoint = Endpoint::bind(&host.pd, local, 0, Options::default());
        let endpoint = endpoint.context("cannot bind an endpoint")?;
        Ok(Self { spec: spec.clone(), endpoint, memory })
    }
}

impl super::Opening for Opening {
    fn addresses(&self) -> Vec<Address> {
        let address = self.endpoint.address().socket;
        let (memory, key) = (self.memory.address(1), self.memory.key().unwrap_or(0));
        vec![Address::Endpoint { address, memory, key }; self.spec.connections]
    }

    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>> {
        let Self { spec, endpoint, memory } = *self;
        let (mut known, mut connections) = (Vec::new(), HashMap::new());
        for (connection, peer) in peers.iter().enumerate() {
            let &Address::Endpoint { address, memory, key } = peer else {
                bail!("the peer has no endpoint")
            };
            let address = PeerAddress { socket: address, endpoint: 0 };
            connections.insert(address, connection);
            known.push(DatagramPeer { address, memory, key, under_way: 0 });
        }
        let message = vec![0; spec.send_size].into();
        let arrivals = VecDeque::new();
        Ok(Box::new(Rd {
            spec,
            endpoint,
            memory,
            peers: known,
            connections,
            message,
            arrivals,
            ended: 0,
        }))
    }
}

#[derive(Debug)]
struct DatagramPeer {
    address: PeerAddress,
    memory: u64,
    key: u32,
    /// Number of requests that have not completed.
    under_way: usize,
}

/// An endpoint and its peers.
#[derive(Debug)]
struct Rd {
    spec: LaneSpec,
    endpoint: Endpoint,
    memory: Memory,
    peers: Vec<DatagramPeer>,
    connections: HashMap<PeerAddress, usize>,
    message: Box<[u8]>,
    arrivals: VecDeque<Arrival>,
    ended: u64,
}

impl Rd {
    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Received { from, bytes } => {
                // Messages of other senders are not part of the measurement.
                if let Some(&connection) = self.connections.get(&from) {
                    let last = bytes.is_empty();
                    self.arrivals.push_back(Arrival { connection, messages: 1, last });
                }
            }
            Event::Completed { id, status } => {
                ensure!(status == Status::Success, "a request failed: {status:?}");
                self.peers[usize::try_from(id)?].under_way -= 1;
                self.ended += 1;
            }
        }
        Ok(())
    }

    fn request(&self, connection: usize, operation: Operation, last: bool) -> Result<Request> {
        let &DatagramPeer { memory: addr, key, .. } = &self.peers[connection];
        let len = u32::try_from(self.spec.send_size)?;
        let own_key = self.memory.key().context("the memory is not registered")?;
        let own = Buffer { key: own_key, addr: self.memory.address(0), len };
        Ok(match operation {
            // An empty message is the last one; all others have bytes.
            Operation::Send if last => Request::Send(Box::default()),
            Operation::Send => Request::Send(self.message.clone()),
            Operation::Write => Request::Write { data: Data::Registered(own), key, addr },
            Operation::Read => Request::Read { into: own, key, addr },
            Operation::Atomic => bail!("atomics are not measured over reliable datagrams"),
        })
    }
}

impl Queued for Rd {
    fn take_next(&mut self) -> Result<bool> {
        let Some(event) = self.endpoint.poll() else { return Ok(false) };
        self.take(event).map(|()| true)
    }

    fn spins(&self) -> bool {
        self.spec.poll
    }

    fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    fn take_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }
}

impl Lane for Rd {
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool> {
        let has_room = |lane: &Self| lane.peers[connection].under_way < lane.spec.window;
        if !self.make_room(blocking, has_room)? {
            return Ok(false);
        }
        let request = self.request(connection, operation, last)?;
        let to = self.peers[connection].address;
        self.endpoint.post(to, connection as u64, request).context("cannot post")?;
        self.peers[connection].under_way += 1;
        Ok(true)
    }

    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>> {
        self.next_arrival(blocking)
    }

    fn flush(&mut self) -> Result<()> {
        self.wait_for_completions(|lane| lane.peers.iter().all(|peer| peer.under_way == 0))
    }

    fn wait(&mut self) -> Result<()> {
        if self.spec.poll {
            return Ok(());
        }
        match self.endpoint.wait(Some(SILENCE_MAX)).context("cannot wait")? {
            Some(event) => self.take(event),
            None => Ok(()),
        }
    }

    fn ended(&self) -> u64 {
        self.ended
    }

    fn transport(&self) -> (String, Option<String>) {
        ("udp".into(), None)
    }
}
