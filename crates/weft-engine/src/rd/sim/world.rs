//! The simulated hosts, programs and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use weft_wire::ddp::{Header as Ddp, TAGGED_LEN};
use weft_wire::rd::{CRC_LEN, HEADER_LEN, Header, Kind, Reason, parse, seal};
use weft_wire::rdmap::Opcode;

use super::host::{self, BASE, Host, LEN, LIBRARY, OPEN, PRIVATE, READ_ONLY};
use super::net::Net;
use super::oracle::{Check, Effect, ID_LEN, Oracle};
use super::setup::Setup;
use crate::rd::limits::{GIVE_UP, IDLE};
use crate::rd::request::{AtomicOp, Buffer, Data, Event, Request};

/// A defect that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// A byte of a Send changes after its CRC was computed.
    CorruptPayload,
    /// An acknowledgement of datagrams that were lost.
    ForgedAcknowledgement,
    /// The receiver forgets that it has received a datagram.
    RepeatedMessage,
    /// The same for the request of an atomic.
    RepeatedAtomic,
    /// The value that an atomic found is another one.
    WrongOldValue,
    /// The receiver forgets a peer too early.
    ForgottenPeer,
    /// A byte of memory changes that no request wrote.
    WildWrite,
    /// A Write takes effect after a later one.
    OldWrite,
    DoubleCompletion,
    LostCompletion,
}

/// Longest simulated time of a run in microseconds; by then every request has ended or failed.
const TIME_MAX: u64 = 3_600_000_000;
/// Longest simulated time of a run with an injected defect, after which nothing may progress.
const MUTATED_TIME_MAX: u64 = 200_000_000;
/// Maximum number of steps of a run; more means a storm of datagrams.
const STEPS_MAX: usize = 2_000_000;
/// Maximum number of lines in a report.
const NOTES_MAX: usize = 100;
/// Bytes of the cell that one host's marks write.
const CELL: usize = 2_000;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    /// A program acts.
    Act,
    /// A program takes events again.
    Take,
}

pub(super) struct World {
    rng: fastrand::Rng,
    setup: Setup,
    now: u64,
    hosts: Vec<Host>,
    net: Net,
    oracle: Oracle,
    /// By time; the serial number keeps the order of simultaneous events.
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    serial: u64,
    next_id: u64,
    posts_left: usize,
    /// The cell and the last value of marks, by sender and receiver.
    cells: HashMap<(usize, usize), (usize, u8)>,
    /// The word of a host to which requests add, and how many do.
    words: HashMap<usize, (usize, u32)>,
    faults_left: usize,
    mutation: Option<Mutation>,
    mutated: bool,
    /// The bytes of the last Write, by host and offset.
    old_writes: HashMap<(usize, usize), Vec<u8>>,
    notes: VecDeque<String>,
    datagrams: usize,
}

