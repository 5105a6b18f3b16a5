//! Measures the memory that a peer costs: a connected one (RC), and one of reliable datagrams (RD),
//! each after one message has been exchanged with it.
//!
//!     cargo run --release --package weft-engine --example peer_memory [COUNT]
//!
//! The measure is the growth of the process's private memory in RAM. It does not include the
//! kernel's memory for sockets: RC has one for each connection, RD one in total.

#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Host, Memory, connect, poll_one, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::qp::{QpCap, QpInit};
use weft_engine::rd::{Endpoint, Event, Options, PeerAddress, Request, Status};
use weft_engine::wr::Data;
use weft_wire::rd::{Acknowledgement, HEADER_LEN, Header, Kind, RdEnd, parse, seal};

const MESSAGE_LEN: usize = 64;
/// Number of requests in progress at a time.
const BATCH: u16 = 64;

fn main() {
    let count: u16 = std::env::args().nth(1).map_or(10_000, |count| count.parse().unwrap());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let host = Host::new();
    let datagrams = reliable_datagrams(&host, count);
    let connected = reliable_connections(&host, count);
    println!("{count} peers of reliable datagrams: {datagrams} bytes each");
    println!("{count} ends of reliable connections: {connected} bytes each");
}

/// The process's private memory in RAM, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    (of("RssAnon:") + of("RssShmem:")) << 10
}

fn reliable_datagrams(host: &Host, count: u16) -> usize {
    let local = (Ipv4Addr::LOCALHOST, 0).into();
    let endpoint = Endpoint::bind(&host.pd, local, 0, Options::default()).unwrap();
    let peers = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = peers.local_addr().unwrap();
    std::thread::spawn(move || answer(&peers));
    let post = |number| {
        let to = PeerAddress { socket, endpoint: number };
        let request = Request::Send(vec![7; MESSAGE_LEN].into());
        endpoint.post(to, number.into(), request).unwrap();
    };
    let finish = |open: u16| {
        for _ in 0..open {
            let event = endpoint.wait(Some(Duration::from_secs(30))).unwrap();
            assert!(matches!(event, Some(Event::Completed { status: Status::Success, .. })));
        }
    };
    // Allocate the buffers that all peers share.
    post(0);
    finish(1);
    let before = memory();
    for first in (1..=count).step_by(usize::from(BATCH)) {
        let last = count.min(first + BATCH - 1);
        (first..=last).for_each(post);
        finish(last - first + 1);
    }
    // Wait until the last peers have the acknowledgement that completes their streams.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(endpoint.peers(), usize::from(count) + 1);
    (memory() - before) / usize::from(count)
}

/// Answers for all peers: acknowledges everything that arrives.
fn answer(socket: &UdpSocket) {
    let (mut buffer, origin) = (vec![0; 65_536], Instant::now());
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let Ok((header, _)) = parse(&buffer[..len]) else { continue };
        let data = header.kind == Kind::Data;
        if !data && !header.probe {
            continue;
        }
        let endpoint = header.destination.endpoint;
        let next = header.sequence + u32::from(data);
        let answer = Header {
            kind: Kind::Ack,
            syn: header.ack.is_none(),
            probe: false,
            lost: false,
            source: RdEnd { endpoint, epoch: u32::from(endpoint) + 1, stream: 1 },
            destination: header.source,
            window: 1024,
            sequence: 1,
            ack: Some(Acknowledgement { next, selective: 0 }),
            timestamp: origin.elapsed().as_micros() as u32,
            echo: header.timestamp,
        };
        let mut bytes = vec![0; HEADER_LEN];
        answer.emit(&mut bytes);
        seal(&mut bytes);
        socket.send_to(&bytes, from).unwrap();
    }
}

/// Creates connections as the laboratory's `connections.c` does: queues of 16, one posted receive.
fn reliable_connections(host: &Host, count: u16) -> usize {
    let buffer = Memory::new(host, MESSAGE_LEN, Access::LOCAL_WRITE);
    let cq = Cq::new(&host.context, 65_536, None).unwrap();
    let small = |init: &mut QpInit| {
        let (max_send_wr, max_recv_wr) = (16, 16);
        init.cap = QpCap { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, ..init.cap };
        (init.send_cq, init.recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
    };
    let pair = || {
        let (a, b) = (host.endpoint_of(small), host.endpoint_of(small));
        connect(&a, &b);
        for end in [&a, &b] {
            end.receive(0, &[buffer.sge(0, MESSAGE_LEN)]);
        }
        a.post(&send(0, Data::Gather(&[buffer.sge(0, MESSAGE_LEN)])));
        poll_one(&cq);
        poll_one(&cq);
        b.receive(0, &[buffer.sge(0, MESSAGE_LEN)]);
        [a, b]
    };
    let first = pair();
    let before = memory();
    let pairs: Vec<_> = (0..count / 2).map(|_| pair()).collect();
    let grown = memory() - before;
    drop((first, pairs));
    grown / usize::from(count)
}
