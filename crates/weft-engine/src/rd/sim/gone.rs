//! What is known of processes that are gone, by the answers of their hosts: two ports, and a clock
//! that the tests move.

use weft_wire::rd::{HEADER_LEN, quoted};

use super::host::{LEN, Ram, address};
use crate::Errno;
use crate::rd::connections::{Change, Connections, LISTENER, Room};
use crate::rd::limits::{DATAGRAM_LEN, GIVE_UP, LOOK, PEERS_MAX, PING, REFUSED_FOR, RTO_MAX};
use crate::rd::machine::Machine;
use crate::rd::request::PeerAddress;
use crate::rd::shared::Settings;

const SECOND: u64 = 1_000_000;
/// How far the clock moves at a time.
const STEP: u64 = 1_000;

/// What becomes of a datagram for the second port. What that one sends always arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    /// The host says that nobody is there.
    Refused,
}

struct Half {
    machine: Machine,
    connections: Connections,
    ram: Ram,
}

struct Two {
    now: u64,
    halves: [Half; 2],
    /// Whether the second port says nothing any more.
    is_silent: bool,
    /// The ends at the first port.
    ends: Vec<u32>,
    /// The beginning of the last datagram to the second port.
    last: Vec<u8>,
    /// How many it was sent.
    sent: usize,
}

fn half(secret: u64) -> Half {
    let settings = Settings {
        endpoint: LISTENER,
        datagram_len: DATAGRAM_LEN,
        peers_max: PEERS_MAX,
        receive_bytes: 1 << 20,
        connected: true,
    };
    let mut connections = Connections::default();
    connections.listen();
    let ram = Ram { bytes: vec![0; LEN], shadow: Vec::new() };
    Half { machine: Machine::new(settings, [secret, secret]), connections, ram }
}

impl Two {
    fn new() -> Self {
        let halves = [half(1), half(2)];
        let (ends, last) = (Vec::new(), Vec::new());
        Self { now: SECOND, halves, is_silent: false, ends, last, sent: 0 }
    }

    fn call(&mut self) {
        let peer = PeerAddress { socket: address(1).socket, endpoint: LISTENER };
        let room = Room { sends: 4, receives: 4 };
        let Half { machine, connections, .. } = &mut self.halves[0];
        let end = connections.add(machine, peer, room).expect("a number");
        connections.connect(self.now, machine, end, b"").expect("room");
        self.ends.push(end);
    }

    /// Makes so many connections.
    fn connected(count: usize) -> Self {
        let mut two = Self::new();
        (0..count).for_each(|_| two.call());
        two.run(SECOND, |_| Fate::Arrives);
        let Half { machine, connections, .. } = &mut two.halves[1];
        while let Some((call, _)) = connections.next_call() {
            let room = Room { sends: 4, receives: 4 };
            let end = connections.add_called(call, room).expect("a call");
            connections.accept(two.now, machine, end, b"").expect("room");
        }
        two.run(SECOND, |_| Fate::Arrives);
        let established = Change::Established(Vec::new());
        assert!(two.changes().iter().all(|change| *change == Some(established.clone())));
        two
    }

    /// Lets time pass.
    fn run(&mut self, time: u64, mut fate: impl FnMut(u64) -> Fate) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            for from in 0..if self.is_silent { 1 } else { 2 } {
                let to = 1 - from;
                let Half { machine, connections, ram } = &mut self.halves[from];
                machine.expire(self.now);
                connections.expire(self.now, machine);
                connections.run(self.now, machine, ram);
                let mut bytes = Vec::new();
                while self.halves[from].output(self.now, &mut bytes) {
                    if from == 0 {
                        self.last = bytes[..HEADER_LEN].to_vec();
                        self.sent += 1;
                    }
                    let fate = if from == 0 { fate(self.now) } else { Fate::Arrives };
                    match fate {
                        Fate::Arrives => self.halves[to].input(self.now, from, &bytes),
                        Fate::Lost => {}
                        Fate::Refused => self.refuse(),
                    }
                }
            }
        }
    }

    /// Gives the first port the answer to what it has sent.
    fn refuse(&mut self) {
        let Half { machine, connections, ram } = &mut self.halves[0];
        machine.refused(self.now, address(1).socket, &self.last);
        connections.run(self.now, machine, ram);
    }

    fn changes(&mut self) -> Vec<Option<Change>> {
        let connections = &mut self.halves[0].connections;
        self.ends.iter().map(|&end| connections.change(end).0).collect()
    }
}

