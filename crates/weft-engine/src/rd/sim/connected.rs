//! A seeded simulation of connections: ports whose programs connect, accept and refuse, send as
//! many messages as the peer has receives, write, add to words, ask for what they may not have,
//! close, and are killed, over a network that loses, repeats, damages and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;
use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{CRC_LEN, HEADER_LEN, Kind, parse, seal};
use weft_wire::rdmap::Opcode;

use super::host::{self, BASE, LEN, OPEN, PRIVATE, Ram, word};
use super::net::Net;
use super::setup::Setup;
use crate::Errno;
use crate::rd::connections::{Call, Change, Connections, LISTENER, Room, Wakeup};
use crate::rd::limits::IDLE;
use crate::rd::machine::Machine;
use crate::rd::request::PeerAddress;
use crate::rd::shared::Settings;
use crate::wc::{Completion, Opcode as WcOpcode, Status};
use crate::wr::{Data, Operation, SendFlags, SendRequest, Sge};

const SEEDS: u64 = 60;
const MUTATED_SEEDS: u64 = 12;
const MUTATED_MIN: usize = 2;
/// Receives that an end posts; the peer sends no more than there are.
const WINDOW: usize = 4;
const MESSAGE: usize = 700;
/// Bytes of a host for one end: its receives, what it sends, and the word that its peer adds to.
const AREA: usize = 8 << 10;
const SOURCE: usize = 4 << 10;
const TARGET: usize = 6 << 10;
const WORD: usize = AREA - 8;
/// Time after which a process that is gone is noticed, on all these paths.
const NOTICED: u64 = 20_000_000;
const TIME_MAX: u64 = 3_600_000_000;
const STEPS_MAX: usize = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// A message comes again, because the receiver forgets that it had it.
    RepeatedMessage,
    /// A byte of a message changes.
    WrongMessage,
    /// An atomic is carried out twice.
    RepeatedAtomic,
    LostCompletion,
    LostMessage,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    /// The host `from` answers `to` that nobody takes what began so.
    Refusal {
        from: usize,
        to: usize,
        quote: Vec<u8>,
    },
    /// A process starts where one was killed at a time.
    Start {
        host: usize,
        killed_at: u64,
    },
    Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Calling,
    Open,
    Over,
}

/// What an end has posted, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Message,
    /// A Write of this byte to the peer's area.
    Write(u8),
    /// One is added to this field of the peer's word.
    Add(u32),
    Wrong,
}

/// A program's end of a connection.
#[derive(Debug)]
struct Side {
    host: usize,
    incarnation: u32,
    number: u32,
    stage: Stage,
    area: usize,
    /// The other side, once both are there.
    peer: Option<usize>,
    posted: BTreeMap<u64, Posted>,
    next: u64,
    /// Receives that the peer can use, and messages that came.
    room: usize,
    sent: u32,
    received: u32,
    written: u8,
    added: u32,
    /// Fields of the peer's word to which one was added for certain.
    sure: u64,
    /// Whether this side has closed in order, and how many messages it had sent.
    closed: Option<u32>,
    is_wrong: bool,
}

struct Place {
    machine: Machine,
    connections: Connections,
    ram: Ram,
    incarnation: u32,
    calls: VecDeque<(Call, usize)>,
    areas: usize,
    /// Whether there is no process.
    is_dead: bool,
}

struct World {
    rng: fastrand::Rng,
    setup: Setup,
    now: u64,
    places: Vec<Place>,
    net: Net,
    sides: Vec<Side>,
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    serial: u64,
    acts: usize,
    mutation: Option<Mutation>,
    mutated: bool,
    /// Whether hosts are killed in this run.
    kills: bool,
    killed: bool,
    ended: usize,
    messages: usize,
}

type Check = Result<(), String>;

