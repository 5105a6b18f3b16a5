//! The simulated network: the two directions of a queue pair ([`Rdma`]), and the kernel's TCP
//! connection, whose bytes go through a relay ([`super::relay`]).

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::window::{self, COPY, RING, StateWord};
use super::super::{Remote, Ticket, Wire};
use super::Mutation;
use super::relay::Relay;
use super::world::WorldClock;

/// Maximum delays in nanoseconds, and capacities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// From posting to taking effect, and from there to the poster's completion.
    pub(super) wire: u64,
    /// For one piece of the TCP stream.
    pub(super) tcp: u64,
    /// Until a thread that has been woken runs.
    pub(super) thread: u64,
    /// Number of operations under way.
    pub(super) under_way: u64,
}

impl Setup {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let mut delay = || [0, 1_000, 20_000, 400_000][rng.usize(..4)];
        Self { wire: delay(), tcp: delay(), thread: delay(), under_way: [3, 8, 64][rng.usize(..3)] }
    }
}

/// An operation under way.
#[derive(Debug)]
struct Operation {
    due: u64,
    ticket: Ticket,
    /// Offsets and lengths in the ring that are still to be written.
    bytes: Vec<(usize, usize)>,
    words: Vec<(usize, u64)>,
}

/// A completion in transit to the poster.
#[derive(Debug)]
struct Answer {
    due: u64,
    ticket: Ticket,
}

/// The operations that one end posts.
#[derive(Debug, Default)]
struct Line {
    operations: VecDeque<Operation>,
    answers: VecDeque<Answer>,
    posted: Ticket,
    done: Ticket,
    is_broken: bool,
    /// When the poster learns that the connection has ended.
    breaks: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) rng: fastrand::Rng,
    pub(super) now: u64,
    pub(super) setup: Setup,
    ends: [Weak<SimulatedEnd>; 2],
    lines: [Line; 2],
    is_cut: bool,
    /// When a thread of the process handles the peer's request to fall back to TCP.
    wishes: [Option<u64>; 2],
    pub(super) relay: Relay,
    pub(super) mutation: Option<Mutation>,
    /// How often the mutation has had an effect.
    pub(super) mutated: u32,
}

/// The network, shared by both ends.
#[derive(Clone, Debug)]
pub(super) struct Net(Rc<RefCell<Inner>>);

impl Net {
    pub(super) fn new(
        rng: fastrand::Rng,
        setup: Setup,
        relay: Relay,
        mutation: Option<Mutation>,
    ) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            rng,
            now: 1,
            setup,
            ends: [Weak::new(), Weak::new()],
            lines: [Line::default(), Line::default()],
            is_cut: false,
            wishes: [None; 2],
            relay,
            mutation,
            mutated: 0,
        })))
    }

    pub(super) fn lock(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    pub(super) fn connect(&self, ends: [&Rc<SimulatedEnd>; 2]) {
        self.lock().ends = ends.map(Rc::downgrade);
    }

    pub(super) fn wire_of(&self, side: usize) -> Rdma {
        Rdma { net: self.clone(), side }
    }
}

impl Inner {
    /// Lets time pass, and performs what is due.
    pub(super) fn advance(&mut self, ns: u64) {
        self.now += ns;
        for side in 0..2 {
            self.place_early(side);
            self.run_operations(side);
            self.run_answers(side);
            let line = &mut self.lines[side];
            if !line.is_broken && line.breaks.is_some_and(|due| due <= self.now) {
                line.is_broken = true;
                if let Some(end) = self.end(side) {
                    end.wakeup_fd().ring();
                }
            }
        }
        let tcp = self.setup.tcp;
        self.relay.advance(self.now, tcp, &mut self.rng);
    }

    /// Lets a short time pass, as between any two instructions.
    fn moment(&mut self) {
        let ns = self.rng.u64(..400);
        self.advance(ns);
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        let of_lines = self.lines.iter().flat_map(|line| {
            let operation = line.operations.front().map(|operation| operation.due);
            let answer = line.answers.front().map(|answer| answer.due);
            let breaks = line.breaks.filter(|_| !line.is_broken);
            [operation, answer, breaks]
        });
        let wishes = self.wishes.iter().flatten().copied();
        of_lines.flatten().chain(wishes).chain(self.relay.next_due()).min()
    }

