//! Streams between simulated hosts.

use std::io::{ErrorKind, Read as _, Write as _};

use weft_fabric::sim::Simulation;
use weft_fabric::{Error, Options};

use super::dial::established;
use super::{FabricListener, FabricStream, GREETING};
use crate::limits::FABRIC_MESSAGE_LEN_LEAST;

/// Random simulations; more of them with `WEFT_SIM_SEEDS`.
const SEEDS: u64 = 40;
/// Bytes that each end writes.
const LEN: usize = 60_000;

fn seeds() -> u64 {
    std::env::var("WEFT_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

fn options(simulation: &Simulation) -> Options {
    let (window, depth) = (1 + simulation.draw(4), 1 + simulation.draw(6));
    let message_max = FABRIC_MESSAGE_LEN_LEAST + simulation.draw(5_000);
    Options { window, message_max, depth, ..Options::default() }
}

/// The byte at a place of what the first or the second end writes.
fn byte(end: usize, at: usize) -> u8 {
    (at * 7 + at / 251 + end * 101) as u8
}

/// One of the two ends, and the test's own view of it.
struct StreamEnd {
    number: usize,
    /// `None` once all was written, has arrived, and the stream was dropped.
    stream: Option<FabricStream>,
    written: usize,
    read: usize,
    /// The last read, or write, had nothing to do, and nothing has been reported since.
    is_read_out: bool,
    is_blocked: bool,
    /// The peer's end has been read.
    is_over: bool,
}

impl StreamEnd {
    fn new(number: usize, stream: FabricStream) -> Self {
        let stream = Some(stream);
        let (written, read, is_read_out, is_blocked, is_over) = (0, 0, false, false, false);
        Self { number, stream, written, read, is_read_out, is_blocked, is_over }
    }

    /// Does something that an event loop would do. Returns whether there was anything.
    fn act(&mut self, simulation: &Simulation) -> bool {
        match simulation.draw(3) {
            0 => self.look() || self.read(simulation) || self.write(simulation) || self.leave(),
            1 => self.look() || self.write(simulation) || self.leave() || self.read(simulation),
            _ => self.look() || self.leave() || self.read(simulation) || self.write(simulation),
        }
    }

    fn look(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let (has_input, goes_on) = (self.is_read_out && stream.has_input(), stream.may_go_on());
        self.is_read_out &= !has_input;
        self.is_blocked &= !goes_on;
        has_input || goes_on
    }

    fn read(&mut self, simulation: &Simulation) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        if self.is_read_out || self.is_over {
            return false;
        }
        let mut bytes = vec![0; 1 + simulation.draw(9_000)];
        match stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) => {
                for found in &bytes[..len] {
                    assert_eq!(*found, byte(1 - self.number, self.read), "at {}", self.read);
                    self.read += 1;
                }
                self.is_read_out = len < bytes.len();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_read_out = true,
            Err(_) => self.is_over = true,
        }
        true
    }

    fn write(&mut self, simulation: &Simulation) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        if self.is_blocked || self.is_over || self.written == LEN {
            return false;
        }
        let len = (1 + simulation.draw(9_000)).min(LEN - self.written);
        let bytes: Vec<u8> = (0..len).map(|at| byte(self.number, self.written + at)).collect();
        match stream.write(&bytes) {
            Ok(len) => self.written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_blocked = true,
            Err(_) => self.is_over = true,
        }
        true
    }

    /// Drops the stream when all was read and all that was written has arrived.
    fn leave(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let is_done = self.written == LEN && self.read == LEN;
        if !self.is_over && (self.is_blocked || !is_done) {
            return false;
        }
        if self.is_over || stream.is_sent() {
            self.stream = None;
        } else {
            self.is_blocked = true;
        }
        true
    }
}

fn connect(simulation: &Simulation) -> Option<[FabricStream; 2]> {
    let [server, client] = [simulation.host(), simulation.host()];
    let server = server.open(options(simulation)).expect("a fabric");
    let client = client.open(options(simulation)).expect("a fabric");
    let listener = FabricListener::bind_on(&server, ([0, 0, 0, 0], 0).into()).expect("a port");
    let connecting = client.connect(listener.address(), GREETING).expect("begun");
    let accepted = loop {
        match listener.accept(true) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && simulation.turn() => {}
            accepted => break accepted,
        }
    };
    let connected = connecting.wait();
    Some([accepted.ok()?, established(&client, connected.ok()?).ok()?])
}

/// Runs both ends until nothing can happen any more. Returns them, unless the connection is lost
/// before both have it.
fn run(simulation: &Simulation) -> Option<[StreamEnd; 2]> {
    let mut number = 0;
    let mut ends = connect(simulation)?.map(|stream| {
        number += 1;
        StreamEnd::new(number - 1, stream)
    });
    // An event loop has the network go on as well, so nobody waits for the others to have nothing
    // to do.
    loop {
        let first = simulation.draw(3);
        let moved = (0..3).any(|at| match (first + at) % 3 {
            2 => simulation.turn(),
            end => ends[end].act(simulation),
        });
        // Looking may have sent something.
        if !moved && !simulation.turn() {
            return Some(ends);
        }
    }
}

#[test]
fn all_bytes_come_in_order_and_none_are_lost_at_the_end() {
    for seed in 0..seeds() {
        let simulation = Simulation::new(seed).expect("a descriptor");
        let ends = run(&simulation).expect("connected");
        for end in &ends {
            assert_eq!((end.written, end.read), (LEN, LEN), "seed {seed}, end {}", end.number);
            assert!(end.stream.is_none(), "seed {seed}: end {} waits for ever", end.number);
        }
    }
}

#[test]
fn a_lost_connection_leaves_the_beginning_of_the_bytes_and_ends_both() {
    for seed in 0..seeds() {
        let simulation = Simulation::new(seed).expect("a descriptor");
        run(&simulation);
        let steps = simulation.steps();
        let simulation = Simulation::new(seed).expect("a descriptor");
        simulation.cut_at(fastrand::Rng::with_seed(seed).u64(..steps));
        // What was read is checked when it is read.
        let Some(ends) = run(&simulation) else { continue };
        for end in &ends {
            assert!(end.stream.is_none(), "seed {seed}: end {} waits for ever", end.number);
        }
    }
}

#[test]
fn peers_of_other_programs_are_refused() {
    for (greeting, has_place) in [(&b"weft tuples 2"[..], true), (b"", true), (GREETING, false)] {
        let simulation = Simulation::new(1).expect("a descriptor");
        let [server, client] = [simulation.host(), simulation.host()];
        let server = server.open(Options::default()).expect("a fabric");
        let client = client.open(Options::default()).expect("a fabric");
        let listener = FabricListener::bind_on(&server, ([0, 0, 0, 0], 0).into()).expect("a port");
        let connecting = client.connect(listener.address(), greeting).expect("begun");
        let refused = loop {
            match listener.accept(has_place) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => assert!(simulation.turn()),
                accepted => break accepted.expect_err("accepted").kind(),
            }
        };
        assert_eq!(refused, ErrorKind::ConnectionAborted);
        assert!(matches!(connecting.wait(), Err(Error::Refused { .. })));
    }
}

#[test]
fn a_message_without_bytes_ends_the_stream() {
    let simulation = Simulation::new(1).expect("a descriptor");
    let [mut server, client] = connect(&simulation).expect("connected");
    drop(client.parts().1.send(b"").expect("begun"));
    while !server.has_input() {
        assert!(simulation.turn());
    }
    let error = server.read(&mut [0; 8]).expect_err("the end");
    assert_ne!(error.kind(), ErrorKind::WouldBlock);
}