fn place(setup: &Setup, rng: &mut fastrand::Rng, incarnation: u32) -> Place {
    let settings = Settings {
        endpoint: LISTENER,
        datagram_len: setup.datagram_len,
        peers_max: crate::rd::limits::PEERS_MAX,
        receive_bytes: setup.receive_bytes,
        connected: true,
    };
    let machine = Machine::new(settings, [rng.u64(..), rng.u64(..)]);
    let mut connections = Connections::default();
    connections.listen();
    let ram = Ram { bytes: vec![0; LEN], shadow: Vec::new() };
    Place {
        machine,
        connections,
        ram,
        incarnation,
        calls: VecDeque::new(),
        areas: 0,
        is_dead: false,
    }
}

fn message(side: usize, serial: u32) -> Vec<u8> {
    let len = 8 + (serial as usize * 37 + side * 11) % (MESSAGE - 8);
    let mut bytes = vec![(serial as u8).wrapping_mul(31) ^ side as u8; len];
    bytes[..4].copy_from_slice(&serial.to_be_bytes());
    bytes[4..8].copy_from_slice(&(side as u32).to_be_bytes());
    bytes
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = Setup { hosts: 3, ..Setup::new(&mut rng) };
        let places = (0..setup.hosts).map(|_| place(&setup, &mut rng, 0)).collect();
        Self {
            kills: mutation.is_none() && rng.u8(..3) == 0,
            rng,
            setup,
            now: 1,
            places,
            net: Net::default(),
            sides: Vec::new(),
            agenda: BinaryHeap::new(),
            serial: 0,
            acts: 150,
            mutation,
            mutated: false,
            killed: false,
            ended: 0,
            messages: 0,
        }
    }

    fn schedule(&mut self, at: u64, happening: Happening) {
        self.serial += 1;
        self.agenda.push(Reverse((at, self.serial, happening)));
    }

    fn run(&mut self) -> Check {
        self.schedule(self.now, Happening::Act);
        for _ in 0..STEPS_MAX {
            self.pump()?;
            let timers = self
                .places
                .iter()
                .flat_map(|place| [place.machine.next_timeout(), place.connections.next_timeout()]);
            let happening = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = timers.flatten().chain(happening).min() else {
                return self.check_at_rest();
            };
            self.now = self.now.max(next);
            if self.now > TIME_MAX {
                return Err("it does not come to rest".into());
            }
            for place in &mut self.places {
                place.machine.expire(self.now);
                place.connections.expire(self.now, &mut place.machine);
            }
            while let Some(Reverse((at, ..))) = self.agenda.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, happening))) = self.agenda.pop() else { break };
                match happening {
                    Happening::Arrival { from, to, bytes } => self.arrive(from, to, &bytes),
                    Happening::Refusal { from, to, quote } => self.refuse(from, to, &quote),
                    Happening::Start { host, killed_at } => self.start(host, killed_at)?,
                    Happening::Act => self.act()?,
                }
            }
        }
        Err("it does not come to rest".into())
    }

    // ---- Programs ----

    fn act(&mut self) -> Check {
        if self.acts == 0 {
            return self.leave_all();
        }
        self.acts -= 1;
        match self.rng.u8(..30) {
            0..=3 => self.call()?,
            4..=7 => self.answer()?,
            8 if self.kills => self.kill(),
            9 => self.close(),
            _ => {
                for _ in 0..self.rng.usize(1..=4) {
                    self.post()?;
                }
            }
        }
        let wait = if self.rng.u8(..40) == 0 { 20_000_000 } else { self.setup.gap };
        let wait = self.rng.u64(..=wait);
        self.schedule(self.now + wait, Happening::Act);
        Ok(())
    }

    /// Answers all calls, closes everything, and waits until all is over.
    fn leave_all(&mut self) -> Check {
        for host in 0..self.places.len() {
            let Place { connections, machine, calls, .. } = &mut self.places[host];
            for (call, _) in calls.drain(..) {
                connections.refuse(self.now, machine, call, true, b"late");
            }
            connections.stop_listening(self.now, machine);
        }
        let before = self.ended;
        for at in 0..self.sides.len() {
            if self.sides[at].stage != Stage::Over && self.is_alive(at) {
                self.close_side(at);
                self.ended += 1;
            }
        }
        if self.ended != before {
            self.schedule(self.now + 1_000_000, Happening::Act);
        }
        Ok(())
    }

    fn is_alive(&self, at: usize) -> bool {
        let side = &self.sides[at];
        self.places[side.host].incarnation == side.incarnation
    }

    fn area(&mut self, host: usize) -> Option<usize> {
        let place = &mut self.places[host];
        place.areas += 1;
        (place.areas * AREA <= LEN).then(|| (place.areas - 1) * AREA)
    }

    fn add_side(&mut self, host: usize, number: u32, area: usize, stage: Stage) -> usize {
        self.sides.push(Side {
            host,
            incarnation: self.places[host].incarnation,
            number,
            stage,
            area,
            peer: None,
            posted: BTreeMap::new(),
            next: 0,
            room: WINDOW,
            sent: 0,
            received: 0,
            written: 0,
            added: 0,
            sure: 0,
            closed: None,
            is_wrong: false,
        });
        let at = self.sides.len() - 1;
        for place in 0..WINDOW {
            self.post_receive(at, place);
        }
        at
    }

    fn post_receive(&mut self, at: usize, place: usize) {
        let Side { host, number, area, .. } = self.sides[at];
        let addr = BASE + (area + place * MESSAGE) as u64;
        let sge = Sge { addr, length: MESSAGE as u32, lkey: PRIVATE };
        let posted = self.places[host].connections.post_receive(number, place as u64, &[sge]);
        posted.expect("room for receives");
    }

    fn call(&mut self) -> Check {
        let from = self.rng.usize(..self.places.len());
        let to = (from + self.rng.usize(1..self.places.len())) % self.places.len();
        if self.places[from].is_dead {
            return Ok(());
        }
        let Some(area) = self.area(from) else { return Ok(()) };
        let peer = PeerAddress { socket: host::address(to).socket, endpoint: LISTENER };
        let room = Room { sends: 64, receives: WINDOW };
        let Place { machine, connections, .. } = &mut self.places[from];
        let number = connections.add(machine, peer, room).map_err(|errno| errno.to_string())?;
        let at = self.add_side(from, number, area, Stage::Calling);
        let Place { machine, connections, .. } = &mut self.places[from];
        let private = (at as u32).to_be_bytes();
        let called = connections.connect(self.now, machine, number, &private);
        called.map_err(|errno| errno.to_string())
    }

    fn answer(&mut self) -> Check {
        let host = self.rng.usize(..self.places.len());
        let Some((call, caller)) = self.places[host].calls.pop_front() else { return Ok(()) };
        let Place { machine, connections, .. } = &mut self.places[host];
        if self.rng.u8(..5) == 0 {
            connections.refuse(self.now, machine, call, true, b"no");
            return Ok(());
        }
        let room = Room { sends: 64, receives: WINDOW };
        let number = match connections.add_called(call, room) {
            Ok(number) => number,
            Err(Errno::CONNRESET) => return Ok(()),
            Err(errno) => return Err(format!("no end for a call: {errno}")),
        };
        let Some(area) = self.area(host) else {
            let Place { machine, connections, .. } = &mut self.places[host];
            connections.remove(self.now, machine, number);
            return Ok(());
        };
        let at = self.add_side(host, number, area, Stage::Open);
        let Place { machine, connections, .. } = &mut self.places[host];
        let accepted = connections.accept(self.now, machine, number, &(at as u32).to_be_bytes());
        accepted.map_err(|errno| errno.to_string())?;
        self.sides[at].peer = Some(caller);
        Ok(())
    }

    fn kill(&mut self) {
        let host = self.rng.usize(..self.places.len());
        if self.places[host].is_dead {
            return;
        }
        let incarnation = self.places[host].incarnation + 1;
        self.places[host] = place(&self.setup, &mut self.rng, incarnation);
        self.killed = true;
        if self.rng.bool() {
            self.places[host].is_dead = true;
            let start = Happening::Start { host, killed_at: self.now };
            let at = self.now + self.rng.u64(..=2 * NOTICED);
            self.schedule(at, start);
        }
        for side in self.sides.iter_mut().filter(|side| side.host == host) {
            side.stage = Stage::Over;
        }
    }

    /// Starts a process again. If none was there for long, everybody knows it.
    fn start(&mut self, host: usize, killed_at: u64) -> Check {
        self.places[host].is_dead = false;
        let is_known = self.now - killed_at >= NOTICED;
        for (at, side) in self.sides.iter().enumerate().filter(|_| is_known) {
            let is_open = side.stage == Stage::Open && self.is_alive(at);
            if is_open && side.peer.is_some_and(|peer| self.sides[peer].host == host) {
                let time = self.now - killed_at;
                return Err(format!("{at} does not notice in {time} that {host} is gone"));
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        let open: Vec<usize> = (0..self.sides.len())
            .filter(|&at| self.sides[at].stage == Stage::Open && self.is_alive(at))
            .collect();
        if !open.is_empty() {
            let at = self.rng.usize(..open.len());
            self.close_side(open[at]);
        }
    }

    fn close_side(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if side.closed.is_some() {
            return;
        }
        side.closed = Some(side.sent);
        let number = side.number;
        let Place { machine, connections, ram, .. } = &mut self.places[side.host];
        connections.disconnect(self.now, machine, ram, number);
    }

    fn post(&mut self) -> Check {
        let open: Vec<usize> = (0..self.sides.len())
            .filter(|&at| {
                let side = &self.sides[at];
                let is_open = side.stage == Stage::Open && side.closed.is_none();
                is_open && side.peer.is_some() && side.posted.len() < 32 && self.is_alive(at)
            })
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        let at = open[self.rng.usize(..open.len())];
        let peer_area = self.sides[self.sides[at].peer.expect("checked")].area;
        let remote = |offset: usize| BASE + (peer_area + offset) as u64;
        let side = &mut self.sides[at];
        let own = |offset: usize, len: usize| {
            let addr = BASE + (side.area + offset) as u64;
            Sge { addr, length: len as u32, lkey: PRIVATE }
        };
        let id = side.next;
        let mut value = Vec::new();
        let mut piece = [own(SOURCE, 8)];
        let (posted, operation) = match self.rng.u8(..12) {
            0..=5 if side.room == 0 => return Ok(()),
            0..=5 => {
                value = message(at, side.sent);
                side.sent += 1;
                side.room -= 1;
                (Posted::Message, Operation::Send { imm: None, invalidate: None })
            }
            6..=8 => {
                side.written = side.written.wrapping_add(1);
                value = vec![side.written; MESSAGE];
                let (remote_addr, rkey) = (remote(TARGET), OPEN);
                (Posted::Write(side.written), Operation::Write { remote_addr, rkey, imm: None })
            }
            9 | 10 if side.added < 32 => {
                let field = side.added;
                side.added += 1;
                piece = [own(SOURCE + 8 * field as usize, 8)];
                let (remote_addr, rkey, add) = (remote(WORD), OPEN, 1 << (2 * field));
                (Posted::Add(field), Operation::FetchAdd { remote_addr, rkey, add })
            }
            11 if self.rng.u8(..6) == 0 && self.mutation.is_none() => {
                side.is_wrong = true;
                let (remote_addr, rkey) = (remote(TARGET), PRIVATE);
                (Posted::Wrong, Operation::Read { remote_addr, rkey })
            }
            _ => return Ok(()),
        };
        side.next += 1;
        side.posted.insert(id, posted);
        let parts = [&value[..]];
        let is_value = matches!(posted, Posted::Message | Posted::Write(_));
        let data = if is_value { Data::Inline(&parts) } else { Data::Gather(&piece) };
        let request = SendRequest { wr_id: id, operation, flags: SendFlags::SIGNALED, data };
        let number = side.number;
        let Place { machine, connections, ram, .. } = &mut self.places[side.host];
        let result = connections.post(self.now, machine, ram, number, &request);
        result.map_err(|errno| format!("side {at} cannot post: {errno}"))
    }

    // ---- What happens ----

    fn refuse(&mut self, from: usize, to: usize, quote: &[u8]) {
        let Place { machine, connections, ram, .. } = &mut self.places[to];
        machine.refused(self.now, host::address(from).socket, quote);
        connections.run(self.now, machine, ram);
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        if self.places[to].is_dead {
            let quote = bytes[..bytes.len().min(HEADER_LEN)].to_vec();
            let at = self.now + self.setup.delay;
            return self.schedule(at, Happening::Refusal { from: to, to: from, quote });
        }
        let source = host::address(from).socket;
        let peer = parse(bytes)
            .map(|(header, _)| PeerAddress { socket: source, endpoint: header.source.endpoint });
        let Place { machine, connections, ram, .. } = &mut self.places[to];
        let before = peer.as_ref().ok().and_then(|peer| machine.receive_state(peer));
        machine.input(self.now, source, bytes, ram);
        let again = match self.mutation {
            Some(Mutation::RepeatedMessage) => is(bytes, Opcode::Send, Some(0)),
            Some(Mutation::RepeatedAtomic) => is(bytes, Opcode::AtomicRequest, None),
            _ => false,
        };
        if again
            && let Ok(peer) = peer
            && before.is_some()
            && machine.receive_state(&peer) != before
        {
            machine.set_receive_state(&peer, before);
            machine.input(self.now, source, bytes, ram);
            self.mutated = true;
        }
        connections.run(self.now, machine, ram);
    }

    fn pump(&mut self) -> Check {
        for host in 0..self.places.len() {
            let Place { machine, connections, ram, .. } = &mut self.places[host];
            connections.run(self.now, machine, ram);
            let wakeups: Vec<Wakeup> = connections.rung().collect();
            if wakeups.contains(&Wakeup::Calls) {
                while let Some((call, private)) = self.places[host].connections.next_call() {
                    let caller = private.try_into().map_err(|_| "foreign private data")?;
                    let caller = u32::from_be_bytes(caller) as usize;
                    self.places[host].calls.push_back((call, caller));
                }
            }
            self.take(host)?;
            loop {
                let Place { machine, ram, .. } = &mut self.places[host];
                let mut bytes = Vec::new();
                let Some(to) = machine.output(self.now, ram, &mut bytes) else { break };
                let to = host::number(&to).ok_or("no such host")?;
                self.depart(host, to, bytes);
            }
        }
        Ok(())
    }

    fn depart(&mut self, from: usize, to: usize, mut bytes: Vec<u8>) {
        let payload = HEADER_LEN + 18;
        match self.mutation {
            Some(Mutation::WrongMessage)
                if is(&bytes, Opcode::Send, Some(0)) && bytes.len() > payload + 9 + CRC_LEN =>
            {
                bytes.truncate(bytes.len() - CRC_LEN);
                *bytes.last_mut().expect("a payload") ^= 1;
                seal(&mut bytes);
                self.mutated = true;
            }
            _ => {}
        }
        let len = bytes.len() + 28;
        for at in self.net.send(&mut self.rng, &self.setup, self.now, (from, to), len) {
            let mut copy = bytes.clone();
            if self.rng.u32(..1000) < self.setup.damage {
                let at = self.rng.usize(..copy.len());
                copy[at] ^= 1 << self.rng.u32(..8);
            }
            self.schedule(at, Happening::Arrival { from, to, bytes: copy });
        }
    }

    /// Takes completions and changes of all ends of a host.
    fn take(&mut self, host: usize) -> Check {
        for at in 0..self.sides.len() {
            if self.sides[at].host != host || !self.is_alive(at) {
                continue;
            }
            let number = self.sides[at].number;
            if self.sides[at].stage == Stage::Calling
                && let (Some(change), _) = self.places[host].connections.change(number)
            {
                self.changed(at, &change)?;
            }
            let mut space = [Completion::new(0, Status::Success, WcOpcode::Send, 0); 8];
            loop {
                let count = self.places[host].connections.poll(number, &mut space);
                for completion in &space[..count] {
                    self.completed(at, completion)?;
                }
                if count == 0 {
                    break;
                }
            }
            while let (Some(change), _) = self.places[host].connections.change(number) {
                self.changed(at, &change)?;
            }
        }
        Ok(())
    }

    fn completed(&mut self, at: usize, completion: &Completion) -> Check {
        let Completion { wr_id, status, opcode, byte_len, .. } = *completion;
        let peer = self.sides[at].peer;
        let is_lost = match self.mutation {
            Some(Mutation::LostCompletion) => {
                let posted = self.sides[at].posted.get(&wr_id);
                opcode == WcOpcode::Send && matches!(posted, Some(Posted::Add(_)))
            }
            Some(Mutation::LostMessage) => opcode == WcOpcode::Recv,
            _ => false,
        };
        if is_lost && status == Status::Success && !std::mem::replace(&mut self.mutated, true) {
            return Ok(());
        }
        if opcode == WcOpcode::Recv {
            if status != Status::Success {
                return Ok(());
            }
            let Side { host, area, received, .. } = self.sides[at];
            let start = area + wr_id as usize * MESSAGE;
            let bytes = &self.places[host].ram.bytes[start..start + byte_len as usize];
            let from = match peer {
                Some(peer) => peer,
                // The answer came when this side had given up.
                None if self.sides[at].closed.is_some() => return Ok(()),
                None => return Err("a message before the connection is known".into()),
            };
            if bytes != message(from, received) {
                return Err(format!("message {received} of side {from} is not what was sent"));
            }
            self.messages += 1;
            self.sides[at].received += 1;
            self.sides[from].room += 1;
            self.post_receive(at, wr_id as usize);
            return Ok(());
        }
        let side = &mut self.sides[at];
        let posted =
            side.posted.remove(&wr_id).ok_or_else(|| format!("{wr_id} of {at} ends again"))?;
        if matches!(posted, Posted::Message | Posted::Write(_)) && status == Status::Success {
            let is_first =
                |(_, other): (&u64, &Posted)| matches!(other, Posted::Message | Posted::Write(_));
            let first = side.posted.iter().find(|&pair| is_first(pair)).map(|(&id, _)| id);
            if first.is_some_and(|first| first < wr_id) {
                return Err(format!("{wr_id} of {at} ends before {first:?}"));
            }
        }
        let wrong = side.is_wrong;
        match (posted, status) {
            (Posted::Wrong, Status::RemAccessErr | Status::WrFlushErr | Status::RetryExcErr) => {}
            (Posted::Wrong, _) => return Err(format!("{at} may not read, but: {status:?}")),
            (Posted::Write(value), Status::Success) => {
                let peer = peer.ok_or("no peer")?;
                let Side { host, area, .. } = self.sides[peer];
                let there = &self.places[host].ram.bytes[area + TARGET..][..MESSAGE];
                let later = |&byte: &u8| byte.wrapping_sub(value) < 128;
                if self.is_alive(peer) && !there.iter().all(later) {
                    return Err(format!("write {value} of {at} is not in place"));
                }
            }
            (Posted::Add(field), Status::Success) => {
                self.sides[at].sure |= 1 << (2 * field);
                let Side { host, area, .. } = self.sides[at];
                let old = area + SOURCE + 8 * field as usize;
                let old = word(&self.places[host].ram.bytes, old);
                if (old >> (2 * field)) & 3 != 0 {
                    return Err(format!("addition {field} of {at} is carried out twice: {old:#x}"));
                }
            }
            (_, Status::Success) => {}
            (_, Status::WrFlushErr) => {}
            (_, Status::RetryExcErr) if self.killed => {}
            // The peer has ended the connection because of what this side asked before.
            (_, Status::RemAccessErr) if wrong => {}
            (posted, status) => return Err(format!("{posted:?} of {at} fails: {status:?}")),
        }
        Ok(())
    }

    fn changed(&mut self, at: usize, change: &Change) -> Check {
        let before = self.sides[at].stage;
        match (change, before) {
            (Change::Established(private), Stage::Calling) => {
                let peer = private[..].try_into().map_err(|_| "foreign private data")?;
                let peer = u32::from_be_bytes(peer) as usize;
                if self.sides[peer].peer != Some(at) {
                    return Err(format!("{at} is connected with {peer}, which is not"));
                }
                self.sides[at].peer = Some(peer);
                self.sides[at].stage = Stage::Open;
            }
            (Change::Refused { .. } | Change::Failed(_), Stage::Calling)
            | (Change::Disconnected, Stage::Calling | Stage::Open) => {
                self.sides[at].stage = Stage::Over;
                self.check_end(at)?;
            }
            (change, stage) => return Err(format!("{at} in {stage:?} learns {change:?}")),
        }
        Ok(())
    }

    /// Checks what a side has when its connection has ended: all that a peer had sent before it
    /// closed, unless this side closed, too, or something failed.
    fn check_end(&mut self, at: usize) -> Check {
        let side = &self.sides[at];
        let Some(peer) = side.peer.map(|peer| &self.sides[peer]) else { return Ok(()) };
        let is_orderly = side.closed.is_none() && !side.is_wrong && !peer.is_wrong && !self.killed;
        if let Some(sent) = peer.closed.filter(|_| is_orderly)
            && side.received != sent
        {
            return Err(format!("{at} has {} of {sent} messages when it ends", side.received));
        }
        Ok(())
    }

    fn check_at_rest(&mut self) -> Check {
        for (at, side) in self.sides.iter().enumerate() {
            if side.stage != Stage::Over {
                return Err(format!("side {at} is {:?} for ever: {side:?}", side.stage));
            }
            if self.is_alive(at) && !side.posted.is_empty() {
                return Err(format!("requests of side {at} never end: {:?}", side.posted));
            }
            let Some(peer) = side.peer.filter(|&peer| self.is_alive(peer)) else { continue };
            let peer = &self.sides[peer];
            let value = word(&self.places[peer.host].ram.bytes, peer.area + WORD);
            if value & 0xaaaa_aaaa_aaaa_aaaa != 0 || value & side.sure != side.sure {
                let sure = side.sure;
                return Err(format!("an addition is carried out twice: {value:#x}, {sure:#x}"));
            }
        }
        for (host, place) in self.places.iter_mut().enumerate() {
            let Place { machine, connections, .. } = place;
            for side in self.sides.iter().filter(|side| side.host == host) {
                if side.incarnation == place.incarnation {
                    connections.remove(self.now, machine, side.number);
                }
            }
            // Nobody answers any more.
            while let Some(at) = machine.next_timeout() {
                machine.expire(at);
                self.now = self.now.max(at);
                let mut bytes = Vec::new();
                while machine.output(self.now, &mut place.ram, &mut bytes).is_some() {}
                connections.run(self.now, machine, &mut place.ram);
            }
            machine.sweep(self.now + 2 * IDLE);
            if !machine.is_clean() || !connections.is_clean() {
                return Err(format!("{host} does not let go: {machine:?} {connections:?}"));
            }
        }
        Ok(())
    }
}

/// Whether a datagram carries a segment with this opcode, and a frame of this kind.
fn is(datagram: &[u8], opcode: Opcode, kind: Option<u8>) -> bool {
    let Ok((header, body)) = parse(datagram) else { return false };
    let Ok((ddp, start)) = Ddp::parse(body) else { return false };
    let is_first = matches!(ddp, Ddp::Untagged { last: true, mo: 0, .. });
    header.kind == Kind::Data
        && is_first
        && Opcode::of(&ddp) == Ok(opcode)
        && kind.is_none_or(|kind| body.get(start) == Some(&kind))
}

fn run(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut world = World::new(seed, mutation);
    let wrong = world.run().err().map(|wrong| {
        format!("{wrong}\n{:?} at {}, {} messages", world.setup, world.now, world.messages)
    });
    Outcome { wrong, mutated: world.mutated }
}

#[test]
fn connections_keep_what_they_promise() {
    seeds::run(SEEDS, |seed| run(seed, None).wrong);
}

#[test]
fn every_mutation_of_connections_is_found() {
    let expected = [
        (Mutation::RepeatedMessage, "is not what was sent"),
        (Mutation::WrongMessage, "is not what was sent"),
        (Mutation::RepeatedAtomic, "carried out twice"),
        (Mutation::LostCompletion, "never end"),
        (Mutation::LostMessage, "is not what was sent"),
    ];
    for (mutation, reason) in expected {
        let run = |seed| run(seed, Some(mutation));
        mutations::found_in_most(mutation, reason, MUTATED_SEEDS, MUTATED_MIN, run);
    }
}
