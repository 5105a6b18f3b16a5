//! The simulated kernel as the product calls it, and the scheduler, which chooses the next step,
//! kills processes, and checks the state after each step.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use weft_sys::{Buffers, FutexWord, Threads};

use super::Mutation;
use super::fibers::{Fiber, pause};
use super::host::{Host, Pid, SocketId};
use super::model::Direction;
use super::process::Memory;
use super::program;
use crate::end::PutBack;
use crate::kernel::{Holder, Kernel};
use crate::layout::BITMAP;
use crate::limits::CONNECTIONS_MAX;
use crate::registry::Registry;
use crate::sweep::sweep;
use crate::tuple::Tuple;

/// Number of slots: so few that the table is sometimes full.
const SLOTS: usize = 3;
/// Number of views of the registry. Further processes share them.
const VIEWS: usize = 4;
/// How long a thread waits for a taken lock before it checks whether the holder has died.
const LOCK_TIMEOUT: u64 = 2_000_000;
/// Steps after which a run counts as endless.
const STEPS_MAX: u32 = 60_000;
/// Consecutive sleeps that end only by their timeouts, after which nothing counts as going on.
const IDLE_MAX: u32 = 60;
const NOTES_MAX: usize = 4_000;

/// The simulated kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sim;

/// A descriptor of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) pid: Pid,
    pub(super) fd: RawFd,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    Nothing,
    Readable(SocketId),
    Writable(SocketId),
    /// Until the word has another value, or until this time.
    Word(&'static AtomicU32, u32, u64),
    Futex(FutexWord<'static>, u64),
    Until(u64),
    /// Until the process has become a program, or has ended.
    VforkChild(Pid),
}

/// What a call does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    Send,
    /// Receives at most this many bytes.
    Receive(usize),
    SleepForBytes,
    SleepForRoom,
}

/// A call under way that the model knows about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) socket: SocketId,
    pub(super) does: Does,
}

/// A thread of a process.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    pub(super) wait: Wait,
    pub(super) calls: Vec<Call>,
    is_over: bool,
    is_killed: bool,
}

/// What a run may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// A process is killed in one of this many steps.
    pub(super) kills: Option<u32>,
    pub(super) credits: bool,
    pub(super) threads: bool,
    pub(super) foreigners: bool,
    pub(super) passes: bool,
    pub(super) room: usize,
    /// A thread pauses in one of this many system calls.
    pub(super) pauses: u8,
    /// A thread may also pause between two accesses to shared memory.
    pub(super) moments: bool,
}

/// The two directions of a connection, and the ends that it may have.
#[derive(Debug)]
pub(super) struct Connection {
    /// Indexed by the sending side; 0 is the connector.
    pub(super) directions: [Direction; 2],
    /// A side has closed with bytes unread, or has sent to a closed socket: a reset is legitimate.
    pub(super) may_reset: bool,
    /// A reset has been reported to the side.
    pub(super) reported: [bool; 2],
    /// The side has shut down its writing half.
    pub(super) shut: [bool; 2],
}

