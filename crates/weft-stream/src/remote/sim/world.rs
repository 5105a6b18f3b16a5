//! Two programs, each with one end, and the checks of what they observe.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::time::Timespec;
use weft_sys::Buffers;

use super::super::window::{RING_LEN, StateWord};
use super::super::{Clock, Closing, Remote};
use super::Mutation;
use super::net::{Net, Setup, SimulatedEnd};
use super::relay::Relay;
use crate::end::Carrier;
use crate::recv_options::RecvOptions;

const MSG_NOSIGNAL: i32 = 0x4000;
/// Maximum length of one call.
const LEN_MAX: usize = 2 * RING_LEN;
/// The bytes of a direction repeat with this period.
const PERIOD: usize = 65_521;
/// Number of acts after which the programs only finish, and the limit for finishing.
const ACTS: u32 = 60;
const ACTS_MAX: u32 = 4_000;
/// Real time for which a check waits for the kernel's TCP, which may be late.
const LATE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The same when a mutation is expected to fail the run.
const MUTATED_LATE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Number of lines in a report.
const NOTES_MAX: usize = 200;

pub(super) type Check = Result<(), String>;

/// What a run may contain.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// One in this many acts breaks the wire.
    breaks: Option<u32>,
    falls_back: Option<u32>,
    kills: bool,
    /// Two threads of a program wait for bytes while others read.
    crowds: bool,
    /// A program may close before the stream has ended.
    closes_early: bool,
    large: bool,
    /// The programs send their first bytes late.
    shy: bool,
    /// There is no wire.
    stays: bool,
    /// This side does not take the wire that both are offered.
    refuses: Option<usize>,
}

/// One program.
#[derive(Debug)]
struct Side {
    end: Option<Rc<SimulatedEnd>>,
    socket: Option<Rc<TcpStream>>,
    /// Bytes that were sent successfully, and the same including the call under way.
    sent: u64,
    offered: u64,
    received: u64,
    sleepers: u32,
    has_shut_write: bool,
    has_shut_read: bool,
    /// A close is under way: the peer may notice it before it is over.
    is_closing: bool,
    /// Whether the close was to be a reset, once the side has closed.
    closed: Option<bool>,
    /// What this side had received when it closed.
    closed_at: u64,
    /// How reading ended first: with an error or without; `None` if it has not.
    ended: Option<Option<Errno>>,
    /// A reset has been reported to the program, which happens once.
    is_reported: bool,
}

pub(super) struct World {
    net: Net,
    plan: Plan,
    sides: [RefCell<Side>; 2],
    /// The side is in a call.
    busy: [Cell<bool>; 2],
    /// A thread of the side falls back to TCP.
    falling_back: [Cell<bool>; 2],
    acts: Cell<u32>,
    is_cut: Cell<bool>,
    wrong: RefCell<Option<String>>,
    notes: RefCell<VecDeque<String>>,
    mutation: Option<Mutation>,
}

impl World {
    fn now(&self) -> u64 {
        let mut net = self.net.lock();
        net.now += 20; // Time also passes for a thread that only reads the clock.
        net.now
    }

    /// Lets a thread wait for this many nanoseconds while others act.
    fn pass(&self, ns: u64) {
        let acts = self.random(|rng| [0, 0, 0, 1, 6][rng.usize(..5)]);
        for _ in 0..acts {
            self.background();
            self.act_of_somebody();
        }
        let mut net = self.net.lock();
        // Do not wait long when nothing is due.
        let next = net.next_due().map_or(u64::MAX, |due| due.saturating_sub(net.now));
        net.advance(ns.max(next.min(1_000_000)));
        drop(net);
        self.background();
    }
}

/// The clock of the ends, which is the world's.
#[derive(Clone, Debug)]
pub(super) struct WorldClock(Weak<World>);

impl WorldClock {
    fn world(&self) -> Rc<World> {
        self.0.upgrade().expect("ends go before their world")
    }
}

impl Clock for WorldClock {
    fn now(&self) -> u64 {
        self.world().now()
    }

    fn sleep(&self, ns: u32) {
        self.world().pass(ns.into());
    }

