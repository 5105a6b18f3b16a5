//! A seeded simulation of a program with one connection in an instance. Wherever its thread calls
//! the kernel, its peer or another thread of the program may act: send, read, fall back to TCP, end
//! the stream. The program believes what epoll and its calls tell it, and nothing else, so a lost
//! event leaves it asleep with bytes or an end unread, or with bytes unsent.
//!
//! `scripts/try-mutations sockets` puts known defects into the product, which the simulation finds.
//! `WEFT_SIM_SEED=n` runs one seed again, and `WEFT_SIM_SEEDS=n` runs that many.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};
use rustix::io::Errno;
use weft_testing::seeds;

use super::{ERR_HUP, IN, OUT, RDHUP};
use crate::kernel::fake::{self, Impossible};
use crate::program::{self, Program, Socket};
use crate::reason::Reason;

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 500;
/// Waits in a row in which nothing happens, after which the program sleeps for ever.
const IDLE_WAITS: u32 = 4;
/// More waits than any program here needs.
const WAITS: u32 = 3_000;
const WAIT_NS: u64 = 1_000_000_000;

/// What the program registers, and how it interprets its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Edges. A call is repeated until it fails with `EAGAIN`.
    Edges,
    /// Edges. A call that transfers less than it could also means that nothing is left (tokio).
    ShortCalls,
    /// Edges for bytes alone, which also stand for the end of the stream.
    BytesAlone,
    /// One event for each registration.
    OneShots,
    /// Level-triggered; room is requested after a refused send only.
    Levels,
}

const STYLES: [Style; 5] =
    [Style::Edges, Style::ShortCalls, Style::BytesAlone, Style::OneShots, Style::Levels];

/// Threads that do one thing at a time. One connection after the other falls back to TCP.
const READER: u8 = 1;
const WRITER: u8 = 2;
const PEER: u8 = 4;
const LEAVER: u8 = 8;
const OTHER: u8 = 16;
const WAITER: u8 = 32;

/// The program's knowledge of its connection.
#[derive(Debug)]
struct Task {
    style: Style,
    epoll: i32,
    fd: i32,
    /// The length of its reads.
    len: usize,
    /// The number of bytes to send.
    to_send: usize,
    sent: usize,
    received: usize,
    has_end: bool,
    can_read: bool,
    can_write: bool,
    /// The end of the stream has been reported, so reading never blocks again.
    is_closed: bool,
    /// How many events it has got. A call that began before the last one does not prove that
    /// nothing is left.
    events: u32,
    wrong: Option<String>,
    log: Vec<String>,
}

/// The peer's part.
#[derive(Debug)]
struct SimPeer {
    fd: i32,
    sent: usize,
    received: usize,
    is_shut: bool,
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    PeerSends(usize),
    PeerReads(usize),
    PeerEnds,
    PeerLeaves,
    ProgramLeaves,
    OtherThreadReads,
    OtherThreadWrites,
    PacketsArrive(usize),
}

type Guarded<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Guarded<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes of a stream from a place on.
fn content(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|place| (place ^ place >> 8) as u8).collect()
}

impl Style {
    /// Returns what a program registers that wants to read, or to write, or both.
    fn asked(self, reads: bool, wants_room: bool) -> i32 {
        let bytes = if reads { EPOLLIN | EPOLLRDHUP } else { 0 };
        let room = if wants_room { EPOLLOUT } else { 0 };
        match self {
            Self::Edges | Self::ShortCalls => EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
            Self::BytesAlone => EPOLLIN | EPOLLOUT | EPOLLET,
            Self::OneShots => bytes | room | EPOLLONESHOT,
            Self::Levels => bytes | room,
        }
    }

    fn is_edge(self) -> bool {
        matches!(self, Self::Edges | Self::ShortCalls | Self::BytesAlone)
    }
}

/// Reads once, if the program believes that there is something. Returns whether it has read.
fn read(task: &Guarded<Task>) -> bool {
    let (fd, len, before) = {
        let task = lock(task);
        let may_read = (task.can_read || task.is_closed) && !task.has_end;
        if !may_read || fake::are_busy(READER) {
            return false;
        }
        (task.fd, task.len, task.events)
    };
    let received = fake::as_threads(READER, || program::recv(fd, len, libc::MSG_DONTWAIT));
    let mut task = lock(task);
    let shown = received.as_ref().map(Vec::len);
    task.log.push(format!("read {shown:?}"));
    let is_all = match received {
        Ok(bytes) if bytes.is_empty() => {
            task.has_end = true;
            return true;
        }
        Ok(bytes) => {
            if bytes != content(task.received, bytes.len()) {
                task.wrong = Some(format!("wrong bytes from {} on", task.received));
            }
            task.received += bytes.len();
            task.style == Style::ShortCalls && bytes.len() < len
        }
        Err(Errno::AGAIN) => true,
        Err(error) => {
            task.wrong = Some(format!("reading fails: {error}"));
            true
        }
    };
    if is_all && task.events == before {
        task.can_read = false;
    }
    !is_all
}