    /// Whether the peer's request is to be handled now. Returns `true` once.
    pub(super) fn take_fallback_request(&mut self, side: usize) -> bool {
        self.wishes[side].take_if(|due| *due <= self.now).is_some()
    }

    /// Drops a request whose receiver is gone.
    pub(super) fn drop_fallback_request(&mut self, side: usize) {
        self.wishes[side] = None;
    }

    /// Ends the connection between the queue pairs. Operations under way are lost.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        for side in 0..2 {
            let due = self.now + self.rng.u64(..=2 * self.setup.wire);
            let line = &mut self.lines[side];
            line.operations.clear();
            line.answers.clear();
            line.breaks.get_or_insert(due);
        }
    }

    /// Destroys the queue pair of an end, or its chance to get one. Operations under way are lost,
    /// and the peer learns of it.
    pub(super) fn fall_back_to_tcp(&mut self, side: usize) {
        let longest = 2 * self.setup.wire;
        let due = self.now + self.rng.u64(..=longest);
        for line in &mut self.lines {
            line.operations.clear();
            line.answers.clear();
        }
        self.lines[1 - side].breaks.get_or_insert(due);
        self.is_cut = true;
    }

    /// Has an end believe that its peer has begun.
    pub(super) fn begin_early(&mut self, end: &SimulatedEnd) {
        if self.mutation == Some(Mutation::BegunEarly) {
            let word = end.window().peer_state(StateWord::State);
            word.fetch_or(window::state::BEGUN, Ordering::SeqCst);
            self.mutated += 1;
        }
    }

    /// The window of an end, if it still exists.
    fn end(&self, side: usize) -> Option<Rc<SimulatedEnd>> {
        self.ends[side].upgrade()
    }

    /// Places some bytes early: they may arrive at any time before the word behind them.
    fn place_early(&mut self, side: usize) {
        if self.lines[side].operations.is_empty() || self.rng.bool() {
            return;
        }
        let at = self.rng.usize(..self.lines[side].operations.len());
        let bytes = &mut self.lines[side].operations[at].bytes;
        if bytes.is_empty() {
            return;
        }
        let (at, len) = bytes.swap_remove(self.rng.usize(..bytes.len()));
        self.place(side, at, len);
    }

    fn place(&self, side: usize, at: usize, len: usize) {
        let (Some(from), Some(to)) = (self.end(side), self.end(1 - side)) else { return };
        let mut bytes = vec![0; len];
        from.window().memory().copy_out(COPY + at, &mut bytes);
        to.window().memory().copy_in(RING + at, &bytes);
    }

    fn run_operations(&mut self, side: usize) {
        while self.lines[side].operations.front().is_some_and(|first| first.due <= self.now) {
            let Some(operation) = self.lines[side].operations.pop_front() else { break };
            if self.mutation == Some(Mutation::HeadFirst) && !operation.bytes.is_empty() {
                self.mutated += 1;
                let due = operation.due + 3_000;
                let (ticket, bytes) = (operation.ticket, operation.bytes);
                let late = Operation { due, ticket, bytes, words: Vec::new() };
                self.lines[side].operations.push_front(late);
            } else if self.mutation == Some(Mutation::LostBytes)
                && !operation.bytes.is_empty()
                && self.rng.u8(..4) == 0
            {
                self.mutated += 1;
            } else {
                operation.bytes.iter().for_each(|&(at, len)| self.place(side, at, len));
            }
            let Some(peer) = self.end(1 - side) else {
                continue; // The peer has gone, so there is no completion.
            };
            for &(word, value) in &operation.words {
                let value = self.mutated_word(&peer, word, value);
                peer.window()
                    .memory()
                    .word64(window::PEER_STATE + 8 * word)
                    .store(value, Ordering::Release);
            }
            if let (Some(&(first, _)), count) = (operation.words.first(), operation.words.len()) {
                if self.mutation == Some(Mutation::LostWakeup) {
                    self.mutated += 1;
                } else {
                    peer.wakeup_fd().written(8 * first, 8 * count);
                }
                if window::is_fallback_request(8 * first, 8 * count) {
                    let due = self.now + self.rng.u64(..=self.setup.thread);
                    self.wishes[1 - side] = Some(due);
                }
            }
            self.answer(side, operation.ticket);
        }
    }

    /// The value that the receiver sees instead of a word.
    fn mutated_word(&mut self, peer: &SimulatedEnd, word: usize, value: u64) -> u64 {
        let mutation = self.mutation;
        let is = |changed: StateWord, early: Mutation| {
            word == changed as usize && mutation == Some(early)
        };
        let instead = if is(StateWord::Tail, Mutation::TailEarly) {
            peer.window().local_state(StateWord::Head).load(Ordering::Relaxed)
        } else {
            value
        };
        self.mutated += u32::from(instead != value);
        instead
    }

    /// The position that an end publishes for its fallback instead of the right one.
    fn mutated_back(&mut self, side: usize, word: StateWord, value: u64) -> u64 {
        if self.mutation != Some(Mutation::BackEarly) || word != StateWord::Back {
            return value;
        }
        let Some(peer) = self.end(1 - side) else { return value };
        let arrived = peer.window().peer_state(StateWord::Head).load(Ordering::Relaxed) + 1;
        self.mutated += u32::from(arrived != value);
        arrived
    }

    fn answer(&mut self, side: usize, ticket: Ticket) {
        let earliest = self.lines[side].answers.back().map_or(self.now, |last| last.due);
        let due = earliest.max(self.now + self.rng.u64(..=self.setup.wire));
        self.lines[side].answers.push_back(Answer { due, ticket });
    }

    fn run_answers(&mut self, side: usize) {
        while self.lines[side].answers.front().is_some_and(|first| first.due <= self.now) {
            let Some(answer) = self.lines[side].answers.pop_front() else { break };
            self.lines[side].done = self.lines[side].done.max(answer.ticket);
        }
    }

    fn is_crowded(&self, side: usize) -> bool {
        let line = &self.lines[side];
        line.posted - line.done >= self.setup.under_way
    }

    fn post(
        &mut self,
        side: usize,
        bytes: &[(usize, usize)],
        words: Vec<(usize, u64)>,
    ) -> Option<Ticket> {
        let line = &self.lines[side];
        if line.is_broken || self.is_crowded(side) {
            return None;
        }
        let earliest = line.operations.back().map_or(self.now, |last| last.due);
        let due = earliest.max(self.now + self.rng.u64(..=self.setup.wire));
        let line = &mut self.lines[side];
        line.posted += 1;
        let ticket = line.posted;
        if !self.is_cut {
            let bytes = bytes.to_vec();
            line.operations.push_back(Operation { due, ticket, bytes, words });
        }
        Some(ticket)
    }
}

