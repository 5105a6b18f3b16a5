//! A network without threads and clocks, for tests: what happens next is drawn from a seed.
//!
//! Each connection keeps its order, as a reliable connection does. Everything else is arbitrary:
//! which connection goes on, when a completion shows, when an end learns that the connection is
//! made or lost.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_sys::{Lock, Region};

use super::{Event, Room};
use crate::watcher::Watched;

/// All hosts and connections of a simulation.
#[derive(Debug)]
pub(crate) struct Network {
    state: Lock<State>,
    watched: Lock<Vec<Weak<dyn Watched>>>,
    /// Never readable: nothing happens while a program sleeps.
    fd: OwnedFd,
}

/// A host of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Domain(Arc<Place>);

#[derive(Debug)]
struct Place {
    network: Arc<Network>,
    host: usize,
}

#[derive(Debug, Default)]
struct State {
    random: u64,
    steps: u64,
    /// The step at which a connection is lost.
    cut_at: Option<u64>,
    hosts: usize,
    /// The last number given to a key, a connection's end or a port.
    last: u32,
    memory: BTreeMap<u32, Registered>,
    ends: BTreeMap<u32, ConnectionEnd>,
    listeners: BTreeMap<(usize, u16), VecDeque<Call>>,
}

/// A request to connect: the end, its address, its private data.
#[derive(Debug)]
struct Call(u32, SocketAddr, Vec<u8>);

#[derive(Clone, Copy, Debug)]
struct Registered {
    host: usize,
    region: Region,
    access: Access,
}

/// How far a connection is at one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    New,
    Connected,
    Lost,
}

#[derive(Debug)]
struct ConnectionEnd {
    host: usize,
    peer: Option<u32>,
    phase: ConnectionPhase,
    room: (usize, usize),
    /// What is on the way to the peer.
    outgoing: VecDeque<Outgoing>,
    receives: VecDeque<(u64, Sge)>,
    /// Requests to send whose completions have not been taken.
    under_way: usize,
    /// Completions and events that do not show yet.
    hidden: VecDeque<Completion>,
    unheard: VecDeque<Event>,
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
}

#[derive(Debug)]
enum Outgoing {
    Request(Posted),
    /// A request to connect to a listener.
    Call(SocketAddr, Vec<u8>),
    /// That the connection is accepted.
    Answer(Vec<u8>),
    /// That it ends.
    Goodbye,
}

#[derive(Debug)]
struct Posted {
    id: u64,
    operation: Operation,
    is_reported: bool,
    pieces: SmallVec<[Sge; 2]>,
    /// The bytes of a request by value.
    value: Option<Vec<u8>>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Carry(u32),
    Show(u32),
    Tell(u32),
}

impl Network {
    pub(crate) fn new(seed: u64) -> Result<Arc<Self>, Errno> {
        let state = Lock::new(State { random: seed, ..State::default() });
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { state, watched: Lock::new(Vec::new()), fd }))
    }

    /// A new host.
    pub(crate) fn host(self: &Arc<Self>) -> Domain {
        let mut state = self.state.lock();
        state.hosts += 1;
        Domain(Arc::new(Place { network: Arc::clone(self), host: state.hosts }))
    }

    /// A number below `end`.
    pub(crate) fn draw(&self, end: usize) -> usize {
        self.state.lock().draw(end)
    }

    /// How much has happened.
    pub(crate) fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Loses a connection when so much has happened.
    pub(crate) fn cut_at(&self, step: u64) {
        self.state.lock().cut_at = Some(step);
    }

    /// Has something happen. Returns whether anything could.
    pub(crate) fn step(&self) -> bool {
        if !self.state.lock().step() {
            return false;
        }
        self.look();
        true
    }

    fn look(&self) {
        let all = {
            let mut watched = self.watched.lock();
            watched.retain(|watched| watched.strong_count() != 0);
            watched.clone()
        };
        all.iter().filter_map(Weak::upgrade).for_each(|watched| watched.readable());
    }
}

