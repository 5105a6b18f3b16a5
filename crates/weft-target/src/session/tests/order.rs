//! A simulation of sessions with several connections: requests and responses overtake those of
//! other connections, jobs end in any order, and what is read is what commands before have written.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;
use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

use super::connections::Member;
use super::jobs::distant;
use super::*;

const SEEDS: u64 = 300;
const MUTATED_SEEDS: u64 = 60;
/// Commands of a run.
const COMMANDS: u32 = 60;
/// Blocks that they use.
const BLOCKS: usize = 4;
const BLOCK: usize = 512;

/// A defect that a test puts into the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The commands with two numbers change places.
    NumbersSwapped,
    /// A connection is not woken.
    WakeLost,
    /// A response does not arrive.
    ResponseLost,
}

/// A command that has no response yet.
struct Outstanding {
    member: usize,
    /// What it has to read.
    expected: Option<u8>,
}

struct World {
    rng: Rng,
    mutation: Option<Mutation>,
    mutated: bool,
    members: Vec<Member>,
    /// Bytes on their way to each connection.
    ways: Vec<VecDeque<u8>>,
    /// The next status number of each connection.
    statuses: Vec<u32>,
    jobs: Vec<(usize, Job)>,
    /// What blocks have after all commands that were sent.
    model: [u8; BLOCKS],
    outstanding: HashMap<u32, Outstanding>,
    next: u32,
    /// The window that the initiator knows: the next command, and the last one that it may send.
    window: (u32, u32),
    sent: u32,
}

/// What is wrong.
type Checked = Result<(), String>;