/// One end of the connection.
pub(super) type SimulatedEnd = Remote<Rdma, WorldClock>;

/// A simulated queue pair.
#[derive(Debug)]
pub(super) struct Rdma {
    net: Net,
    side: usize,
}

impl Wire for Rdma {
    fn post(&self, bytes: &[(usize, usize)], word: StateWord, value: u64) -> Option<Ticket> {
        let mut net = self.net.lock();
        net.moment();
        let value = net.mutated_back(self.side, word, value);
        let ticket = net.post(self.side, bytes, vec![(word as usize, value)]);
        net.moment();
        ticket
    }

    fn post_head(&self, bytes: &[(usize, usize)], head: u64, tail: &AtomicU64) -> Option<Ticket> {
        let mut net = self.net.lock();
        net.moment();
        let words = vec![
            (StateWord::Head as usize, head),
            (StateWord::Tail as usize, tail.load(Ordering::Relaxed)),
        ];
        let ticket = net.post(self.side, bytes, words);
        net.moment();
        ticket
    }

    fn done(&self) -> Ticket {
        let mut net = self.net.lock();
        net.moment();
        let is_early = net.mutation == Some(Mutation::DoneEarly);
        if is_early && !net.lines[self.side].operations.is_empty() {
            net.mutated += 1;
            return net.lines[self.side].posted;
        }
        net.lines[self.side].done
    }

    fn is_crowded(&self) -> bool {
        self.net.lock().is_crowded(self.side)
    }

    fn rest(&self) {}

    fn drive(&self) {
        let mut net = self.net.lock();
        let ns = net.rng.u64(100..3_000);
        net.advance(ns);
    }

    fn is_broken(&self) -> bool {
        self.net.lock().lines[self.side].is_broken
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        self.net.lock().fall_back_to_tcp(self.side);
    }
}