impl Domain {
    /// Whose host it is.
    pub(crate) fn network(&self) -> &Arc<Network> {
        &self.0.network
    }

    /// The address of the host.
    pub(crate) fn address(&self) -> IpAddr {
        address_of(self.0.host)
    }

    /// Kills all processes of the host.
    pub(crate) fn kill(&self) {
        let mut state = self.0.network.state.lock();
        state.memory.retain(|_, registered| registered.host != self.0.host);
        state.listeners.retain(|&(host, _), _| host != self.0.host);
        let ends = state.ends.iter().filter(|(_, end)| end.host == self.0.host);
        let ends: Vec<u32> = ends.map(|(&number, _)| number).collect();
        for number in ends {
            state.tear(number);
            state.remove(number);
        }
    }

    /// Calls it when something has happened that may concern it.
    pub(crate) fn watch<T: Watched + 'static>(&self, watched: &Arc<T>) {
        let weak: Weak<dyn Watched> = Weak::<T>::clone(&Arc::downgrade(watched));
        self.0.network.watched.lock().push(weak);
    }

    pub(super) fn register(&self, region: Region, access: Access) -> Registration {
        let mut state = self.0.network.state.lock();
        let key = state.number();
        state.memory.insert(key, Registered { host: self.0.host, region, access });
        Registration { key, network: Arc::clone(&self.0.network) }
    }

    pub(super) fn listen(&self, address: SocketAddr) -> Result<Listening, Errno> {
        let ip = address.ip();
        if !ip.is_unspecified() && !ip.is_loopback() && ip != self.address() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let mut state = self.0.network.state.lock();
        let port = match address.port() {
            // Less than 2^16 numbers are given in a test.
            0 => state.number() as u16,
            port => port,
        };
        if state.listeners.contains_key(&(self.0.host, port)) {
            return Err(Errno::ADDRINUSE);
        }
        state.listeners.insert((self.0.host, port), VecDeque::new());
        let ip = if ip.is_unspecified() { self.address() } else { ip };
        let (domain, address) = (self.clone(), SocketAddr::new(ip, port));
        Ok(Listening { domain, address })
    }

    pub(super) fn link(&self, peer: SocketAddr, room: &Room) -> SimulatedLink {
        SimulatedLink { number: self.add(None, room), domain: self.clone(), to: Some(peer) }
    }

    pub(super) fn answer(&self, mut caller: Caller, room: &Room) -> SimulatedLink {
        let peer = caller.number.take();
        SimulatedLink { number: self.add(peer, room), domain: self.clone(), to: None }
    }

    fn add(&self, peer: Option<u32>, room: &Room) -> u32 {
        let mut state = self.0.network.state.lock();
        let number = state.number();
        let end = ConnectionEnd {
            host: self.0.host,
            peer,
            phase: ConnectionPhase::New,
            room: (room.sends, room.receives),
            outgoing: VecDeque::new(),
            receives: VecDeque::new(),
            under_way: 0,
            hidden: VecDeque::new(),
            unheard: VecDeque::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
        };
        state.ends.insert(number, end);
        number
    }
}

fn address_of(host: usize) -> IpAddr {
    // Less than 256 hosts are in a test.
    Ipv4Addr::new(10, 0, 0, host as u8).into()
}

#[derive(Debug)]
pub(crate) struct Registration {
    key: u32,
    network: Arc<Network>,
}

impl Registration {
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn end(&self) {
        self.network.state.lock().memory.remove(&self.key);
    }
}

#[derive(Debug)]
pub(crate) struct Listening {
    domain: Domain,
    pub(super) address: SocketAddr,
}