    fn waits_for(&self, socket: BorrowedFd<'_>, asked: PollFlags, limit: &Timespec) -> bool {
        const STEP: u64 = 1_000_000;
        let world = self.world();
        let mut set = [PollFd::from_borrowed_fd(socket, asked)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = limit.tv_sec.cast_unsigned() * 1_000_000_000 + limit.tv_nsec.cast_unsigned();
        let until = world.now() + limit;
        loop {
            if poll(&mut set, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                return true;
            }
            let now = world.now();
            if now >= until {
                return false;
            }
            world.pass(STEP.min(until - now));
        }
    }
}

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| rng.u8(..)).collect();
        bytes.extend_from_within(..LEN_MAX);
        bytes
    })
}

/// The bytes that a side sends from a position on.
fn stream(side: usize, at: u64, len: usize) -> &'static [u8] {
    let start = (at + 1_000 * side as u64) as usize % PERIOD;
    &table()[start..start + len]
}

/// Splits one buffer into several, as programs do.
fn parts<'a>(mut rest: &'a mut [u8], rng: &mut fastrand::Rng) -> Vec<IoSliceMut<'a>> {
    let mut parts = Vec::new();
    while parts.len() < 3 && rng.bool() {
        let (part, behind) = rest.split_at_mut(rng.usize(..=rest.len()));
        parts.push(IoSliceMut::new(part));
        rest = behind;
    }
    parts.push(IoSliceMut::new(rest));
    parts
}