impl Half {
    fn output(&mut self, now: u64, bytes: &mut Vec<u8>) -> bool {
        self.machine.output(now, &mut self.ram, bytes).is_some()
    }

    fn input(&mut self, now: u64, from: usize, bytes: &[u8]) {
        self.machine.input(now, address(from).socket, bytes, &mut self.ram);
        self.connections.run(now, &mut self.machine, &mut self.ram);
    }
}

#[test]
fn a_peer_that_is_gone_is_noticed_soon_by_all_connections() {
    const COUNT: usize = 50;
    let mut two = Two::connected(COUNT);
    two.run(10 * SECOND, |_| Fate::Arrives);
    assert_eq!(two.changes(), vec![None; COUNT]);
    two.is_silent = true;
    // Hosts answer about once a second only.
    let mut answered = 0;
    let fate = |now: u64| {
        if now - answered < SECOND {
            return Fate::Lost;
        }
        answered = now;
        Fate::Refused
    };
    two.run(LOOK + REFUSED_FOR + 2 * RTO_MAX, fate);
    assert_eq!(two.changes(), vec![Some(Change::Disconnected); COUNT]);
}

#[test]
fn a_peer_that_is_silent_is_given_time() {
    let mut two = Two::connected(1);
    two.is_silent = true;
    two.run(GIVE_UP - SECOND, |_| Fate::Lost);
    assert_eq!(two.changes(), [None]);
    two.run(PING, |_| Fate::Lost);
    assert_eq!(two.changes(), [Some(Change::Disconnected)]);
}

#[test]
fn a_host_may_refuse_for_a_moment() {
    let mut two = Two::connected(1);
    let mut since = None;
    // As when a firewall is loaded every few seconds.
    for _ in 0..20 {
        two.run(10 * SECOND, |now| {
            let is_refused = now - *since.get_or_insert(now) < REFUSED_FOR - 10 * STEP;
            if is_refused { Fate::Refused } else { Fate::Arrives }
        });
        assert!(since.take().is_some(), "it was asked");
        assert_eq!(two.changes(), [None]);
    }
    two.run(2 * GIVE_UP, |_| Fate::Arrives);
    assert_eq!(two.changes(), [None]);
}

#[test]
fn answers_of_strangers_are_not_believed() {
    let mut two = Two::connected(1);
    two.is_silent = true;
    let genuine = quoted(&two.last).expect("a header");
    let mut forged = genuine;
    forged.source.epoch ^= 1;
    let mut unknown = genuine;
    unknown.source.endpoint += 1;
    for _ in 0..10 {
        for header in [forged, unknown] {
            header.emit(&mut two.last);
            two.refuse();
        }
        // Too little of the datagram to tell whether it was one of ours.
        let whole = two.last.clone();
        genuine.emit(&mut two.last);
        two.last.truncate(HEADER_LEN - 1);
        two.refuse();
        two.last = whole;
        two.run(SECOND, |_| Fate::Lost);
    }
    assert_eq!(two.changes(), [None]);
}

#[test]
fn a_call_to_nobody_is_refused_at_once() {
    let mut two = Two::new();
    two.call();
    two.run(2 * STEP, |_| Fate::Refused);
    assert_eq!(two.changes(), [Some(Change::Failed(Errno::CONNREFUSED))]);
}

#[test]
fn connections_with_one_port_ask_for_each_other() {
    const COUNT: usize = 50;
    let mut two = Two::connected(COUNT);
    two.sent = 0;
    let time = 60 * SECOND;
    two.run(time, |_| Fate::Arrives);
    // Each asks now and then, too, and what the peer asks is acknowledged.
    let each = 2 * COUNT as u64 * (time / PING + 1);
    assert!(two.sent as u64 <= each + 2 * (time / LOOK), "{} datagrams", two.sent);
    assert_eq!(two.changes(), vec![None; COUNT]);
}