impl Listening {
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.domain.0.network.fd.as_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        let mut state = self.domain.0.network.state.lock();
        let calls = state.listeners.get_mut(&(self.domain.0.host, self.address.port()))?;
        let Call(number, address, private_data) = calls.pop_front()?;
        let network = Arc::clone(&self.domain.0.network);
        let caller = Caller { number: Some(number), address, network };
        Some(Event::Called(super::Caller::Simulated(caller), private_data))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let at = (self.domain.0.host, self.address.port());
        let mut state = self.domain.0.network.state.lock();
        for Call(number, ..) in state.listeners.remove(&at).unwrap_or_default() {
            state.refuse(number, Event::Failed(Errno::CONNREFUSED));
        }
    }
}

/// A peer that wants to connect, until it has an answer.
#[derive(Debug)]
pub(crate) struct Caller {
    number: Option<u32>,
    address: SocketAddr,
    network: Arc<Network>,
}

impl Caller {
    pub(super) fn peer(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn refuse(mut self, private_data: &[u8]) {
        if let Some(number) = self.number.take() {
            let refused = Event::Refused { by_program: true, private_data: private_data.to_vec() };
            self.network.state.lock().refuse(number, refused);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            let refused = Event::Refused { by_program: true, private_data: Vec::new() };
            self.network.state.lock().refuse(number, refused);
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct SimulatedLink {
    number: u32,
    domain: Domain,
    /// The listener, if this end connects.
    to: Option<SocketAddr>,
}

impl SimulatedLink {
    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    fn with<T>(&self, work: impl FnOnce(&mut ConnectionEnd) -> T) -> Result<T, Errno> {
        let mut state = self.domain.0.network.state.lock();
        state.ends.get_mut(&self.number).map(work).ok_or(Errno::NOTCONN)
    }

    pub(super) fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        let to = self.to.ok_or(Errno::INVAL)?;
        let call = Outgoing::Call(to, private_data.to_vec());
        self.with(|end| end.outgoing.push_back(call))
    }

    pub(super) fn accept(&self, private_data: &[u8]) -> Result<(), Errno> {
        let mut state = self.domain.0.network.state.lock();
        let end = state.ends.get_mut(&self.number).ok_or(Errno::NOTCONN)?;
        if end.phase == ConnectionPhase::Lost {
            return Err(Errno::CONNRESET);
        }
        end.phase = ConnectionPhase::Connected;
        end.outgoing.push_back(Outgoing::Answer(private_data.to_vec()));
        let peer = end.peer.ok_or(Errno::INVAL)?;
        let caller = state.ends.get_mut(&peer).ok_or(Errno::CONNRESET)?;
        caller.peer = Some(self.number);
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.domain.0.network.fd.as_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        self.with(|end| end.events.pop_front()).ok()?
    }

    pub(super) fn disconnect(&self) {
        // It fails if the connection is gone.
        let _ = self.with(|end| end.outgoing.push_back(Outgoing::Goodbye));
    }

    pub(super) fn destroy(&self) {
        self.domain.0.network.state.lock().remove(self.number);
    }

    pub(super) fn post_receive(&self, request: &RecvRequest<'_>) -> Result<(), Errno> {
        let [sge] = request.sges else { return Err(Errno::INVAL) };
        self.with(|end| {
            if end.receives.len() >= end.room.1 {
                return Err(Errno::NOMEM);
            } else {
                end.receives.push_back((request.wr_id, *sge));
            }
            Ok(())
        })?
    }

    pub(super) fn post(&self, request: &SendRequest<'_>) -> Result<(), Errno> {
        let (pieces, value) = match request.data {
            Data::Gather(pieces) => (SmallVec::from_slice(pieces), None),
            Data::Inline(bytes) => (SmallVec::new(), Some(bytes.concat())),
        };
        let (id, operation) = (request.wr_id, request.operation.clone());
        let is_reported = request.flags.contains(SendFlags::SIGNALED);
        self.with(|end| {
            if end.under_way >= end.room.0 {
                return Err(Errno::NOMEM);
            }
            end.under_way += 1;
            if end.phase == ConnectionPhase::Lost {
                end.hidden.push_back(completion(id, Status::WrFlushErr, 0));
                end.flush_receives();
            } else {
                let posted = Posted { id, operation, is_reported, pieces, value };
                end.outgoing.push_back(Outgoing::Request(posted));
            }
            Ok(())
        })?
    }

    pub(super) fn poll(&self, space: &mut [Completion]) -> usize {
        let taken = self.with(|end| {
            let mut count = 0;
            for place in space {
                let Some(completion) = end.completions.pop_front() else { break };
                end.under_way -= usize::from(completion.opcode == Opcode::Send);
                *place = completion;
                count += 1;
            }
            count
        });
        taken.unwrap_or(0)
    }
}

impl ConnectionEnd {
    fn flush_receives(&mut self) {
        for (id, _) in std::mem::take(&mut self.receives) {
            self.hidden.push_back(received(id, Status::WrFlushErr, 0));
        }
    }

    /// Whether its next event can come. The end of a connection comes after the completions of what
    /// the peer had sent and acknowledged before, as with all transports.
    fn has_news(&self) -> bool {
        match self.unheard.front() {
            Some(Event::Disconnected) => {
                self.hidden.iter().all(|completion| completion.status != Status::Success)
            }
            other => other.is_some(),
        }
    }
}

/// The completion of a request to send.
fn completion(id: u64, status: Status, len: u32) -> Completion {
    let mut completion = Completion::new(id, status, Opcode::Send, 0);
    completion.byte_len = len;
    completion
}

/// The completion of a receive.
fn received(id: u64, status: Status, len: u32) -> Completion {
    let mut completion = Completion::new(id, status, Opcode::Recv, 0);
    completion.byte_len = len;
    completion
}

impl State {
    /// The next number of the seed (splitmix64), below `end`.
    fn draw(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }

    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn step(&mut self) -> bool {
        let mut all: SmallVec<[Step; 16]> = SmallVec::new();
        for (&number, end) in &self.ends {
            if !end.outgoing.is_empty() {
                all.push(Step::Carry(number));
            }
            if !end.hidden.is_empty() {
                all.push(Step::Show(number));
            }
            if end.has_news() {
                all.push(Step::Tell(number));
            }
        }
        if all.is_empty() {
            return false;
        }
        self.steps += 1;
        if self.cut_at.is_some_and(|at| self.steps > at) {
            self.cut_at = None;
            self.cut();
        }
        match all[self.draw(all.len())] {
            Step::Carry(number) => self.carry(number),
            Step::Show(number) => {
                if let Some(end) = self.ends.get_mut(&number) {
                    end.completions.extend(end.hidden.pop_front());
                }
            }
            Step::Tell(number) => {
                if let Some(end) = self.ends.get_mut(&number) {
                    end.events.extend(end.unheard.pop_front());
                }
            }
        }
        true
    }

    /// Loses a connection.
    fn cut(&mut self) {
        let all: Vec<u32> = self.ends.keys().copied().collect();
        if !all.is_empty() {
            let number = all[self.draw(all.len())];
            self.tear(number);
            self.lose(number, Status::RetryExcErr);
        }
    }

    /// Puts a part of the Write that is on the way from an end into the peer's memory.
    fn tear(&mut self, number: u32) {
        let Some(end) = self.ends.get(&number) else { return };
        let Some(Outgoing::Request(posted)) = end.outgoing.front() else { return };
        let &Operation::Write { remote_addr, rkey, .. } = &posted.operation else { return };
        let bytes = self.gather(posted, end.host);
        let host = end.peer.and_then(|peer| self.ends.get(&peer)).map(|peer| peer.host);
        let len = self.draw(bytes.len() + 1);
        if let Some(host) = host
            && let Some(region) = self.remote(rkey, host, remote_addr, len, Access::REMOTE_WRITE)
        {
            region.copy_in(&bytes[..len]);
        }
    }

    /// Tells who calls that there will be no connection.
    fn refuse(&mut self, number: u32, why: Event) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.phase = ConnectionPhase::Lost;
            end.unheard.push_back(why);
        }
    }

    /// Removes an end.
    fn remove(&mut self, number: u32) {
        if let Some(end) = self.ends.remove(&number)
            && let Some(peer) = end.peer
        {
            self.lose_end(peer, Status::WrFlushErr);
        }
    }

    /// Loses a connection at both of its ends.
    fn lose(&mut self, number: u32, first: Status) {
        let peer = self.ends.get(&number).and_then(|end| end.peer);
        self.lose_end(number, first);
        if let Some(peer) = peer {
            self.lose_end(peer, Status::WrFlushErr);
        }
    }

    /// Loses a connection at one end. The first request that was under way has this status.
    fn lose_end(&mut self, number: u32, first: Status) {
        let is_noticed = self.draw(2) == 0;
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.phase == ConnectionPhase::Lost {
            return;
        }
        end.phase = ConnectionPhase::Lost;
        // A queue pair of which nothing is sent may stay as it is when the connection is lost.
        let is_noticed = !end.outgoing.is_empty() || is_noticed;
        let mut status = first;
        for outgoing in std::mem::take(&mut end.outgoing) {
            if let Outgoing::Request(posted) = outgoing {
                end.hidden.push_back(completion(posted.id, status, 0));
                status = Status::WrFlushErr;
            }
        }
        if is_noticed {
            end.flush_receives();
        }
        end.unheard.push_back(Event::Disconnected);
    }

    /// Brings the next thing of an end to its peer.
    fn carry(&mut self, number: u32) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        let (host, peer) = (end.host, end.peer);
        match end.outgoing.pop_front() {
            Some(Outgoing::Call(to, private_data)) => {
                let callee = match to.ip() {
                    ip if ip.is_loopback() => host,
                    ip => (1..=self.hosts).find(|&host| address_of(host) == ip).unwrap_or(0),
                };
                match self.listeners.get_mut(&(callee, to.port())) {
                    Some(calls) => {
                        let from = SocketAddr::new(address_of(host), number as u16);
                        calls.push_back(Call(number, from, private_data));
                    }
                    None => self.refuse(number, Event::Failed(Errno::CONNREFUSED)),
                }
            }
            Some(Outgoing::Answer(private_data)) => {
                let caller = peer.and_then(|peer| self.ends.get_mut(&peer));
                match caller.filter(|caller| caller.phase == ConnectionPhase::New) {
                    Some(caller) => {
                        caller.phase = ConnectionPhase::Connected;
                        caller.unheard.push_back(Event::Established(private_data));
                    }
                    None => self.lose_end(number, Status::WrFlushErr),
                }
            }
            Some(Outgoing::Goodbye) => self.lose(number, Status::WrFlushErr),
            Some(Outgoing::Request(posted)) => {
                let status = match peer {
                    Some(peer) => self.carry_out(&posted, host, peer),
                    None => Status::WrFlushErr,
                };
                let is_reported = posted.is_reported || status != Status::Success;
                if let Some(end) = self.ends.get_mut(&number) {
                    if is_reported {
                        end.hidden.push_back(completion(posted.id, status, 0));
                    } else {
                        end.under_way -= 1;
                    }
                }
                if status != Status::Success {
                    self.lose(number, Status::WrFlushErr);
                }
            }
            None => {}
        }
    }

