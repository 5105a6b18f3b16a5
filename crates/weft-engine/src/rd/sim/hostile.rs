//! A hostile peer that knows every number and sends anything. It must not crash the process, harm
//! honest peers, or make an endpoint keep any of its state once it is forgotten.

use weft_testing::seeds;
use weft_wire::ddp::Header as Ddp;
use weft_wire::rd::{
    Acknowledgement, HEADER_LEN, Header, Kind, RdEnd, ReadFailure, Reason, parse, seal,
};
use weft_wire::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest};

use super::host::{self, BASE, Host, LEN, LIBRARY, OPEN, READ_ONLY};
use super::setup::Setup;
use crate::rd::limits::{GIVE_UP, IDLE};
use crate::rd::request::{Buffer, Data, Event, Request, Status};

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 100;
const DATAGRAMS: usize = 400;
const VICTIM: usize = 0;
const HONEST: usize = 1;
const ATTACKER: usize = 2;
/// Ids of requests to the hostile peer, whose outcome is arbitrary.
const TO_ATTACKER: u64 = 1 << 32;

struct Stage {
    rng: fastrand::Rng,
    now: u64,
    hosts: Vec<Host>,
    /// The header of the victim's last datagram to the hostile peer.
    seen: Option<Header>,
    /// Number of honest requests, of their successful ends, and of messages that arrived.
    posted: u64,
    succeeded: u64,
    received: u64,
    open_to_liar: usize,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setup = Setup { receive_bytes: 1 << 20, datagram_len: 600, ..Setup::new(&mut rng) };
        let hosts = (0..2).map(|host| Host::new(host, &setup, &mut rng)).collect();
        Self {
            rng,
            now: 1,
            hosts,
            seen: None,
            posted: 0,
            succeeded: 0,
            received: 0,
            open_to_liar: 0,
        }
    }

    /// Exchanges datagrams until both hosts are silent, and takes all events.
    fn settle(&mut self) {
        loop {
            let mut on_way = Vec::new();
            for from in [VICTIM, HONEST] {
                let mut bytes = Vec::new();
                let host = &mut self.hosts[from];
                while let Some(to) = host.machine.output(self.now, &mut host.ram, &mut bytes) {
                    on_way.push((from, host::number(&to).expect("a host"), bytes.clone()));
                }
            }
            for number in [VICTIM, HONEST] {
                while let Some(event) = self.hosts[number].machine.next_event(self.now) {
                    self.take(&event);
                }
            }
            if on_way.is_empty() {
                return;
            }
            self.now += 10;
            for (from, to, bytes) in on_way {
                if to == ATTACKER {
                    self.seen = parse(&bytes).ok().map(|(header, _)| header);
                } else {
                    let (source, host) = (host::address(from).socket, &mut self.hosts[to]);
                    host.machine.input(self.now, source, &bytes, &mut host.ram);
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Received { from, bytes } if *from != host::address(ATTACKER) => {
                assert_eq!(bytes[..], self.received.to_be_bytes().repeat(200));
                self.received += 1;
            }
            Event::Received { .. } => {}
            Event::Completed { id, .. } if *id >= TO_ATTACKER => self.open_to_liar -= 1,
            Event::Completed { id, status } => {
                assert_eq!(*status, Status::Success, "honest request {id}");
                self.succeeded += 1;
            }
        }
    }

    /// Posts a request of the honest peer, and one of the victim to the hostile peer.
    fn work(&mut self) {
        if self.rng.u8(..4) == 0 {
            let bytes = self.posted.to_be_bytes().repeat(200).into();
            let (id, victim) = (self.posted, host::address(VICTIM));
            let honest = &mut self.hosts[HONEST].machine;
            honest.post(self.now, victim, id, Request::Send(bytes)).expect("room");
            self.posted += 1;
        }
        if self.rng.u8(..8) == 0 {
            let into = Buffer { key: OPEN, addr: BASE + LIBRARY as u64, len: 1500 };
            let request = match self.rng.u8(..4) {
                3 => Request::Atomic {
                    op: AtomicOp::FetchAdd { add: 1, mask: 0 },
                    into: Buffer { len: 8, ..into },
                    key: 1,
                    addr: 0,
                },
                0 => Request::Send(vec![1; 1500].into()),
                1 => Request::Write { data: Data::Registered(into), key: 1, addr: 0 },
                _ => Request::Read { into, key: 1, addr: 0 },
            };
            let (id, victim) = (TO_ATTACKER, &mut self.hosts[VICTIM].machine);
            victim.post(self.now, host::address(ATTACKER), id, request).expect("room");
            self.open_to_liar += 1;
        }
    }

    fn pick<T: Copy>(&mut self, usual: T, others: &[T]) -> T {
        if self.rng.u8(..4) != 0 { usual } else { others[self.rng.usize(..others.len())] }
    }

    fn lie(&mut self) {
        let seen = self.seen;
        let (epoch, stream) = seen.map_or((0, 0), |h| (h.source.epoch, h.source.stream));
        let next = seen.and_then(|h| h.ack).map_or(1, |ack| ack.next);
        let sent = seen.map_or(1, |h| h.sequence);
        let stream_of_liar = seen.map_or(1, |h| h.destination.stream.max(1));
        let any = self.rng.u32(..);
        let reason = [Reason::UnknownStream, Reason::Bounds, Reason::Malformed];
        let reason = reason[self.rng.usize(..reason.len())];
        let kind = self.pick(Kind::Data, &[Kind::Ack, Kind::Challenge, Kind::Reset(reason)]);
        let ack = Acknowledgement {
            next: self.pick(sent, &[sent.wrapping_sub(1), sent.wrapping_add(1), 1, any]),
            selective: self.pick(0, &[1, u64::MAX, 1 << 63, 0b1010]),
        };
        let header = Header {
            kind,
            syn: self.rng.bool(),
            probe: self.rng.u8(..4) == 0,
            lost: self.rng.u8(..8) == 0,
            source: RdEnd {
                endpoint: host::address(ATTACKER).endpoint,
                epoch: self.pick(77, &[77, 78, any]),
                stream: self.pick(stream_of_liar, &[stream_of_liar.wrapping_add(1), 0, any]),
            },
            destination: RdEnd {
                endpoint: host::address(VICTIM).endpoint,
                epoch: self.pick(epoch, &[0, any]),
                stream: self.pick(stream, &[stream.wrapping_sub(1), any]),
            },
            window: self.pick(1024, &[0, 1, u16::MAX]),
            sequence: self
                .pick(next, &[next.wrapping_add(1), next.wrapping_sub(1), next + 900, any]),
            ack: (self.rng.u8(..8) != 0).then_some(ack),
            timestamp: any,
            echo: self.pick(0, &[any, 1]),
        };
        let mut bytes = vec![0; HEADER_LEN];
        header.emit(&mut bytes);
        match kind {
            Kind::Data => self.segment(&mut bytes),
            Kind::Ack => {
                for _ in 0..self.rng.usize(..4) {
                    bytes.extend_from_slice(&self.rng.u64(..).to_be_bytes());
                }
            }
            Kind::Challenge | Kind::Reset(_) => {}
        }
        seal(&mut bytes);
        let (source, victim) = (host::address(ATTACKER).socket, &mut self.hosts[VICTIM]);
        victim.machine.input(self.now, source, &bytes, &mut victim.ram);
    }

    fn segment(&mut self, bytes: &mut Vec<u8>) {
        let codes = 0..12_u8;
        let code = self.pick(Opcode::Send as u8, &codes.collect::<Vec<_>>());
        let opcode = Opcode::parse(0x40 | code).expect("a defined code");
        let any = self.rng.u32(..);
        let payload_len = self.pick(8, &[0, 7, 28, 400]);
        let open = BASE + LIBRARY as u64;
        let ddp = match opcode.queue() {
            None => Ddp::Tagged {
                last: self.rng.bool(),
                ulp: opcode.control(),
                stag: self.pick(OPEN, &[READ_ONLY, any]),
                to: self.pick(open, &[BASE + LEN as u64 - 3, u64::MAX, any.into()]),
            },
            Some(queue) => Ddp::Untagged {
                last: self.rng.bool(),
                ulp: opcode.control(),
                ulp_word: self.pick(payload_len as u32, &[0, 20, 500_000, 3 << 20, u32::MAX]),
                qn: self.pick(queue, &[0, 1, 2, 3, any]),
                msn: self.pick(1, &[0, 2, 3, any]),
                mo: self.pick(0, &[8, 16, any, u32::MAX]),
            },
        };
        let start = bytes.len();
        bytes.resize(start + ddp.len(), 0);
        ddp.emit(&mut bytes[start..]);
        let body = bytes.len();
        match opcode {
            Opcode::ReadRequest => {
                bytes.resize(body + ReadRequest::LEN, 0);
                let request = ReadRequest {
                    sink_stag: any,
                    sink_to: u64::from(any) << 32,
                    size: self.pick(3_000, &[0, 1 << 30, u32::MAX]),
                    source_stag: self.pick(READ_ONLY, &[OPEN, any]),
                    source_to: self.pick(BASE, &[BASE + LIBRARY as u64, u64::MAX]),
                };
                request.emit(&mut bytes[body..]);
            }
            Opcode::AtomicRequest => {
                bytes.resize(body + AtomicRequest::LEN, 0);
                let word = BASE + LIBRARY as u64;
                // The attacker has the right to change what is behind the library.
                let others = [(OPEN, word + 4), (OPEN, u64::MAX), (READ_ONLY, BASE), (any, BASE)];
                let (remote_stag, remote_to) = self.pick((OPEN, word), &others);
                let request = AtomicRequest {
                    op: AtomicOp::FetchAdd { add: u64::from(any), mask: 0 },
                    request_id: any,
                    remote_stag,
                    remote_to,
                };
                request.emit(&mut bytes[body..]);
            }
            Opcode::Terminate => {
                bytes.resize(body + ReadFailure::LEN, 0);
                ReadFailure { read: any, reason: Reason::Key }.emit(&mut bytes[body..]);
            }
            _ => bytes.resize(body + payload_len, 0x5a),
        }
    }

    fn run(&mut self) {
        let library = self.hosts[VICTIM].ram.bytes[..LIBRARY].to_vec();
        for _ in 0..DATAGRAMS {
            self.work();
            self.lie();
            self.now += self.rng.u64(..3_000);
            for host in &mut self.hosts {
                host.machine.expire(self.now);
            }
            self.settle();
        }
        let end = self.now + 10 * GIVE_UP;
        while self.now < end
            && let Some(at) = self.hosts.iter().filter_map(|h| h.machine.next_timeout()).min()
        {
            self.now = self.now.max(at);
            for host in &mut self.hosts {
                host.machine.expire(self.now);
            }
            self.settle();
        }
        assert_eq!((self.succeeded, self.received), (self.posted, self.posted));
        assert_eq!(self.open_to_liar, 0, "requests to the liar end");
        assert!(self.hosts[VICTIM].ram.bytes[..LIBRARY] == library, "the library has changed");
        for host in &mut self.hosts {
            host.machine.sweep(self.now + 2 * IDLE);
            assert!(host.machine.is_clean(), "something is left of the liar: {:?}", host.machine);
        }
    }
}

#[test]
fn hostile_peer_neither_crashes_a_host_nor_writes_beyond_its_rights() {
    seeds::run(SEEDS, |seed| {
        let result = std::panic::catch_unwind(|| Stage::new(seed).run());
        result.err().map(|_| "a host has panicked, or a check has".to_owned())
    });
}