/// Sends once, if the program believes that there is room. Returns whether it has sent.
fn write(task: &Guarded<Task>) -> bool {
    let (fd, bytes, before) = {
        let task = lock(task);
        let rest = (task.to_send - task.sent).min(30_000);
        if !task.can_write || rest == 0 || fake::are_busy(WRITER) {
            return false;
        }
        (task.fd, content(task.sent, rest), task.events)
    };
    let sent = fake::as_threads(WRITER, || program::send(fd, &bytes, libc::MSG_DONTWAIT));
    let mut task = lock(task);
    task.log.push(format!("send {} {sent:?}", bytes.len()));
    let is_refused = match sent {
        Ok(count) => {
            task.sent += count;
            task.style == Style::ShortCalls && count < bytes.len()
        }
        Err(Errno::AGAIN) => true,
        Err(error) => {
            task.wrong = Some(format!("sending fails: {error}"));
            true
        }
    };
    if is_refused && task.events == before {
        task.can_write = false;
    }
    !is_refused
}

impl SimPeer {
    fn send(&mut self, count: usize) {
        if self.is_shut {
            return;
        }
        let bytes = content(self.sent, count);
        match program::send(self.fd, &bytes, libc::MSG_DONTWAIT) {
            Ok(count) => self.sent += count,
            Err(Errno::AGAIN) => {}
            Err(error) => self.wrong = Some(format!("the peer's send fails: {error}")),
        }
    }

    fn read(&mut self, most: usize) {
        match program::recv(self.fd, most, libc::MSG_DONTWAIT) {
            Ok(bytes) => {
                if bytes != content(self.received, bytes.len()) {
                    self.wrong = Some(format!("the peer got wrong bytes from {}", self.received));
                }
                self.received += bytes.len();
            }
            Err(Errno::AGAIN) => {}
            Err(error) => self.wrong = Some(format!("the peer's read fails: {error}")),
        }
    }

    fn end(&mut self) {
        if !self.is_shut {
            self.is_shut = true;
            program::shutdown(self.fd, libc::SHUT_WR);
        }
    }
}

impl Act {
    fn choose(rng: &mut Rng) -> Self {
        let sizes = [1, 39, 40, 41, 100, 5_000, 60_000, 200_000];
        let size = sizes[rng.usize(..sizes.len())];
        match rng.u32(..24) {
            0..5 => Self::PeerSends(size),
            5..8 => Self::PeerReads(size),
            8 => Self::PeerEnds,
            9..11 => Self::PeerLeaves,
            11 => Self::ProgramLeaves,
            12..16 => Self::OtherThreadReads,
            16..20 => Self::PacketsArrive(rng.usize(1..4)),
            _ => Self::OtherThreadWrites,
        }
    }

    fn threads(self) -> u8 {
        match self {
            Self::PeerSends(_) | Self::PeerReads(_) => PEER,
            Self::PeerEnds | Self::PeerLeaves => PEER | LEAVER,
            Self::ProgramLeaves => LEAVER,
            Self::OtherThreadReads | Self::OtherThreadWrites => OTHER,
            Self::PacketsArrive(_) => 0,
        }
    }

    fn run(self, task: &Guarded<Task>, peer: &Guarded<SimPeer>) {
        lock(task).log.push(format!("{self:?}"));
        let fall_back = |fd| {
            program::with_stream_if_known(fd, |stream| stream.fall_back_to_tcp(fd, Reason::Option));
        };
        match self {
            // No other act uses the peer meanwhile.
            Self::PeerSends(count) => lock(peer).send(count),
            Self::PeerReads(most) => lock(peer).read(most),
            Self::PeerEnds => lock(peer).end(),
            Self::PeerLeaves => {
                let fd = lock(peer).fd;
                fall_back(fd);
            }
            Self::ProgramLeaves => {
                let fd = lock(task).fd;
                fall_back(fd);
            }
            Self::OtherThreadReads => while read(task) {},
            Self::OtherThreadWrites => while write(task) {},
            Self::PacketsArrive(most) => fake::deliver(most),
        }
    }
}