    /// Carries out a request of a host at an end of another.
    fn carry_out(&mut self, posted: &Posted, host: usize, peer: u32) -> Status {
        let Some(its) = self.ends.get(&peer).map(|end| end.host) else {
            return Status::RetryExcErr;
        };
        match posted.operation {
            Operation::Send { .. } => self.deliver(peer, &self.gather(posted, host)),
            Operation::Write { remote_addr, rkey, .. } => {
                let bytes = self.gather(posted, host);
                let right = Access::REMOTE_WRITE;
                match self.remote(rkey, its, remote_addr, bytes.len(), right) {
                    Some(region) => region.copy_in(&bytes),
                    None => return Status::RemAccessErr,
                }
                Status::Success
            }
            Operation::Read { remote_addr, rkey } => {
                let len = posted.pieces.iter().map(|piece| piece.length as usize).sum();
                let source = self.remote(rkey, its, remote_addr, len, Access::REMOTE_READ);
                let Some(source) = source else { return Status::RemAccessErr };
                let mut bytes = vec![0; len];
                source.fill(&mut bytes);
                self.scatter(posted, host, &bytes)
            }
            Operation::FetchAdd { remote_addr, rkey, add } => {
                let change = |old: u64| old.wrapping_add(add);
                self.change(posted, host, self.word(rkey, its, remote_addr), change)
            }
            Operation::CompareSwap { remote_addr, rkey, compare, swap } => {
                let change = |old| if old == compare { swap } else { old };
                self.change(posted, host, self.word(rkey, its, remote_addr), change)
            }
            _ => Status::LocQpOpErr,
        }
    }