pub(super) struct State {
    pub(super) rng: fastrand::Rng,
    pub(super) plan: Plan,
    pub(super) mutation: Option<Mutation>,
    now: u64,
    /// Number of acts before the programs only end.
    pub(super) acts: u32,
    pub(super) host: Host,
    pub(super) connections: Vec<Connection>,
    pub(super) threads: Vec<Thread>,
    pub(super) memories: BTreeMap<Pid, Rc<Memory>>,
    /// Children of `vfork` that have not become programs yet.
    pub(super) borrowers: HashSet<Pid>,
    born: VecDeque<(usize, Box<dyn FnOnce()>)>,
    current: Option<usize>,
    next_pid: Pid,
    cookies: u64,
    wrong: Option<String>,
    notes: VecDeque<String>,
    keeps_notes: bool,
    /// Number of steps that changed something.
    progress: u64,
    views: [&'static Registry; VIEWS],
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static FIBERS: RefCell<Vec<Fiber>> = const { RefCell::new(Vec::new()) };
    /// The clock, which continues from one world to the next.
    static CLOCK: RefCell<u64> = const { RefCell::new(0) };
}

/// Views of the registry; each process uses one.
fn views() -> [&'static Registry; VIEWS] {
    thread_local! {
        static VIEWS_OPEN: [&'static Registry; VIEWS] = {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let open = || Registry::open(directory.path()).expect("a registry");
            let views: [&'static Registry; VIEWS] =
                std::array::from_fn(|_| &*Box::leak(Box::new(open())));
            for word in 0..CONNECTIONS_MAX / 64 {
                let taken = if word == 0 { u64::MAX << SLOTS } else { u64::MAX };
                views[0].word64(BITMAP + 8 * word).store(taken, Ordering::Relaxed);
            }
            views
        };
    }
    VIEWS_OPEN.with(|views| *views)
}

/// Accesses the world. The thread must not pause meanwhile.
pub(super) fn with<R>(look: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(|state| look(state.as_mut().expect("a world")))
}

/// A random number below `end`.
pub(super) fn random(end: usize) -> usize {
    with(|world| world.rng.usize(..end))
}

/// `true` once in `count` calls, at random.
pub(super) fn one_in(count: usize) -> bool {
    random(count) == 0
}

/// A system call, at which the thread may be killed and others may run.
pub(super) fn step() {
    let pauses = with(|world| {
        let pauses = world.plan.pauses;
        world.current.is_some() && world.rng.u8(..pauses) == 0
    });
    if pauses {
        pause();
    }
}

/// Sleeps until the condition of `wait` holds.
pub(super) fn wait_for(wait: Wait) {
    with(|world| {
        let current = world.current.expect("a thread");
        world.threads[current].wait = wait;
    });
    pause();
}

pub(super) fn now() -> u64 {
    with(|world| world.now)
}

pub(super) fn note(text: impl FnOnce() -> String) {
    with(|world| world.note(text));
}

/// Records a failure of the product.
pub(super) fn fail(what: String) {
    with(|world| {
        world.note(|| what.clone());
        world.wrong.get_or_insert(what);
    });
}

pub(super) fn check(result: Result<(), String>) {
    if let Err(what) = result {
        fail(what);
    }
}

/// Ends a process and the calling thread, after the exit hooks have run or without them.
pub(super) fn end_process(pid: Pid, has_closed: bool) {
    with(|world| {
        let own = world.current;
        world.end_threads(pid, own);
        if !has_closed {
            world.abandon(pid);
        }
        world.kill_but_current(pid);
    });
}

/// Starts a thread of a process.
pub(super) fn spawn(pid: Pid, job: impl FnOnce() + 'static) -> usize {
    with(|world| world.spawn(pid, Box::new(job)))
}

fn bytes_of(buffers: Buffers<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    buffers.regions().for_each(|region| region.copy_out(&mut bytes));
    bytes
}

fn fill(buffers: Buffers<'_>, mut bytes: &[u8]) {
    for region in buffers.regions() {
        let (now, rest) = bytes.split_at(region.len().min(bytes.len()));
        region.part(0, now.len()).expect("within it").copy_in(now);
        bytes = rest;
    }
}

/// Makes a system call on a socket, if the descriptor is open.
fn call<R>(
    socket: Socket,
    act: impl FnOnce(&mut Host, SocketId) -> Result<R, Errno>,
) -> Result<R, Errno> {
    step();
    with(|world| {
        let id = world.host.socket_of(socket.pid, socket.fd).ok_or(Errno::BADF)?;
        let result = act(&mut world.host, id);
        world.after_call();
        result
    })
}

impl Threads for Sim {
    type Section = ();

    fn begin_section() {}

    fn own() -> u32 {
        with(|world| world.current.map_or(1, |current| current as u32 + 2))
    }

    fn is_dead(thread: u32) -> bool {
        let index = (thread as usize).checked_sub(2);
        with(|world| index.and_then(|index| world.threads.get(index)).is_none_or(Thread::is_gone))
    }

    fn offer_core() {
        pause();
    }

    fn wait(word: &AtomicU32, value: u32) -> bool {
        let until = now() + LOCK_TIMEOUT;
        while word.load(Ordering::Relaxed) == value {
            if now() >= until {
                return true;
            }
            wait_for(Wait::Until(now() + LOCK_TIMEOUT / 10));
        }
        false
    }

    fn wake(_: &AtomicU32, _: u32) {
        // A thread that sleeps on a word checks it before each of its steps.
    }
}

impl PutBack for Sim {}

impl Kernel for Sim {
    type Socket<'a> = Socket;

    fn moment() {
        if with(|world| world.plan.moments) {
            step();
        }
    }

    fn send(socket: Socket, buffers: Buffers<'_>, _: i32) -> Result<usize, Errno> {
        let bytes = bytes_of(buffers);
        let sent = call(socket, |host, id| host.send(id, &bytes));
        note(|| format!("  TCP {} takes {sent:?}", socket.fd));
        sent
    }

    fn recv(socket: Socket, buffers: Buffers<'_>, most: usize, flags: i32) -> Result<usize, Errno> {
        const PEEK: i32 = 2;
        const TRUNC: i32 = 0x20;
        let most = most.min(buffers.len());
        let bytes = call(socket, |host, id| host.receive_bytes(id, most, flags & PEEK != 0));
        let verb = if flags & PEEK == 0 { "has" } else { "shows" };
        note(|| format!("  TCP {} {verb} {:?}", socket.fd, bytes.as_ref().map(Vec::len)));
        let bytes = bytes?;
        if flags & TRUNC == 0 {
            fill(buffers, &bytes);
        }
        Ok(bytes.len())
    }

    fn put(socket: Socket, bytes: &[u8]) -> Result<usize, Errno> {
        if with(|world| world.mutation == Some(Mutation::LostWakeup) && world.rng.u8(..4) == 0) {
            return Err(Errno::AGAIN); // `EAGAIN` means that other bytes wake the peer.
        }
        let put = call(socket, |host, id| host.send(id, bytes));
        note(|| format!("  TCP {} takes a wakeup: {put:?}", socket.fd));
        put
    }

    fn take(socket: Socket, bytes: &mut [u8], keep: bool) -> Result<usize, Errno> {
        let most = bytes.len();
        let taken = call(socket, |host, id| host.receive_bytes(id, most, keep));
        note(|| format!("  TCP {} has {:?}", socket.fd, taken.as_ref().map(Vec::len)));
        let taken = taken?;
        bytes[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }

    fn unread(socket: Socket) -> Result<usize, Errno> {
        // No thread runs before this call. It counts as a part of the call before, and the next
        // call is a point at which others run.
        with(|world| {
            let id = world.host.socket_of(socket.pid, socket.fd).ok_or(Errno::BADF)?;
            Ok(world.host.unread(id))
        })
    }

    fn is_hung_up(socket: Socket) -> bool {
        call(socket, |host, id| Ok(host.is_hung_up(id))).unwrap_or(true)
    }

    fn has_error(socket: Socket) -> bool {
        call(socket, |host, id| Ok(host.has_error(id))).unwrap_or(false)
    }

    fn undelay(_: Socket) -> [bool; 2] {
        step();
        [false; 2]
    }

    fn dissolve(socket: Socket) {
        let _ = call(socket, |host, id| {
            host.dissolve(id);
            Ok(())
        });
    }

    fn reset(socket: Socket) {
        let _ = call(socket, |host, id| {
            host.dissolve(id);
            host.take_error(id);
            Ok(())
        });
    }

    fn reset_at_close(socket: Socket) {
        // Bytes are unread now. Before this process closes the socket another thread may read them.
        with(|world| {
            if let Some(id) = world.host.socket_of(socket.pid, socket.fd)
                && world.incoming(id).may_have_unread()
            {
                world.connections[id / 2].may_reset = true;
            }
        });
        let _ = call(socket, |host, id| {
            host.reset_at_close(id);
            Ok(())
        });
    }

    fn stays_open(socket: Socket) -> bool {
        step();
        with(|world| {
            let process = world.host.processes.get(&socket.pid);
            process.and_then(|it| it.open.get(&socket.fd)).is_some_and(|&(_, cloexec)| !cloexec)
        })
    }

    fn holder_of(own: SocketAddr, peer: SocketAddr) -> Result<Option<Holder>, Errno> {
        step();
        let is_held = with(|world| world.host.holder_of(own, peer));
        Ok(is_held.then_some(Holder { inode: 1, user: 0 }))
    }

    fn connections(namespace: u64) -> HashSet<Tuple> {
        step();
        let pairs: Vec<_> = with(|world| world.host.connections().collect());
        let both = pairs
            .into_iter()
            .flat_map(|(own, peer)| [Tuple::new(own, peer), Tuple::new(peer, own)]);
        both.map(|tuple| tuple.in_namespace(namespace)).collect()
    }

    fn namespace() -> Result<u64, Errno> {
        Ok(0)
    }

    fn is_alive(pid: u32) -> bool {
        // No thread runs before this call, as for [`Kernel::unread`].
        with(|world| world.host.processes.contains_key(&pid))
    }

    fn is_own(_: &Registry) -> bool {
        true
    }

    fn user() -> u32 {
        views()[0].user()
    }

    fn second() -> u64 {
        now() / 1_000_000_000
    }
}

impl Thread {
    fn is_gone(&self) -> bool {
        self.is_over || self.is_killed
    }
}

impl State {
    fn new(seed: u64, mutation: Option<Mutation>, keeps_notes: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan {
            kills: (rng.u8(..3) == 0).then(|| rng.u32(20..400)),
            credits: rng.u8(..4) == 0,
            threads: rng.bool(),
            foreigners: rng.bool(),
            passes: rng.bool(),
            room: [64, 300, 5_000][rng.usize(..3)],
            pauses: [1, 2, 4][rng.usize(..3)],
            moments: seed.is_multiple_of(4),
        };
        let acts = rng.u32(10..120);
        // At least a second later, so that the table is swept in each world.
        let now = CLOCK.with_borrow_mut(|clock| {
            *clock += 3_600_000_000_000;
            *clock
        });
        Self {
            rng,
            plan,
            mutation,
            now,
            acts,
            host: Host::default(),
            connections: Vec::new(),
            threads: Vec::new(),
            memories: BTreeMap::new(),
            borrowers: HashSet::new(),
            born: VecDeque::new(),
            current: None,
            next_pid: 1_000,
            cookies: 1,
            wrong: None,
            notes: VecDeque::new(),
            keeps_notes,
            progress: 0,
            views: views(),
        }
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.keeps_notes {
            if self.notes.len() == NOTES_MAX {
                self.notes.pop_front();
            }
            let who = self.current.map_or_else(
                || "-".to_owned(),
                |current| format!("{}.{current}", self.threads[current].pid),
            );
            self.notes.push_back(format!("{who}: {}", text()));
        }
    }

    fn spawn(&mut self, pid: Pid, job: Box<dyn FnOnce()>) -> usize {
        let thread = self.threads.len();
        self.threads.push(Thread {
            pid,
            wait: Wait::Nothing,
            calls: Vec::new(),
            is_over: false,
            is_killed: false,
        });
        self.born.push_back((thread, job));
        thread
    }

    pub(super) fn view(&self, pid: Pid) -> &'static Registry {
        self.views[pid as usize % VIEWS]
    }

    pub(super) fn new_cookie(&mut self) -> u64 {
        self.cookies += 2;
        self.cookies
    }

    pub(super) fn socket(&mut self, pid: Pid) -> RawFd {
        let cookie = self.new_cookie();
        let fd = self.host.socket(pid, self.plan.room, cookie);
        self.connections.push(Connection {
            directions: [Direction::new(), Direction::new()],
            may_reset: false,
            reported: [false; 2],
            shut: [false; 2],
        });
        fd
    }

    /// The direction that a socket receives.
    pub(super) fn incoming(&mut self, socket: SocketId) -> &mut Direction {
        &mut self.connections[socket / 2].directions[1 - socket % 2]
    }

    pub(super) fn outgoing(&mut self, socket: SocketId) -> &mut Direction {
        &mut self.connections[socket / 2].directions[socket % 2]
    }

    pub(super) fn progressed(&mut self) {
        self.progress += 1;
    }

    /// Handles sockets that the kernel may have closed.
    pub(super) fn after_call(&mut self) {
        while let Some(socket) = self.host.closed.pop() {
            self.progress += 1;
            if self.incoming(socket).may_have_unread() {
                self.connections[socket / 2].may_reset = true;
            }
        }
    }

    pub(super) fn next_number(&mut self) -> Pid {
        self.next_pid += 1;
        self.next_pid
    }

    pub(super) fn current(&self) -> usize {
        self.current.expect("a thread")
    }

    pub(super) fn current_pid(&self) -> Pid {
        self.current.map_or(0, |current| self.threads[current].pid)
    }

    /// Kills a process, whatever its threads are doing.
    fn kill(&mut self, pid: Pid) {
        self.note(|| format!("{pid} is killed"));
        self.end_threads(pid, None);
        self.abandon(pid);
        self.kill_but_current(pid);
    }

    /// Handles a process that ends without hooks. A wakeup that it has not taken is an unread byte,
    /// for which the kernel resets the connection.
    pub(super) fn abandon(&mut self, pid: Pid) {
        for socket in self.host.unread_of(pid) {
            self.connections[socket / 2].may_reset = true;
        }
    }

    /// Releases what the kernel has of a process.
    fn kill_but_current(&mut self, pid: Pid) {
        if let Some(memory) = self.memories.remove(&pid) {
            memory.is_gone.set(true);
        }
        self.borrowers.remove(&pid);
        self.host.exit(pid);
        self.after_call();
        self.progress += 1;
    }

    /// Ends all threads of a process except `but`.
    pub(super) fn end_threads(&mut self, pid: Pid, but: Option<usize>) {
        for index in 0..self.threads.len() {
            let thread = &mut self.threads[index];
            if thread.pid != pid || thread.is_gone() || Some(index) == but {
                continue;
            }
            thread.is_killed = true;
            for call in std::mem::take(&mut self.threads[index].calls) {
                let result = match call.does {
                    Does::Receive(most) => self.incoming(call.socket).lose_receiver(most),
                    Does::Send => {
                        self.outgoing(call.socket).lose_sender();
                        Ok(())
                    }
                    Does::SleepForBytes | Does::SleepForRoom => Ok(()),
                };
                if let Err(what) = result {
                    self.wrong.get_or_insert(what);
                }
            }
        }
    }

    fn is_awake(&self, thread: &Thread) -> bool {
        if thread.is_gone() {
            return false;
        }
        match thread.wait {
            Wait::Nothing => true,
            Wait::Readable(socket) => self.host.is_readable(socket),
            Wait::Writable(socket) => self.host.is_writable(socket),
            Wait::Word(word, value, until) => {
                word.load(Ordering::Relaxed) != value || self.now >= until
            }
            Wait::Futex(futex_wait, until) => !futex_wait.has_waiters() || self.now >= until,
            Wait::Until(until) => self.now >= until,
            Wait::VforkChild(pid) => !self.borrowers.contains(&pid),
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let threads = self.threads.iter().filter(|thread| !thread.is_gone());
        let until = threads.filter_map(|thread| match thread.wait {
            Wait::Word(_, _, until) | Wait::Futex(_, until) | Wait::Until(until) => Some(until),
            _ => None,
        });
        until.min()
    }

    /// Whether no thread sleeps until there are bytes. Such a thread would miss wakeups taken by a
    /// process that falls back to TCP because of a seccomp filter.
    pub(super) fn is_nobody_asleep(&self) -> bool {
        let sleeps = |call: &Call| matches!(call.does, Does::SleepForBytes | Does::Receive(_));
        !self.threads.iter().any(|thread| thread.calls.iter().any(sleeps))
    }

    /// Checks that no process holds a slot that is free.
    fn check_slots(&mut self) {
        for (pid, memory) in &self.memories {
            for stream in memory.streams() {
                if let Some(end) = stream.holding.end()
                    && stream.holding.is_held_by(memory.pid)
                    && !end.is_live()
                {
                    let what = format!("{pid} holds socket {}, whose slot is free", stream.socket);
                    self.wrong.get_or_insert(what);
                    return;
                }
            }
        }
    }

    /// Checks, when nothing goes on any more, that every sleeping thread has a reason to sleep.
    fn check_sleepers(&mut self) {
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            if thread.is_gone() {
                continue;
            }
            let Some(&Call { socket, does }) = thread.calls.last() else { continue };
            let (pid, other) = (thread.pid, self.host.other(socket));
            let has_unread = self.incoming(socket).has_unread();
            let is_reported = self.connections[socket / 2].reported[socket % 2];
            let what = match does {
                Does::SleepForBytes if has_unread && !is_reported => {
                    "sleeps, though there are bytes"
                }
                Does::SleepForBytes if self.host.has_end(socket) => {
                    "sleeps, though the stream has ended"
                }
                Does::SleepForRoom if !self.outgoing(socket).may_have_unread() => {
                    "sleeps until there is room, though all has been read"
                }
                Does::SleepForRoom if self.host.is_closed(other) => "sleeps, though nobody reads",
                _ => continue,
            };
            let what = format!("thread {index} of {pid} on socket {socket} {what}");
            self.wrong.get_or_insert(what);
            return;
        }
    }
}

/// The result of a run.
pub(super) struct Outcome {
    pub(super) wrong: Option<String>,
    pub(super) notes: VecDeque<String>,
}

/// Runs one world to its end.
pub(super) fn run(seed: u64, mutation: Option<Mutation>, keeps_notes: bool) -> Outcome {
    STATE.set(Some(State::new(seed, mutation, keeps_notes)));
    let first = 1 + random(2);
    for _ in 0..first {
        let pid = with(State::next_number);
        with(|world| world.host.processes.insert(pid, super::host::Descriptors::default()));
        spawn(pid, move || program::begin(pid, true));
    }
    let mut fibers: Vec<Option<Fiber>> = Vec::new();
    schedule(&mut fibers);
    if with(|world| world.wrong.is_none()) {
        check_end();
    }
    clear();
    // A stack that is unwound finds that its world has ended.
    for fiber in fibers.into_iter().flatten() {
        recycle(fiber);
    }
    let world = STATE.take().expect("a world");
    CLOCK.with_borrow_mut(|clock| *clock = world.now);
    Outcome { wrong: world.wrong, notes: world.notes }
}

fn recycle(mut fiber: Fiber) {
    with(|world| world.memories.values().for_each(|memory| memory.is_gone.set(true)));
    fiber.unwind();
    FIBERS.with_borrow_mut(|spare| spare.push(fiber));
}

fn schedule(fibers: &mut Vec<Option<Fiber>>) {
    let (mut idle, mut progress) = (0, 0);
    for _ in 0..STEPS_MAX {
        let next = with(|world| {
            if world.wrong.is_some() {
                return None;
            }
            world.check_slots();
            if let Some(kills) = world.plan.kills
                && world.rng.u32(..kills) == 0
                && !world.host.processes.is_empty()
            {
                let victims: Vec<_> = world.host.processes.keys().copied().collect();
                let victim = victims[world.rng.usize(..victims.len())];
                world.kill(victim);
            }
            loop {
                let threads = world.threads.iter().enumerate();
                let awake = threads.filter(|(_, thread)| world.is_awake(thread));
                let awake: Vec<_> = awake.map(|(index, _)| index).collect();
                if !awake.is_empty() {
                    return Some(awake[world.rng.usize(..awake.len())]);
                }
                if world.threads.iter().all(Thread::is_gone) {
                    return None;
                }
                idle = if world.progress == progress { idle + 1 } else { 0 };
                progress = world.progress;
                match world.next_deadline() {
                    Some(until) if idle < IDLE_MAX => world.now = until,
                    _ => {
                        world.check_sleepers();
                        if world.wrong.is_some() {
                            return None;
                        }
                        // Kill a process, as a user does who has waited long enough.
                        let all: Vec<_> = world.host.processes.keys().copied().collect();
                        let victim = all[world.rng.usize(..all.len())];
                        world.kill(victim);
                        idle = 0;
                    }
                }
            }
        });
        let Some(thread) = next else { return };
        with(|world| {
            world.now += 1_000;
            world.current = Some(thread);
            world.threads[thread].wait = Wait::Nothing;
        });
        let job = with(|world| {
            let at = world.born.iter().position(|(born, _)| *born == thread)?;
            world.born.remove(at).map(|(_, job)| job)
        });
        if fibers.len() <= thread {
            fibers.resize_with(thread + 1, || None);
        }
        let is_over = match job {
            Some(job) => {
                let mut fiber = FIBERS.with_borrow_mut(Vec::pop).unwrap_or_else(Fiber::new);
                let is_over = fiber.begin(job);
                fibers[thread] = Some(fiber);
                is_over
            }
            None => fibers[thread].as_mut().expect("it has begun").go_on(),
        };
        with(|world| {
            world.current = None;
            world.threads[thread].is_over |= is_over;
        });
        if is_over && let Some(fiber) = fibers[thread].take() {
            FIBERS.with_borrow_mut(|spare| spare.push(fiber));
        }
    }
    fail("it does not end".to_owned());
}

/// Releases the slots that a failed world has left.
fn clear() {
    let registry = views()[0];
    for slot in 0..SLOTS {
        registry.release(slot, registry.generation(slot));
    }
}

/// Checks that all slots are released by a sweep once all processes have gone.
fn check_end() {
    with(|world| {
        world.host.close_listener();
        world.after_call();
    });
    let registry = views()[0];
    sweep::<Sim>(registry);
    let left = registry.in_use() - (CONNECTIONS_MAX - SLOTS);
    if left != 0 {
        fail(format!("{left} slots are never given back"));
    }
}
