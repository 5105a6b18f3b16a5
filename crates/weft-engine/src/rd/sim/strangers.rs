//! Peers of a port that keep to the protocol below, and to nothing above it: any frame, any access,
//! at any time, from many endpoints, some of which the program accepts. The port must not panic,
//! give memory to whom it has not accepted, or keep anything of them.

use weft_testing::seeds;

use super::host::{self, BASE, Host, LEN, LIBRARY, OPEN, PRIVATE, READ_ONLY};
use super::setup::Setup;
use crate::rd::connections::{Connections, LISTENER, Room, Wakeup};
use crate::rd::limits::{GIVE_UP, IDLE};
use crate::rd::machine::Machine;
use crate::rd::request::{AtomicOp, Buffer, Data, Event, PeerAddress, Request};
use crate::rd::shared::Settings;
use crate::wc::{Completion, Opcode, Status};
use crate::wr::Sge;

const SEEDS: u64 = 100;
const STEPS: usize = 300;
const VICTIM: usize = 0;
const STRANGERS: usize = 3;

struct Stage {
    rng: fastrand::Rng,
    now: u64,
    victim: Host,
    connections: Connections,
    strangers: Vec<Host>,
    ends: Vec<u32>,
    id: u64,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = Setup { receive_bytes: 1 << 20, datagram_len: 600, ..Setup::new(&mut rng) };
        let mut hosts: Vec<_> =
            (0..=STRANGERS).map(|host| Host::new(host, &setup, &mut rng)).collect();
        let settings = Settings {
            endpoint: LISTENER,
            datagram_len: setup.datagram_len,
            peers_max: crate::rd::limits::PEERS_MAX,
            receive_bytes: setup.receive_bytes,
            connected: true,
        };
        let mut victim = hosts.remove(VICTIM);
        victim.machine = Machine::new(settings, [rng.u64(..), rng.u64(..)]);
        let mut connections = Connections::default();
        connections.listen();
        let (ends, id) = (Vec::new(), 0);
        Self { rng, now: 1, victim, connections, strangers: hosts, ends, id }
    }

    /// A stranger does anything.
    fn attack(&mut self) {
        let Self { rng, strangers, now, id, .. } = self;
        let any = rng.u32(..);
        let mut frame: Vec<u8> = match rng.u8(..8) {
            0 | 1 => vec![1, 1, 7],
            2 => vec![0; rng.usize(..900)],
            3 => vec![4],
            4 => vec![5],
            5 => vec![rng.u8(..8); rng.usize(..4)],
            6 => vec![2],
            _ => vec![3, rng.u8(..3)],
        };
        if rng.u8(..10) == 0 {
            frame.push(rng.u8(..));
        }
        let keys = [OPEN, OPEN, READ_ONLY, PRIVATE, any];
        let key = keys[rng.usize(..keys.len())];
        let places = [BASE + LIBRARY as u64, BASE + LEN as u64 - 4, u64::MAX];
        let addr = places[rng.usize(..places.len())];
        let into = Buffer { key: OPEN, addr: BASE + LIBRARY as u64, len: 8 };
        let request = match rng.u8(..10) {
            0 => Request::Write { data: Data::Bytes(vec![9; 8].into()), key, addr },
            1 => Request::Read { into, key, addr },
            2 => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                Request::Atomic { op, into, key, addr }
            }
            _ => Request::Send(frame.into()),
        };
        // Ends that call have numbers above 0, but anybody may send to any number.
        let number = if rng.u8(..6) == 0 { rng.u16(..4) } else { LISTENER };
        let to = PeerAddress { socket: host::address(VICTIM).socket, endpoint: number };
        *id += 1;
        let at = rng.usize(..strangers.len());
        // It may have too many peers that do not answer.
        let _ = strangers[at].machine.post(*now, to, *id, request);
    }

    /// The program of the port accepts some, refuses others, and leaves.
    fn serve(&mut self) {
        let Self { rng, victim, connections, ends, now, .. } = self;
        let Host { machine, ram, .. } = victim;
        let room = Room { sends: 8, receives: 4 };
        match rng.u8(..6) {
            0..=2 => {
                let Some((call, _)) = connections.next_call() else { return };
                if rng.u8(..4) == 0 {
                    return connections.refuse(*now, machine, call, true, b"no");
                }
                let Ok(number) = connections.add_called(call, room) else { return };
                for place in 0..4 {
                    let addr = BASE + (LIBRARY + 4_096 + place * 512) as u64;
                    let sge = Sge { addr, length: 512, lkey: PRIVATE };
                    connections.post_receive(number, place as u64, &[sge]).expect("room");
                }
                let _ = connections.accept(*now, machine, number, b"yes");
                ends.push(number);
            }
            3 if !ends.is_empty() => {
                let number = ends.swap_remove(rng.usize(..ends.len()));
                connections.remove(*now, machine, number);
            }
            4 if !ends.is_empty() => {
                let number = ends[rng.usize(..ends.len())];
                connections.disconnect(*now, machine, ram, number);
            }
            _ => {}
        }
    }

    /// Exchanges datagrams until all are silent.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut on_way = Vec::new();
            let hosts = std::iter::once(&mut self.victim).chain(&mut self.strangers);
            for (from, host) in hosts.enumerate() {
                let mut bytes = Vec::new();
                while let Some(to) = host.machine.output(self.now, &mut host.ram, &mut bytes) {
                    on_way.push((from, host::number(&to).expect("a host"), bytes.clone()));
                }
            }
            if on_way.is_empty() {
                return;
            }
            self.now += 10;
            for (from, to, bytes) in on_way {
                let source = host::address(from).socket;
                let host = match to {
                    VICTIM => &mut self.victim,
                    stranger => &mut self.strangers[stranger - 1],
                };
                host.machine.input(self.now, source, &bytes, &mut host.ram);
            }
            let Host { machine, ram, .. } = &mut self.victim;
            self.connections.run(self.now, machine, ram);
            let _: Vec<Wakeup> = self.connections.rung().collect();
            for stranger in &mut self.strangers {
                while let Some(event) = stranger.machine.next_event(self.now) {
                    assert!(!matches!(event, Event::Received { bytes, .. } if bytes.len() > 4));
                }
            }
        }
        panic!("they never fall silent");
    }

    fn expire(&mut self) {
        for host in std::iter::once(&mut self.victim).chain(&mut self.strangers) {
            host.machine.expire(self.now);
        }
        self.connections.expire(self.now, &mut self.victim.machine);
    }

    fn run(&mut self) {
        // Without a connection nothing of the memory changes.
        for _ in 0..STEPS / 3 {
            self.attack();
            self.now += self.rng.u64(..3_000);
            self.expire();
            self.settle();
        }
        assert!(self.victim.ram.bytes == self.victim.ram.shadow, "memory has changed");
        for _ in 0..STEPS {
            self.attack();
            self.serve();
            self.now += self.rng.u64(..3_000);
            self.expire();
            self.settle();
        }
        let mut space = [Completion::new(0, Status::Success, Opcode::Send, 0); 4];
        for number in std::mem::take(&mut self.ends) {
            self.connections.poll(number, &mut space);
            self.connections.remove(self.now, &mut self.victim.machine, number);
        }
        self.connections.stop_listening(self.now, &mut self.victim.machine);
        let end = self.now + 10 * GIVE_UP;
        while self.now < end {
            let timers = std::iter::once(&self.victim).chain(&self.strangers);
            let next = timers.filter_map(|host| host.machine.next_timeout()).min();
            let Some(at) = next else { break };
            self.now = self.now.max(at);
            self.expire();
            self.settle();
        }
        let bytes = &self.victim.ram.bytes[..LIBRARY];
        assert!(*bytes == self.victim.ram.shadow[..LIBRARY], "the library has changed");
        let Host { machine, .. } = &mut self.victim;
        machine.sweep(self.now + 2 * IDLE);
        let is_clean = machine.is_clean() && self.connections.is_clean();
        assert!(is_clean, "something is left: {machine:?} {:?}", self.connections);
    }
}

#[test]
fn strangers_get_nothing_of_a_port_and_leave_nothing() {
    seeds::run(SEEDS, |seed| {
        let result = std::panic::catch_unwind(|| Stage::new(seed).run());
        result.err().map(|_| "the port has panicked, or a check has".to_owned())
    });
}