    /// Brings a message into the next receive of an end.
    fn deliver(&mut self, peer: u32, bytes: &[u8]) -> Status {
        let Some(end) = self.ends.get_mut(&peer) else { return Status::RetryExcErr };
        let Some((id, sge)) = end.receives.pop_front() else { return Status::RnrRetryExcErr };
        let host = end.host;
        let place = self.local(&sge, host).and_then(|region| region.part(0, bytes.len()));
        let Some(end) = self.ends.get_mut(&peer) else { return Status::RetryExcErr };
        let Some(place) = place else {
            end.hidden.push_back(received(id, Status::LocLenErr, 0));
            return Status::RemInvReqErr;
        };
        place.copy_in(bytes);
        end.hidden.push_back(received(id, Status::Success, bytes.len() as u32));
        Status::Success
    }

    fn word(&self, key: u32, host: usize, address: u64) -> Option<Region> {
        self.remote(key, host, address, size_of::<u64>(), Access::REMOTE_ATOMIC)
    }

    /// Changes eight bytes, and puts their old value into the memory of a request.
    fn change(
        &self,
        posted: &Posted,
        host: usize,
        word: Option<Region>,
        change: impl Fn(u64) -> u64,
    ) -> Status {
        match word.and_then(|word| word.update_u64(change)) {
            Some(old) => self.scatter(posted, host, &old.to_ne_bytes()),
            None => Status::RemAccessErr,
        }
    }