impl World {
    pub(super) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut setup = Setup::new(&mut rng);
        if mutation.is_some() {
            // Without other faults every failure is due to the mutation.
            (setup.restarts, setup.partitions, setup.wrong) = (false, false, false);
        }
        let hosts = (0..setup.hosts).map(|host| Host::new(host, &setup, &mut rng)).collect();
        Self {
            rng,
            now: 1,
            hosts,
            net: Net::default(),
            oracle: Oracle::default(),
            agenda: BinaryHeap::new(),
            serial: 0,
            next_id: 0,
            posts_left: setup.posts,
            cells: HashMap::new(),
            words: HashMap::new(),
            faults_left: 3,
            mutation,
            mutated: false,
            old_writes: HashMap::new(),
            notes: VecDeque::new(),
            datagrams: 0,
            setup,
        }
    }

    pub(super) fn mutated(&self) -> bool {
        self.mutated
    }

    pub(super) fn report(&self) -> String {
        let mut report = format!(
            "{:?}\nat {} us: {} requests succeeded, {} failed, {} datagrams\n",
            self.setup, self.now, self.oracle.succeeded, self.oracle.failed, self.datagrams
        );
        for note in &self.notes {
            report.push_str(note);
            report.push('\n');
        }
        report
    }

    fn note(&mut self, note: impl FnOnce() -> String) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{:>12} {}", self.now, note()));
    }

    fn schedule(&mut self, at: u64, happening: Happening) {
        self.serial += 1;
        self.agenda.push(Reverse((at, self.serial, happening)));
    }

    pub(super) fn run(&mut self) -> Check {
        self.schedule(self.now, Happening::Act);
        for _ in 0..STEPS_MAX {
            self.pump()?;
            let timer = self.hosts.iter().filter_map(|host| host.machine.next_timeout()).min();
            let happening = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = timer.into_iter().chain(happening).min() else {
                self.oracle.check_at_rest(&self.hosts)?;
                return self.check_clean();
            };
            self.now = self.now.max(next);
            let limit = if self.mutated { MUTATED_TIME_MAX } else { TIME_MAX };
            if self.now > limit {
                return Err("it does not come to rest".into());
            }
            for host in &mut self.hosts {
                host.machine.expire(self.now);
            }
            while let Some(Reverse((at, ..))) = self.agenda.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, happening))) = self.agenda.pop() else { break };
                self.happen(happening)?;
            }
        }
        Err("it does not come to rest".into())
    }

    /// Checks that nothing is left of forgotten peers.
    fn check_clean(&mut self) -> Check {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            host.machine.sweep(self.now + 2 * IDLE);
            if !host.machine.is_clean() {
                return Err(format!("{number} does not let go: {:?}", host.machine));
            }
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Check {
        match happening {
            Happening::Arrival { from, to, bytes } => self.arrive(from, to, &bytes),
            Happening::Act => {
                self.act();
                Ok(())
            }
            Happening::Take => Ok(()),
        }
    }

    // ---- Programs ----

    fn act(&mut self) {
        if self.posts_left == 0 {
            return;
        }
        let mut wait = self.rng.u64(..=self.setup.gap);
        match self.rng.u8(..40) {
            0 if self.setup.pauses => wait += IDLE + GIVE_UP,
            1 if self.setup.partitions => self.partition(),
            2 if self.setup.restarts && self.faults_left > 0 => self.restart(),
            3 | 4 if self.setup.slow => {
                let host = self.rng.usize(..self.hosts.len());
                let until = self.now + self.rng.u64(..2_000_000);
                self.hosts[host].takes_from = until;
                self.schedule(until, Happening::Take);
            }
            _ => {
                for _ in 0..self.rng.usize(1..=4) {
                    self.post();
                }
            }
        }
        self.schedule(self.now + wait, Happening::Act);
    }

    fn partition(&mut self) {
        if self.faults_left == 0 {
            return;
        }
        self.faults_left -= 1;
        let (from, to) = self.pair();
        let length = self.rng.u64(1_000_000..2 * GIVE_UP);
        self.note(|| format!("cut from {from} to {to} for {length}"));
        self.oracle.cut.push((from, to));
        self.net.cut((from, to), self.now + length);
        if self.rng.bool() {
            self.net.cut((to, from), self.now + length);
        }
    }

    fn restart(&mut self) {
        self.faults_left -= 1;
        let host = self.rng.usize(..self.hosts.len());
        self.note(|| format!("{host} restarts"));
        self.hosts[host].restart(host, &self.setup, &mut self.rng);
        self.oracle.restarted(host);
        self.cells.retain(|&(from, _), _| from != host);
    }

    fn pair(&mut self) -> (usize, usize) {
        let from = self.rng.usize(..self.hosts.len());
        let other = self.rng.usize(..self.hosts.len() - 1);
        (from, if other >= from { other + 1 } else { other })
    }

    fn len(&mut self) -> usize {
        let max = if self.rng.u8(..4) == 0 { self.setup.len_max } else { 300 };
        self.rng.usize(..=max)
    }

    fn post(&mut self) {
        let (from, to) = self.pair();
        let len = self.len();
        let wrong = self.setup.wrong && self.rng.u8(..6) == 0;
        let (request, effect) = match self.rng.u8(..10) {
            _ if wrong => self.wrong(from, len),
            0..=2 => self.send(from, to, len),
            3 | 4 => self.write(to, len),
            5 => self.mark(from, to),
            6 | 7 => self.atomic(from, to),
            _ => self.read(from, to, len),
        };
        let id = self.next_id;
        self.next_id += 1;
        let posted = self.hosts[from].machine.post(self.now, host::address(to), id, request);
        self.note(|| format!("{from} posts {id} to {to}: {effect:?}").chars().take(90).collect());
        match posted {
            Ok(()) => {
                self.posts_left = self.posts_left.saturating_sub(1);
                self.oracle.posted(id, from, to, effect);
            }
            // Recently used peers may fill the table.
            Err(_) => self.note(|| format!("{id} is not taken: {posted:?}")),
        }
    }

    fn send(&mut self, from: usize, to: usize, len: usize) -> (Request, Effect) {
        let incarnations = (self.hosts[from].incarnation, self.hosts[to].incarnation);
        let (serial, bytes) = self.oracle.message(&mut self.rng, from, incarnations, to, len);
        (Request::Send(bytes.into()), Effect::Sent { serial })
    }

    fn write(&mut self, to: usize, len: usize) -> (Request, Effect) {
        let Some(at) = self.hosts[to].allocate(len) else { return self.nothing() };
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        let data = Data::Bytes(bytes.clone().into());
        let request = Request::Write { data, key: OPEN, addr: BASE + at as u64 };
        (request, Effect::Written { at, bytes })
    }

    fn nothing(&mut self) -> (Request, Effect) {
        let request = Request::Write { data: Data::Bytes(Box::default()), key: 0, addr: 0 };
        (request, Effect::Written { at: 0, bytes: Vec::new() })
    }

    /// Creates a Write to the cell that all marks of one host write.
    fn mark(&mut self, from: usize, to: usize) -> (Request, Effect) {
        if !self.cells.contains_key(&(from, to)) {
            let Some(at) = self.hosts[to].allocate(CELL) else { return self.nothing() };
            let ram = &mut self.hosts[to].ram;
            ram.bytes[at..at + CELL].fill(0);
            ram.shadow[at..at + CELL].fill(0);
            self.cells.insert((from, to), (at, 0));
        }
        let (at, value) = self.cells.get_mut(&(from, to)).expect("made above");
        *value += 1;
        let (at, value) = (*at, *value);
        let data = Data::Bytes(vec![value; CELL].into());
        let request = Request::Write { data, key: OPEN, addr: BASE + at as u64 };
        (request, Effect::Marked { at, len: CELL, value })
    }

    fn read(&mut self, from: usize, to: usize, len: usize) -> (Request, Effect) {
        let Some(at) = self.hosts[from].allocate(len) else { return self.nothing() };
        let source = self.rng.usize(..=LIBRARY - len);
        let bytes = self.hosts[to].ram.bytes[source..source + len].to_vec();
        let into = Buffer { key: PRIVATE, addr: BASE + at as u64, len: len as u32 };
        let request = Request::Read { into, key: READ_ONLY, addr: BASE + source as u64 };
        (request, Effect::Read { at, bytes })
    }

    fn atomic(&mut self, from: usize, to: usize) -> (Request, Effect) {
        let Some(old_at) = self.hosts[from].allocate(8) else { return self.nothing() };
        let into = Buffer { key: PRIVATE, addr: BASE + old_at as u64, len: 8 };
        let request = |at, op| Request::Atomic { op, into, key: OPEN, addr: BASE + at as u64 };
        if self.rng.bool() {
            let Some(at) = self.hosts[to].allocate_word() else { return self.nothing() };
            let value = self.rng.u64(1..);
            let op = AtomicOp::CmpSwap { swap: value, swap_mask: !0, compare: 0, compare_mask: !0 };
            return (request(at, op), Effect::Swapped { at, value, old_at });
        }
        let is_full = self.words.get(&to).is_none_or(|&(_, fields)| fields == 32);
        if is_full {
            let Some(at) = self.hosts[to].allocate_word() else { return self.nothing() };
            self.words.insert(to, (at, 0));
            self.oracle.adds_to(to, at);
        }
        let (at, fields) = self.words.get_mut(&to).expect("made above");
        let (at, field) = (*at, *fields);
        *fields += 1;
        let op = AtomicOp::FetchAdd { add: 1 << (2 * field), mask: 0 };
        (request(at, op), Effect::Added { at, field, old_at })
    }

    fn wrong(&mut self, from: usize, len: usize) -> (Request, Effect) {
        let len = len.max(1);
        let own = BASE + LIBRARY as u64;
        let (key, addr, reason) = match self.rng.u8(..4) {
            0 => (0xbad, BASE, Reason::Key),
            1 => (PRIVATE, BASE, Reason::Rights),
            2 => (OPEN, BASE + LEN as u64, Reason::Bounds),
            _ => (OPEN, u64::MAX, Reason::Bounds),
        };
        let into = Buffer { key: OPEN, addr: own, len: len as u32 };
        match self.rng.u8(..4) {
            0 => (Request::Read { into, key, addr }, Effect::Refused(reason)),
            1 => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                let into = Buffer { len: 8, ..into };
                (Request::Atomic { op, into, key, addr }, Effect::Refused(reason))
            }
            2 => {
                let data = Data::Bytes(vec![7; len].into());
                (Request::Write { data, key, addr }, Effect::Refused(reason))
            }
            _ => {
                let there = self.hosts[from].ram.bytes.len() as u64;
                let data =
                    Data::Registered(Buffer { key: OPEN, addr: BASE + there - 1, len: 2_000 });
                // Nothing is written, so any address will do.
                let request = Request::Write { data, key: OPEN, addr: BASE };
                (request, Effect::LocalFault(Reason::Bounds))
            }
        }
    }

    // ---- Network ----

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) -> Check {
        let host = &mut self.hosts[to];
        let source = host::address(from).socket;
        let before = host.machine.receive_state(&host::address(from));
        host.machine.input(self.now, source, bytes, &mut host.ram);
        if let Some(mutation) = self.mutation
            && let Ok((header, body)) = parse(bytes)
        {
            self.mutate_arrival(mutation, from, to, bytes, &header, body, before)?;
        }
        Ok(())
    }

    /// Sends everything that the hosts have to send, and delivers their events to the programs.
    fn pump(&mut self) -> Check {
        for number in 0..self.hosts.len() {
            loop {
                let host = &mut self.hosts[number];
                let mut bytes = Vec::new();
                let to = host.machine.output(self.now, &mut host.ram, &mut bytes);
                let Some(to) = to else { break };
                self.leave(number, &to, bytes)?;
            }
            while self.hosts[number].takes_from <= self.now
                && let Some(event) = self.hosts[number].machine.next_event(self.now)
            {
                self.tell(number, event)?;
            }
            // Taking events may have made room, which senders must be notified of.
            loop {
                let host = &mut self.hosts[number];
                let mut bytes = Vec::new();
                let to = host.machine.output(self.now, &mut host.ram, &mut bytes);
                let Some(to) = to else { break };
                self.leave(number, &to, bytes)?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, from: usize, to: &std::net::SocketAddr, mut bytes: Vec<u8>) -> Check {
        if bytes.len() > self.setup.datagram_len {
            return Err(format!("a datagram of {} bytes", bytes.len()));
        }
        let to = host::number(to).filter(|&to| to < self.hosts.len()).ok_or("no such host")?;
        let header = parse(&bytes).map_err(|error| format!("{from} sends {error}"))?.0;
        self.datagrams += 1;
        self.note(|| describe(from, to, &header, bytes.len()));
        self.mutate_departure(from, to, &header, &mut bytes);
        let len = bytes.len() + 28;
        let arrivals = self.net.send(&mut self.rng, &self.setup, self.now, (from, to), len);
        for at in arrivals {
            let mut copy = bytes.clone();
            if self.rng.u32(..1000) < self.setup.damage {
                let at = self.rng.usize(..copy.len());
                copy[at] ^= 1 << self.rng.u32(..8);
            }
            self.schedule(at, Happening::Arrival { from, to, bytes: copy });
        }
        Ok(())
    }

    fn tell(&mut self, number: usize, event: Event) -> Check {
        match event {
            Event::Received { from, bytes } => {
                let from = host::number(&from.socket).ok_or("no such host")?;
                let incarnation = self.hosts[number].incarnation;
                self.oracle.received(from, number, incarnation, &bytes)
            }
            Event::Completed { id, status } => {
                self.note(|| format!("{number} gets the status of {id}: {status:?}"));
                if self.mutation == Some(Mutation::LostCompletion) && !self.mutated {
                    self.mutated = true;
                    return Ok(());
                }
                self.oracle.completed(&mut self.hosts, id, status)?;
                if self.mutation == Some(Mutation::DoubleCompletion) && !self.mutated {
                    self.mutated = true;
                    self.oracle.completed(&mut self.hosts, id, status)?;
                }
                Ok(())
            }
        }
    }

    // ---- Defects ----

    fn mutate_departure(&mut self, from: usize, to: usize, header: &Header, bytes: &mut Vec<u8>) {
        match self.mutation {
            Some(Mutation::CorruptPayload)
                if is(bytes, Opcode::Send) && bytes.len() > HEADER_LEN + 18 + ID_LEN + CRC_LEN =>
            {
                bytes.truncate(bytes.len() - CRC_LEN);
                *bytes.last_mut().expect("a payload") ^= 1;
                seal(bytes);
                self.mutated = true;
            }
            // Of an atomic, or of a Read of so few bytes.
            Some(Mutation::WrongOldValue)
                if is(bytes, Opcode::ReadResponse)
                    && bytes.len() == HEADER_LEN + TAGGED_LEN + 8 + CRC_LEN =>
            {
                bytes.truncate(bytes.len() - CRC_LEN);
                bytes[HEADER_LEN + TAGGED_LEN] ^= 0x80;
                seal(bytes);
                self.mutated = true;
            }
            Some(Mutation::ForgedAcknowledgement) if !self.mutated => {
                let Some(ack) = header.ack else { return };
                // Sequences that the peer has sent, and whose datagrams are removed below.
                let state = self.hosts[to].machine.send_state(&host::address(from));
                let Some((stream, next_seq)) = state else { return };
                let behind = header.destination.stream == stream && ack.next != next_seq;
                if !behind || header.kind == Kind::Data {
                    return;
                }
                let on_way = std::mem::take(&mut self.agenda).into_vec();
                let late = |happening: &Happening| match happening {
                    Happening::Arrival { from: sender, to: receiver, .. } => {
                        (*sender, *receiver) == (to, from)
                    }
                    Happening::Act | Happening::Take => false,
                };
                self.agenda = on_way.into_iter().filter(|Reverse((_, _, h))| !late(h)).collect();
                let forged = Header {
                    ack: Some(weft_wire::rd::Acknowledgement { next: next_seq, selective: 0 }),
                    ..*header
                };
                bytes.truncate(HEADER_LEN);
                forged.emit(bytes);
                seal(bytes);
                // The forged datagram must not get lost.
                self.setup.loss = 0;
                self.mutated = true;
            }
            _ => {}
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn mutate_arrival(
        &mut self,
        mutation: Mutation,
        from: usize,
        to: usize,
        bytes: &[u8],
        header: &Header,
        body: &[u8],
        before: Option<crate::rd::machine::ReceiveState>,
    ) -> Check {
        let (now, host) = (self.now, &mut self.hosts[to]);
        let source = host::address(from);
        let whole_send = is(bytes, Opcode::Send)
            && matches!(Ddp::parse(body), Ok((Ddp::Untagged { last: true, mo: 0, .. }, _)));
        match mutation {
            Mutation::RepeatedMessage
                if whole_send
                    && before.is_some()
                    && host.machine.receive_state(&source) != before =>
            {
                host.machine.set_receive_state(&source, before);
                host.machine.input(now, source.socket, bytes, &mut host.ram);
                self.mutated = true;
            }
            Mutation::RepeatedAtomic
                if is(bytes, Opcode::AtomicRequest)
                    && before.is_some()
                    && host.machine.receive_state(&source) != before =>
            {
                host.machine.set_receive_state(&source, before);
                host.machine.input(now, source.socket, bytes, &mut host.ram);
                self.mutated = true;
            }
            Mutation::ForgottenPeer if whole_send && header.syn => {
                let mut out = Vec::new();
                while host.machine.output(now, &mut host.ram, &mut out).is_some() {}
                let known = host.machine.peers();
                host.machine.sweep(now + 2 * IDLE);
                if host.machine.peers() < known {
                    host.machine.input(now, source.socket, bytes, &mut host.ram);
                    self.mutated = true;
                }
            }
            Mutation::WildWrite => {
                let at = self.rng.usize(LIBRARY..LEN);
                host.ram.bytes[at] ^= 0x11;
                self.mutated = true;
            }
            Mutation::OldWrite if is(bytes, Opcode::Write) => {
                let Ok((Ddp::Tagged { to: place, .. }, start)) = Ddp::parse(body) else {
                    return Ok(());
                };
                let Some(at) = place.checked_sub(BASE).map(|at| at as usize) else { return Ok(()) };
                let new = body[start..].to_vec();
                if let Some(old) = self.old_writes.get(&(to, at))
                    && *old != new
                    && host.ram.bytes[at..at + new.len()] == new
                {
                    let len = old.len().min(new.len());
                    host.ram.bytes[at..at + len].copy_from_slice(&old[..len]);
                    self.mutated = true;
                }
                self.old_writes.insert((to, at), new);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether a datagram carries a segment with this opcode.
fn is(datagram: &[u8], opcode: Opcode) -> bool {
    let Ok((header, body)) = parse(datagram) else { return false };
    let Ok((ddp, _)) = Ddp::parse(body) else { return false };
    header.kind == Kind::Data && Opcode::of(&ddp) == Ok(opcode)
}

fn describe(from: usize, to: usize, header: &Header, len: usize) -> String {
    let Header { kind, syn, probe, source, sequence, ack, window, .. } = header;
    let ack = ack.map(|ack| format!(" has {} {:#x}", ack.next, ack.selective));
    format!(
        "{from} to {to}: {kind:?}{}{} {}.{}.{sequence}{} takes {window}, {len} bytes",
        if *syn { " syn" } else { "" },
        if *probe { " probe" } else { "" },
        source.epoch,
        source.stream,
        ack.unwrap_or_default(),
    )
}