fn check(is_right: bool, wrong: impl FnOnce() -> String) -> Checked {
    if is_right { Ok(()) } else { Err(wrong()) }
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (portal, ..) = distant();
        let (mut first, tsih) = Member::first(&portal, "MaxConnections=4\0InitialR2T=No\0");
        first.client.clear_attentions();
        let next = first.client.next_command;
        let mut members = vec![first];
        for cid in 1..rng.u16(2..5) {
            members.push(Member::join(&portal, tsih, cid));
        }
        for member in &mut members {
            member.client.jobs = Some(Vec::new());
        }
        let statuses = members.iter_mut().map(|member| member.status_number(next)).collect();
        let ways = members.iter().map(|_| VecDeque::new()).collect();
        Self {
            rng,
            mutation,
            mutated: false,
            members,
            ways,
            statuses,
            jobs: Vec::new(),
            model: [0; BLOCKS],
            outstanding: HashMap::new(),
            next,
            window: (next, next + 127),
            sent: 0,
        }
    }

    fn mutates(&mut self, mutation: Mutation) -> bool {
        let is_now = self.mutation == Some(mutation) && self.rng.u8(..8) == 0;
        self.mutated |= is_now;
        is_now
    }

    /// Sends one command, or two of which the later one may arrive first.
    fn send(&mut self) {
        let count = self.rng.u32(1..4).min(COMMANDS - self.sent);
        let mut pdus: Vec<(usize, Vec<u8>)> = (0..count).map(|_| self.command()).collect();
        if pdus.len() > 1 && self.mutates(Mutation::NumbersSwapped) {
            let (one, other) = pdus.split_at_mut(1);
            one[0].1[24..28].swap_with_slice(&mut other[0].1[24..28]);
            if one[0].0 == other[0].0 {
                pdus.swap(0, 1);
            }
        }
        for (member, pdu) in pdus {
            self.ways[member].extend(pdu);
        }
    }

    fn command(&mut self) -> (usize, Vec<u8>) {
        let member = self.rng.usize(..self.members.len());
        let (block, task) = (self.rng.usize(..BLOCKS), self.next);
        let (flags, cdb, data, expected) = if self.rng.bool() {
            self.model[block] = self.rng.u8(1..);
            (0xa0, write10(block, 1), vec![self.model[block]; BLOCK], None)
        } else {
            (0xc0, read10(block, 1), Vec::new(), Some(self.model[block]))
        };
        let fields: [(usize, &[u8]); 4] = [
            (16, &task.to_be_bytes()),
            (20, &(BLOCK as u32).to_be_bytes()),
            (24, &self.next.to_be_bytes()),
            (32, &cdb),
        ];
        let request = pdu(0x01, flags, &fields, &data);
        self.outstanding.insert(task, Outstanding { member, expected });
        self.next += 1;
        self.sent += 1;
        (member, request)
    }

    /// Lets something happen. `Ok(false)` if nothing can.
    fn step(&mut self) -> Result<bool, String> {
        let mut choices = Vec::new();
        if self.sent < COMMANDS && self.window.1 >= self.next + 3 {
            choices.push(Choice::Send);
        }
        for (at, member) in self.members.iter().enumerate() {
            if !self.ways[at].is_empty() && member.client.connection.wants_input() {
                choices.push(Choice::Deliver(at));
            }
            if member.woken.load(Ordering::Relaxed) {
                choices.push(Choice::Wake(at));
            }
        }
        choices.extend((0..self.jobs.len()).map(Choice::Run));
        let Some(&choice) = self.rng.choice(&choices) else { return Ok(false) };
        match choice {
            Choice::Send => self.send(),
            Choice::Deliver(at) => {
                let len = self.rng.usize(1..700).min(self.ways[at].len());
                let client = &mut self.members[at].client;
                let space = client.connection.space();
                let len = len.min(space.len());
                for (place, byte) in space.iter_mut().zip(self.ways[at].drain(..len)) {
                    *place = byte;
                }
                client.connection.received(len);
                self.serve(at)?;
            }
            Choice::Wake(at) => {
                self.members[at].woken.store(false, Ordering::Relaxed);
                if !self.mutates(Mutation::WakeLost) {
                    self.serve(at)?;
                }
            }
            Choice::Run(at) => {
                let (member, job) = self.jobs.swap_remove(at);
                self.members[member].client.connection.complete(job.run());
                self.serve(member)?;
            }
        }
        Ok(true)
    }

    fn serve(&mut self, at: usize) -> Checked {
        let client = &mut self.members[at].client;
        client.exchange().map_err(|closed| format!("connection {at} ends: {closed}"))?;
        let jobs = client.jobs.as_mut().map(std::mem::take).unwrap_or_default();
        self.jobs.extend(jobs.into_iter().map(|job| (at, job)));
        while !self.members[at].client.received.is_empty() {
            let response = self.members[at].client.response();
            if !self.mutates(Mutation::ResponseLost) {
                self.receive(at, &response)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, at: usize, response: &Response) -> Checked {
        let (status, window) = (response.u32(24), (response.u32(28), response.u32(32)));
        check(status == self.statuses[at], || format!("status number {status} on {at}"))?;
        self.statuses[at] += 1;
        // Connections differ in what was last sent by them, and none of it is taken back.
        check(window.0 <= self.next && window.1 < self.next + 128, || {
            format!("window {window:?}")
        })?;
        self.window = (self.window.0.max(window.0), self.window.1.max(window.1));
        let task = response.u32(16);
        let Some(outstanding) = self.outstanding.remove(&task) else {
            return Err(format!("a response to {task}, which has none outstanding"));
        };
        check(outstanding.member == at, || format!("{task} was sent by another connection"))?;
        check(response.header[3] == 0, || format!("{task} fails"))?;
        let Some(expected) = outstanding.expected else { return Ok(()) };
        check(response.data == [expected; BLOCK], || {
            let read = response.data.first();
            format!("{task} reads {read:?} where {expected} was written")
        })
    }

    fn run(&mut self) -> Checked {
        while self.step()? {}
        check(self.outstanding.is_empty(), || {
            let count = self.outstanding.len();
            format!("nothing happens, and {count} commands have no response")
        })?;
        let whole = (self.next, self.next + 127);
        check(self.window == whole, || format!("the window ends as {:?}", self.window))
    }
}

#[derive(Clone, Copy)]
enum Choice {
    Send,
    Deliver(usize),
    Wake(usize),
    Run(usize),
}

impl Member {
    /// The next status number of the connection.
    fn status_number(&mut self, next: u32) -> u32 {
        let ping = pdu(0x40, 0x80, &[(16, &[1; 4]), (24, &next.to_be_bytes())], &[]);
        self.client.send(&ping).unwrap();
        self.client.response().u32(24) + 1
    }
}

#[test]
fn commands_of_several_connections_have_one_order() {
    seeds::run(SEEDS, |seed| World::new(seed, None).run().err());
}

#[test]
fn the_simulation_finds_defects() {
    for (mutation, reason) in [
        (Mutation::NumbersSwapped, "reads"),
        (Mutation::WakeLost, "nothing happens"),
        (Mutation::ResponseLost, "status number"),
    ] {
        mutations::found_in_one(mutation, reason, MUTATED_SEEDS, |seed| {
            let mut world = World::new(seed, Some(mutation));
            let wrong = world.run().err();
            Outcome { wrong, mutated: world.mutated }
        });
    }
}