    /// The bytes of a request.
    fn gather(&self, posted: &Posted, host: usize) -> Vec<u8> {
        if let Some(value) = &posted.value {
            return value.clone();
        }
        let mut bytes = Vec::new();
        for piece in &posted.pieces {
            if let Some(region) = self.local(piece, host) {
                region.copy_out(&mut bytes);
            }
        }
        bytes
    }

    /// Fills the memory of a request.
    fn scatter(&self, posted: &Posted, host: usize, bytes: &[u8]) -> Status {
        let mut left = bytes;
        for piece in &posted.pieces {
            let (now, rest) = left.split_at(left.len().min(piece.length as usize));
            match self.local(piece, host) {
                Some(region) => region.copy_in(now),
                None => return Status::LocProtErr,
            }
            left = rest;
        }
        Status::Success
    }

    /// Memory that a host names by its own key.
    fn local(&self, piece: &Sge, host: usize) -> Option<Region> {
        let len = piece.length as usize;
        self.remote(piece.lkey, host, piece.addr, len, Access::empty())
    }

    /// Memory of a host; `None` if the key does not give the right to it.
    fn remote(
        &self,
        key: u32,
        host: usize,
        address: u64,
        len: usize,
        right: Access,
    ) -> Option<Region> {
        let registered = self.memory.get(&key)?;
        let is_allowed = registered.host == host && registered.access.contains(right);
        let offset = address.checked_sub(registered.region.addr() as u64).filter(|_| is_allowed)?;
        registered.region.part(usize::try_from(offset).ok()?, len)
    }
}