/// A program, its connection and its peer.
struct World {
    task: Guarded<Task>,
    peer: Guarded<SimPeer>,
    /// The thread that waits leaves reading and writing to another thread.
    delegates: bool,
    rng: Rng,
    _ends: [Socket; 2],
    instance: program::Instance,
    _program: Program,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let program = program::start();
        let mut ends =
            if rng.u32(..5) > 0 { program.connect_in_memory() } else { program.connect() };
        if rng.bool() {
            ends.reverse();
        }
        if rng.bool() {
            fake::slow_down();
        }
        if rng.u32(..4) > 0 {
            fake::let_fetch();
        }
        let instance = program.epoll();
        let style = STYLES[rng.usize(..STYLES.len())];
        instance.add(&ends[0], style.asked(true, false), 1).expect("added");
        let to_send = [0, 100, 300_000][rng.usize(..3)];
        let task = Task {
            style,
            epoll: instance.fd,
            fd: ends[0].fd,
            len: [40, 50_000][rng.usize(..2)],
            to_send,
            sent: 0,
            received: 0,
            has_end: false,
            can_read: false,
            can_write: !style.is_edge(),
            is_closed: false,
            events: 0,
            wrong: None,
            log: Vec::new(),
        };
        let peer = SimPeer { fd: ends[1].fd, sent: 0, received: 0, is_shut: false, wrong: None };
        let (task, peer) = (Arc::new(Mutex::new(task)), Arc::new(Mutex::new(peer)));
        let delegates = rng.bool();
        Self { task, peer, delegates, rng, _ends: ends, instance, _program: program }
    }

    /// Plans acts at random moments.
    fn plan(&mut self) {
        for _ in 0..self.rng.u32(2..24) {
            let within = [1, 4, 16, 60, 200][self.rng.usize(..5)];
            let (calls, act) = (self.rng.u32(..within), Act::choose(&mut self.rng));
            let (task, peer) = (self.task.clone(), self.peer.clone());
            fake::disturb_after(calls, act.threads(), move || act.run(&task, &peer));
        }
    }

    /// Waits once for events. Returns whether there were any.
    fn wait(&self) -> bool {
        let wait = || program::wait(self.instance.fd, Some(WAIT_NS)).expect("perhaps events");
        let found = fake::as_threads(WAITER, wait);
        let mut task = lock(&self.task);
        for &(_, events) in &found {
            task.log.push(format!("events {events:x}"));
            task.events += 1;
            task.can_read |= events & (IN | ERR_HUP) != 0;
            task.is_closed |= events & (RDHUP | ERR_HUP) != 0;
            task.can_write |= events & (OUT | ERR_HUP) != 0;
        }
        !found.is_empty()
    }

    /// Registers the connection anew, as the program needs it.
    fn register(&self, was_reported: bool) {
        let (style, epoll, fd, asked) = {
            let task = lock(&self.task);
            let wants_room = task.sent < task.to_send && !task.can_write;
            (task.style, task.epoll, task.fd, task.style.asked(!task.has_end, wants_room))
        };
        if style == Style::Levels || style == Style::OneShots && was_reported {
            // The peer and the other thread may act here, too.
            program::control(epoll, EPOLL_CTL_MOD, fd, asked, 1).expect("known");
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.plan();
        let mut idle = 0;
        self.register(true);
        for _ in 0..WAITS {
            let mut has_acted = false;
            if !self.delegates || fake::disturbances_left() == 0 {
                while read(&self.task) | write(&self.task) {
                    has_acted = true;
                }
            }
            if self.is_done()? {
                return Ok(());
            }
            if fake::disturbances_left() == 0 && idle > 1 && self.end_peer()? {
                idle = 0;
            }
            self.register(true);
            let was_reported = self.wait();
            idle = if was_reported || has_acted { 0 } else { idle + 1 };
            if idle > IDLE_WAITS && fake::disturbances_left() == 0 {
                return Err("the program sleeps for ever".to_owned());
            }
        }
        Err("the program never sleeps".to_owned())
    }

    /// Does the peer's rest, one thing after the other: the next one would hide a lost event of the
    /// one before. Returns whether there was something to do.
    fn end_peer(&self) -> Result<bool, String> {
        let mut peer = lock(&self.peer);
        let (received, sent, to_send) = {
            let task = lock(&self.task);
            (task.received, task.sent, task.to_send)
        };
        if received < peer.sent {
            return Err(format!("the program sleeps, {} bytes are unread", peer.sent - received));
        }
        if peer.received < sent {
            (0..20).for_each(|_| peer.read(100_000));
            return Ok(true);
        }
        if sent < to_send {
            return Err(format!("the program sleeps, {} bytes are unsent", to_send - sent));
        }
        let is_left = !peer.is_shut;
        peer.end();
        Ok(is_left)
    }

    fn is_done(&self) -> Result<bool, String> {
        let (task, peer) = (lock(&self.task), lock(&self.peer));
        if let Some(wrong) = task.wrong.as_ref().or(peer.wrong.as_ref()) {
            return Err(wrong.clone());
        }
        if task.has_end && task.received != peer.sent {
            return Err(format!("{} bytes came of {}", task.received, peer.sent));
        }
        Ok(task.has_end && task.sent == task.to_send && peer.received == task.sent)
    }
}

/// Runs one seed. Returns what is wrong, or `None`. `Err`: the schedule does not exist.
fn run(seed: u64) -> Result<Option<String>, ()> {
    let mut world = World::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    fake::forget_disturbances();
    match result {
        Ok(done) => Ok(done.err().map(|wrong| {
            let mut task = lock(&world.task);
            let log = std::mem::take(&mut task.log);
            let last = &log[log.len().saturating_sub(60)..];
            format!("{wrong}\n{}\n{task:?}\n{:?}", last.join("\n"), lock(&world.peer))
        })),
        Err(panic) if panic.is::<Impossible>() => Err(()),
        Err(panic) => resume_unwind(panic),
    }
}

#[test]
fn seeds_lose_no_event() {
    seeds::run(SEEDS, |seed| run(seed).unwrap_or(None));
}