impl World {
    pub(super) fn new(seed: u64, listener: &TcpListener, mutation: Option<Mutation>) -> Rc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut setup = Setup::new(&mut rng);
        let mut plan = Plan {
            breaks: (rng.u8(..4) == 0).then(|| rng.u32(10..200)),
            kills: rng.u8(..6) == 0,
            falls_back: (rng.u8(..3) == 0).then(|| rng.u32(4..60)),
            crowds: rng.u8(..4) == 0,
            closes_early: rng.u8(..4) == 0,
            large: rng.bool(),
            shy: rng.u8(..4) == 0,
            stays: rng.u8(..16) == 0,
            refuses: (rng.u8(..8) == 0).then(|| rng.usize(..2)),
        };
        if mutation.is_some() {
            // Exclude other reasons for a failure.
            (plan.breaks, plan.kills) = (None, false);
            plan.falls_back = None;
            if let Some(Mutation::DoneEarly | Mutation::BackEarly) = mutation {
                plan.falls_back = Some(4);
                (setup.wire, setup.tcp) = (20_000_000, 0); // TCP overtakes the wire.
            }
            (plan.closes_early, plan.stays) = (false, false);
            plan.refuses = (mutation == Some(Mutation::BegunEarly)).then_some(1);
            setup.wire = setup.wire.max(1_000);
        }
        let (relay, sockets) = Relay::new(listener);
        let net = Net::new(rng, setup, relay, mutation);
        Rc::new_cyclic(|world| {
            let clock = WorldClock(Weak::clone(world));
            let end = || Rc::new(Remote::with_clock(clock.clone()).expect("memory"));
            let ends = [end(), end()];
            net.connect([&ends[0], &ends[1]]);
            let mut sockets = sockets.into_iter();
            let sides = ends.map(|end| {
                RefCell::new(Side {
                    end: Some(end),
                    socket: sockets.next().map(Rc::new),
                    sent: 0,
                    offered: 0,
                    received: 0,
                    sleepers: 0,
                    has_shut_write: false,
                    has_shut_read: false,
                    is_closing: false,
                    closed: None,
                    closed_at: 0,
                    ended: None,
                    is_reported: false,
                })
            });
            Self {
                net,
                plan,
                sides,
                busy: Default::default(),
                falling_back: Default::default(),
                acts: Cell::new(0),
                is_cut: Cell::new(false),
                wrong: RefCell::default(),
                notes: RefCell::default(),
                mutation,
            }
        })
    }

    pub(super) fn mutated(&self) -> bool {
        self.net.lock().mutated > 0
    }

    pub(super) fn report(&self) -> String {
        let notes: Vec<_> = self.notes.borrow().iter().cloned().collect();
        format!("{:?} {:?}\n{}\n", self.net.lock().setup, self.plan, notes.join("\n"))
    }

    fn note(&self, side: usize, note: impl FnOnce() -> String) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(format!("{:>10} {side} {}", self.now(), note()));
    }

    fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.net.lock().rng)
    }

    /// `true` once in `count` calls, at random.
    fn chance(&self, count: u32) -> bool {
        self.random(|rng| rng.u32(..count)) == 0
    }

    fn fail(&self, side: usize, wrong: impl Into<String>) {
        let wrong = format!("{side}: {}", wrong.into());
        self.wrong.borrow_mut().get_or_insert(wrong);
    }

    fn is_ending(&self) -> bool {
        self.acts.get() >= ACTS
    }

    /// Runs the world to its end.
    pub(super) fn run(&self) -> Check {
        while self.wrong.borrow().is_none() && !self.is_over() {
            if self.acts.get() >= ACTS_MAX {
                self.fail(2, "does not come to an end");
            }
            let ns = self.random(|rng| rng.u64(..3_000));
            self.net.lock().advance(ns);
            self.background();
            if self.act_of_somebody() == Some(false) {
                self.rest();
            } else if self.chance(12) {
                self.lull();
            }
        }
        for side in &self.sides {
            // Drop the ends before the sockets.
            let end = side.borrow_mut().end.take();
            drop(end);
        }
        self.wrong.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.borrow().closed.is_some())
    }

    /// Lets a side that is in no call act. `Some(false)` if both can only wait.
    fn act_of_somebody(&self) -> Option<bool> {
        if self.wrong.borrow().is_some() {
            return None;
        }
        let first = self.random(|rng| rng.usize(..2));
        let mut acted = Some(false);
        for side in [first, 1 - first] {
            if self.busy[side].replace(true) {
                acted = None;
                continue;
            }
            let has_acted = self.act(side);
            self.busy[side].set(false);
            if has_acted {
                self.acts.set(self.acts.get() + 1);
                return Some(true);
            }
        }
        acted
    }

    /// Handles that all threads sleep: an event must be due, or nothing may be unread.
    fn rest(&self) {
        let due = {
            let mut net = self.net.lock();
            let due = net.next_due();
            let ns = due.map_or(0, |due| due.saturating_sub(net.now));
            net.advance(ns);
            due
        };
        if due.is_some() {
            return;
        }
        if !self.is_ending() {
            self.acts.set(ACTS);
            return;
        }
        if !(0..2).any(|side| self.is_readable_soon(side)) && self.net.lock().next_due().is_none() {
            self.fail(2, "does not come to an end");
        }
    }

    /// Lets everything under way finish without an act. No thread may sleep then while its end has
    /// bytes.
    fn lull(&self) {
        loop {
            let mut net = self.net.lock();
            net.advance(1);
            let Some(due) = net.next_due() else { break };
            let ns = due.saturating_sub(net.now);
            net.advance(ns);
            drop(net);
            self.background();
        }
        for side in 0..2 {
            let (sleepers, end) = {
                let this = self.sides[side].borrow();
                (this.sleepers, this.end.clone())
            };
            let has_bytes = || end.as_ref().is_some_and(|end| end.unread() > 0);
            if sleepers > 0 && has_bytes() && !self.is_readable_soon(side) {
                self.fail(side, "sleeps on beside bytes");
            }
        }
    }

    /// Whether the kernel wakes the side's sleepers, perhaps late.
    fn is_readable_soon(&self, side: usize) -> bool {
        let limit = if self.mutation.is_some() { MUTATED_LATE } else { LATE };
        self.is_readable(side) || {
            self.net.lock().advance(1);
            self.is_readable_within(side, &limit)
        }
    }

    // ---- Programs ----

    /// Lets a side act. `false` if there was nothing to do.
    fn act(&self, side: usize) -> bool {
        let (sleepers, closed, idle) = {
            let this = self.sides[side].borrow();
            (this.sleepers, this.closed.is_some(), this.ended.is_some())
        };
        if closed {
            return false;
        }
        if self.is_held(side) {
            // A send or a close would block on another thread's lock.
            return sleepers == 0 && self.chance(2) && {
                self.recv(side);
                true
            };
        }
        if let Some(often) = self.plan.breaks
            && !self.is_cut.get()
            && self.chance(often)
        {
            self.is_cut.set(true);
            self.note(side, || "the wire breaks".into());
            self.net.lock().cut();
        }
        if let Some(often) = self.plan.falls_back
            && !self.is_ending()
            && self.may_leave(side)
            && self.chance(often)
        {
            self.fall_back_to_tcp(side);
            return true;
        }
        if sleepers > 0 && self.is_readable(side) && !self.chance(4) {
            self.wake(side);
            return true;
        }
        if self.is_ending() {
            return self.end(side, sleepers, idle);
        }
        let is_used = self.falling_back[side].get();
        let reads = sleepers == 0 || self.plan.crowds;
        match self.random(|rng| rng.u8(..32)) {
            0..=9 => self.send(side),
            10..=17 if reads => self.recv(side),
            18..=20 if sleepers == 0 => drop(self.settle(side)),
            21..=25 if reads && sleepers < 2 => self.sleep(side),
            27 if self.chance(4) => self.shut_write(side),
            28 if self.plan.closes_early && !is_used && self.chance(4) => self.close(side),
            29 if self.plan.kills && !is_used && self.chance(4) => self.kill(side),
            30 => self.look(side),
            _ => return !self.chance(3),
        }
        true
    }

    /// Finishes: shuts down, reads everything, and closes.
    fn end(&self, side: usize, sleepers: u32, has_ended: bool) -> bool {
        let is_used = self.falling_back[side].get();
        if has_ended && is_used {
            return false;
        }
        if has_ended {
            self.sides[side].borrow_mut().sleepers = 0;
            self.close(side);
            return true;
        }
        if !self.sides[side].borrow().has_shut_write && (sleepers > 0 || self.chance(3)) {
            self.shut_write(side);
            return true;
        }
        if sleepers > 0 {
            return false;
        }
        if self.chance(3) {
            self.recv(side)
        } else {
            self.sleep(side)
        }
        true
    }

    /// Runs the other threads of the processes, independently of the programs.
    fn background(&self) {
        self.decide();
        (0..2).for_each(|side| self.answer_leave(side));
    }

    fn answer_leave(&self, side: usize) {
        let Some(end) = self.sides[side].borrow().end.clone() else {
            return self.net.lock().drop_fallback_request(side);
        };
        // That thread would block on the lock.
        if self.is_held(side) || !self.net.lock().take_fallback_request(side) {
            return;
        }
        self.note(side, || "answers".into());
        end.answer_leave();
        self.note(side, || "has answered".into());
    }

    /// Whether a thread is in a call whose lock others of the same end would wait for.
    fn is_held(&self, side: usize) -> bool {
        let this = self.sides[side].borrow();
        this.end.as_ref().is_some_and(|end| end.local().tx_lock.load(Ordering::Relaxed) != 0)
    }

    fn parts_of(&self, side: usize) -> Option<(Rc<SimulatedEnd>, Rc<TcpStream>)> {
        let this = self.sides[side].borrow();
        Some((this.end.clone()?, this.socket.clone()?))
    }

    /// Gives the ends their wires, or none, independently of the programs.
    fn decide(&self) {
        for side in 0..2 {
            let Some(end) = self.sides[side].borrow().end.clone() else { continue };
            if !end.is_pending() || self.mutation.is_none() && !self.chance(8) {
            } else if self.plan.stays {
                end.give_up();
            } else if self.plan.refuses == Some(side) {
                self.note(side, || "refuses the wire".into());
                end.give_up();
                self.net.lock().fall_back_to_tcp(side);
            } else {
                self.note(side, || "has a wire".into());
                self.net.lock().begin_early(&end);
                end.begin(self.net.wire_of(side));
            }
        }
    }

    fn len(&self) -> usize {
        let large = self.plan.large;
        self.random(|rng| match rng.u8(..8) {
            0 => 0,
            1..=3 => rng.usize(1..40),
            4 | 5 => rng.usize(1..2_000),
            _ if large => rng.usize(1..LEN_MAX),
            _ => rng.usize(1..5_000),
        })
    }

    fn send(&self, side: usize) {
        let Some((end, socket)) = self.parts_of(side) else { return };
        if end.is_pending() && self.sides[side].borrow().sent > 30_000 {
            return; // The run does not test the kernel's buffers.
        }
        let at = self.sides[side].borrow().sent;
        if self.plan.shy && at == 0 && !self.chance(8) {
            return;
        }
        let len = self.len();
        self.sides[side].borrow_mut().offered = at + len as u64;
        let mut bytes = stream(side, at, len).to_vec();
        let mut parts = self.random(|rng| parts(&mut bytes, rng));
        let sent = end.try_send(socket.as_fd(), Buffers::of(&mut parts), MSG_NOSIGNAL);
        self.note(side, || format!("sends {len} at {at}: {sent:?}"));
        let excuse = self.excuse_to_send(side);
        let mut this = self.sides[side].borrow_mut();
        match sent {
            Ok(sent) if sent > len || sent == 0 && len > 0 => {
                self.fail(side, format!("{sent} of {len} bytes are sent"));
            }
            Ok(sent) => this.sent += sent as u64,
            Err(Errno::AGAIN) => {}
            // A send after the peer's end fails like this.
            Err(Errno::PIPE) if excuse => this.is_reported |= !this.has_shut_write,
            Err(Errno::CONNRESET) if excuse => this.is_reported = true,
            Err(error) => self.fail(side, format!("{error:?} for no reason when sending")),
        }
        if sent != Err(Errno::CONNRESET) {
            // After `ECONNRESET` the bytes may have reached the peer all the same.
            this.offered = this.sent;
        }
    }

    /// Whether a send has a reason to fail.
    fn excuse_to_send(&self, side: usize) -> bool {
        let (this, peer) = (self.sides[side].borrow(), self.sides[1 - side].borrow());
        self.is_cut.get()
            || this.has_shut_write
            || peer.closed.is_some()
            || peer.has_shut_read
            || this.ended.is_some_and(|ended| ended.is_some())
    }

    fn recv(&self, side: usize) {
        let look = self.random(|rng| rng.bool());
        let len = self.len();
        let _ = self.try_recv(side, len, look);
    }

    /// Receives. `true` if there were bytes, or the end.
    fn try_recv(&self, side: usize, len: usize, look: bool) -> bool {
        let Some((end, socket)) = self.parts_of(side) else { return false };
        let before = self.sides[side].borrow().received;
        let (keep, discard, has_part) = (self.chance(5), self.chance(16), self.chance(4));
        let options = RecvOptions { keep, discard, look, has_part };
        let mut bytes = vec![0xEE; len];
        let mut parts = self.random(|rng| parts(&mut bytes, rng));
        let received = end.try_recv(socket.as_fd(), Buffers::of(&mut parts), options);
        drop(parts);
        self.note(side, || format!("receives {len} at {before} {options:?}: {received:?}"));
        match received {
            Ok(0) if len == 0 => true,
            Ok(0) => {
                self.ended(side, None);
                true
            }
            Ok(received) => {
                self.check_received(side, &bytes, received, options);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(error) => {
                self.ended(side, Some(error));
                true
            }
        }
    }

    fn check_received(&self, side: usize, bytes: &[u8], received: usize, options: RecvOptions) {
        let offered = self.sides[1 - side].borrow().offered;
        let mut this = self.sides[side].borrow_mut();
        let at = this.received;
        if received > bytes.len() || at + received as u64 > offered {
            return self.fail(side, format!("{received} bytes at {at}, of {offered} sent"));
        }
        if this.ended.is_some() {
            return self.fail(side, "bytes behind the end");
        }
        if !options.discard && bytes[..received] != *stream(1 - side, at, received) {
            return self.fail(side, format!("the {received} bytes at {at} are others"));
        }
        if !options.keep {
            this.received += received as u64;
        }
    }

    /// Records and checks the end of the stream that a reader has seen.
    fn ended(&self, side: usize, error: Option<Errno>) {
        let peer = self.sides[1 - side].borrow();
        let mut this = self.sides[side].borrow_mut();
        if this.ended.is_some() {
            return;
        }
        this.ended = Some(error);
        let is_whole = this.received >= peer.sent;
        match error {
            None if this.has_shut_read => {}
            None if this.is_reported => {}
            None if peer.closed.is_none() && !peer.is_closing && !peer.has_shut_write => {
                self.fail(side, "an end that nobody has made");
            }
            // What a killed process had under way is unknown.
            None if !is_whole && !self.was_killed(&peer) => {
                self.fail(side, format!("ends at {} of {}", this.received, peer.offered));
            }
            None => {}
            Some(Errno::CONNRESET | Errno::PIPE) if self.is_cut.get() => {}
            Some(Errno::CONNRESET | Errno::PIPE) if peer.closed.is_some() => {
                let all_read = peer.closed == Some(false) && peer.closed_at == this.offered;
                if all_read && !self.was_killed(&peer) {
                    self.fail(side, "a reset, though the peer has read all");
                }
            }
            Some(error) => self.fail(side, format!("{error:?} for no reason when receiving")),
        }
    }

    fn was_killed(&self, side: &Side) -> bool {
        side.closed == Some(false) && side.closed_at == u64::MAX
    }

    fn settle(&self, side: usize) -> Option<bool> {
        let (end, socket) = self.parts_of(side)?;
        let may_have_ended = self.random(|rng| rng.bool());
        let settled = end.settle(socket.as_fd(), may_have_ended, 0);
        self.note(side, || format!("settles: {settled:?}"));
        match settled {
            Err(error) if error != Errno::AGAIN => {
                self.sides[side].borrow_mut().is_reported = true;
                if !self.is_cut.get() && self.sides[1 - side].borrow().closed.is_none() {
                    self.fail(side, format!("{error:?} for no reason when settling"));
                }
                None
            }
            other => other.ok(),
        }
    }

    /// Goes to sleep like a blocking call, if there is nothing to receive.
    fn sleep(&self, side: usize) {
        let Some((end, _)) = self.parts_of(side) else { return };
        end.begin_sleep();
        let len = self.len().max(1);
        let looks = self.mutation != Some(Mutation::SleepsUnasked);
        let is_there = looks && self.try_recv(side, len, true);
        self.net.lock().mutated += u32::from(!looks);
        self.note(side, || format!("sleeps: {}", !is_there));
        if !is_there {
            self.sides[side].borrow_mut().sleepers += 1;
        } else {
            end.end_sleep();
        }
    }

    fn wake(&self, side: usize) {
        let Some((end, _)) = self.parts_of(side) else { return };
        self.note(side, || "wakes".into());
        end.clear_wakeup();
        if self.chance(4) {
            let _ = self.settle(side);
        }
        end.end_sleep();
        self.sides[side].borrow_mut().sleepers -= 1;
        let len = self.len().max(1);
        let _ = self.try_recv(side, len, true);
    }

    fn is_readable(&self, side: usize) -> bool {
        self.is_readable_within(side, &Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    fn is_readable_within(&self, side: usize, limit: &Timespec) -> bool {
        let Some((end, socket)) = self.parts_of(side) else { return false };
        let mut set = [socket.as_fd(), end.wakeup_fd().as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut set, Some(limit)).is_ok_and(|ready| ready > 0)
    }

    /// Calls all the getters.
    fn look(&self, side: usize) {
        let Some((end, _)) = self.parts_of(side) else { return };
        let _ = (end.unread(), end.room(), end.is_writable(), end.is_full(), end.is_ending());
        let _ = (end.carrier_in(), end.carrier_out(), end.progress(), end.has_peer_shut());
    }

    /// Whether the side may fall back. A mutation is found only if there is something to fall back
    /// from.
    fn may_leave(&self, side: usize) -> bool {
        let Some((end, _)) = self.parts_of(side) else { return false };
        self.mutation.is_none() || end.carrier_out() == Carrier::Memory
    }

    fn fall_back_to_tcp(&self, side: usize) {
        let Some((end, socket)) = self.parts_of(side) else { return };
        // One thread runs everything, so a lock that the peer holds would never be released.
        if self.is_held(1 - side) || self.falling_back[side].replace(true) {
            return;
        }
        self.note(side, || "leaves".into());
        let began = self.now();
        self.busy[side].set(false); // Other threads go on.
        end.fall_back_to_tcp(socket.as_fd());
        self.busy[side].set(true);
        let took = self.now() - began;
        self.note(side, || "has left".into());
        self.check_fallback(side, &end, took);
        self.falling_back[side].set(false);
    }

    /// Checks that the socket's next holder can use it as plain TCP.
    fn check_fallback(&self, side: usize, end: &SimulatedEnd, took: u64) {
        const LONG_NS: u64 = 100_000_000;
        let (peer, is_closing) = {
            let peer = self.sides[1 - side].borrow();
            (peer.end.clone(), peer.is_closing)
        };
        let is_checked = !is_closing && !self.is_cut.get() && self.mutation.is_none();
        let Some(peer) = peer.filter(|_| is_checked) else { return };
        let heads = |from: &SimulatedEnd, to: &SimulatedEnd| {
            [from.window().local_state(StateWord::Head), to.window().peer_state(StateWord::Head)]
                .map(|head| head.load(Ordering::Relaxed))
        };
        for [sent, arrived] in [heads(end, &peer), heads(&peer, end)] {
            if sent != arrived {
                self.fail(side, format!("has left, with {arrived} of {sent} bytes there"));
            }
        }
        if [end, &*peer].iter().any(|end| end.carrier_out() == Carrier::Memory) {
            self.fail(side, "has left, and does not send by TCP");
        }
        if took > LONG_NS {
            self.fail(side, "leaves, and takes long");
        }
    }

    fn shut_write(&self, side: usize) {
        let Some((end, socket)) = self.parts_of(side) else { return };
        self.sides[side].borrow_mut().has_shut_write = true;
        self.note(side, || "shuts down".into());
        end.shut_write(socket.as_fd());
        let _ = socket.shutdown(Shutdown::Write); // It fails if the connection has been reset.
    }

    fn close(&self, side: usize) {
        let Some((end, socket)) = self.parts_of(side) else { return };
        self.sides[side].borrow_mut().is_closing = true;
        let reset = self.close_end(&end);
        let received = self.sides[side].borrow().received;
        self.note(side, || format!("closes, with a reset: {reset}"));
        if reset {
            let _ = sockopt::set_socket_linger(&*socket, Some(Duration::ZERO));
        }
        let has_rest = rustix::io::ioctl_fionread(&*socket).is_ok_and(|rest| rest > 0);
        drop(socket);
        let mut this = self.sides[side].borrow_mut();
        this.closed = Some(reset || has_rest);
        this.closed_at = received;
        let parts = (this.socket.take(), this.end.take());
        drop(this);
        self.forget(side, &end);
        drop((parts, end));
    }

    /// Closes the end, and returns whether the connection is to be reset.
    fn close_end(&self, end: &SimulatedEnd) -> bool {
        const TIMEOUT_NS: u64 = 2_000_000_000;
        let until = self.now() + TIMEOUT_NS;
        let mut closing = end.close(false);
        while let Closing::Flushing(mut final_flush) = closing {
            self.pass(20_000);
            closing = match end.is_closed(&mut final_flush) {
                Some(closing) => closing,
                None if self.now() >= until => Closing::Reset,
                None => Closing::Flushing(final_flush),
            };
        }
        matches!(closing, Closing::Reset)
    }

    /// Kills the process: the kernel ends the connection, and what the wire has under way is lost.
    fn kill(&self, side: usize) {
        self.note(side, || "is killed".into());
        let mut this = self.sides[side].borrow_mut();
        (this.closed, this.closed_at) = (Some(false), u64::MAX);
        let parts = (this.end.take(), this.socket.take());
        drop(this);
        if let Some(end) = &parts.0 {
            self.forget(side, end);
        }
        drop(parts);
    }

    /// An end that is still to be connected gets no queue pair any more.
    fn forget(&self, side: usize, end: &SimulatedEnd) {
        if end.is_pending() {
            self.net.lock().fall_back_to_tcp(side);
        }
    }
}
