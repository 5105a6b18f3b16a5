//! A simulated process on Weft: a descriptor table like that of the sockets library, and the hooks
//! before and after each call. The decisions are made by the product's code
//! ([`crate::inheritance`], [`crate::holding`], [`crate::end`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::Mutation;
use super::host::{Pid, SocketId};
use super::program;
use super::world::{Sim, Socket, Wait, end_process, fail, now, spawn, step, wait_for, with};
use rustix::io::Errno;

use crate::end::{End, Process};
use crate::flow::Flow;
use crate::holding::Holding;
use crate::inheritance::{self, Descriptors};
use crate::kernel::Kernel;
use crate::reason::Reason;
use crate::registry::Registry;
use crate::tuple::Tuple;

/// How far a socket has come towards an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessPhase {
    /// Not connected, as far as the library knows.
    Fresh,
    /// Accepted; the offer has not been found yet.
    Candidate,
    /// Connected, with an end if there was a free slot.
    Settled,
    Tcp,
}

/// State of a TCP socket, shared by all descriptors that refer to it.
#[derive(Debug)]
pub(super) struct Stream {
    pid: Pid,
    registry: &'static Registry,
    pub(super) socket: SocketId,
    pub(super) holding: Holding<Sim>,
    pub(super) phase: Cell<ProcessPhase>,
    /// Bytes sent and received before there was an end.
    pub(super) counts: Cell<(u64, u64)>,
    /// A thread is in a call whose bytes are counted.
    is_counting: Cell<bool>,
    descriptors: Cell<u32>,
    memory_is_gone: Rc<Cell<bool>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.memory_is_gone.get() {
            self.holding.let_go();
        }
    }
}

/// A process's memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) pid: Pid,
    pub(super) registry: &'static Registry,
    /// The memory is gone, and no destructor runs.
    pub(super) is_gone: Rc<Cell<bool>>,
    table: RefCell<BTreeMap<RawFd, Rc<Stream>>>,
    forks: Cell<u32>,
    /// A thread is about to fork: no other thread opens a descriptor or forks.
    is_forking: Cell<bool>,
    /// Number of closes and copies under way.
    changes_under_way: Cell<u32>,
    /// Number of program starts under way.
    starts_under_way: Cell<u32>,
    /// Number of calls under way, by descriptor. Programs do not close a descriptor in use.
    pub(super) uses: RefCell<BTreeMap<RawFd, u32>>,
}

impl Memory {
    fn new(pid: Pid) -> Rc<Self> {
        let registry = with(|world| world.view(pid));
        Rc::new(Self {
            pid,
            registry,
            is_gone: Rc::new(Cell::new(false)),
            table: RefCell::new(BTreeMap::new()),
            forks: Cell::new(0),
            is_forking: Cell::new(false),
            changes_under_way: Cell::new(0),
            starts_under_way: Cell::new(0),
            uses: RefCell::new(BTreeMap::new()),
        })
    }

    /// The copy that a child gets by `fork`.
    fn copy(&self, pid: Pid) -> Rc<Self> {
        let memory = Self {
            pid,
            registry: self.registry,
            is_gone: Rc::new(Cell::new(false)),
            table: RefCell::new(BTreeMap::new()),
            forks: self.forks.clone(),
            is_forking: Cell::new(false),
            changes_under_way: Cell::new(0),
            starts_under_way: Cell::new(0),
            uses: RefCell::new(BTreeMap::new()),
        };
        let mut copies: Vec<(Rc<Stream>, Rc<Stream>)> = Vec::new();
        for (&fd, stream) in &*self.table.borrow() {
            let known = copies.iter().find(|(from, _)| Rc::ptr_eq(from, stream));
            let copy = known.map_or_else(
                || {
                    Rc::new(Stream {
                        pid,
                        registry: self.registry,
                        socket: stream.socket,
                        holding: stream.holding.copied(),
                        phase: stream.phase.clone(),
                        counts: stream.counts.clone(),
                        is_counting: Cell::new(false),
                        descriptors: stream.descriptors.clone(),
                        memory_is_gone: Rc::clone(&memory.is_gone),
                    })
                },
                |(_, to)| Rc::clone(to),
            );
            copies.push((Rc::clone(stream), Rc::clone(&copy)));
            memory.table.borrow_mut().insert(fd, copy);
        }
        Rc::new(memory)
    }

    pub(super) fn streams(&self) -> Vec<Rc<Stream>> {
        self.table.borrow().values().cloned().collect()
    }

    pub(super) fn fds(&self) -> Vec<RawFd> {
        self.table.borrow().keys().copied().collect()
    }

    pub(super) fn find(&self, fd: RawFd) -> Option<Rc<Stream>> {
        self.table.borrow().get(&fd).cloned()
    }

    /// Whether no thread is in a call on this descriptor.
    pub(super) fn is_idle(&self, fd: RawFd) -> bool {
        !self.uses.borrow().contains_key(&fd)
    }

    fn install(&self, fd: RawFd, socket: SocketId, phase: ProcessPhase, holding: Holding<Sim>) {
        self.wait_for_fork();
        let stream = Stream {
            pid: self.pid,
            registry: self.registry,
            socket,
            holding,
            phase: Cell::new(phase),
            counts: Cell::default(),
            is_counting: Cell::new(false),
            descriptors: Cell::new(1),
            memory_is_gone: Rc::clone(&self.is_gone),
        };
        self.put(fd, Rc::new(stream));
    }

    fn wait_for_fork(&self) {
        while self.is_forking.get() {
            step();
        }
    }

    fn put(&self, fd: RawFd, stream: Rc<Stream>) {
        let before = self.table.borrow_mut().insert(fd, stream);
        if let Some(before) = before {
            before.descriptors.set(before.descriptors.get() - 1);
        }
    }

    fn remove(&self, fd: RawFd) -> Option<Rc<Stream>> {
        let stream = self.table.borrow_mut().remove(&fd)?;
        stream.descriptors.set(stream.descriptors.get() - 1);
        Some(stream)
    }
}

/// The calling process: the memory that it uses, and its process number. A child of `vfork` uses
/// its parent's memory.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) memory: Rc<Memory>,
    pub(super) pid: Pid,
}

impl inheritance::Stream for Stream {
    type Kernel = Sim;

    fn holding(&self) -> &Holding<Sim> {
        &self.holding
    }

    fn fall_back_to_tcp(&self, fd: RawFd, _: Reason) {
        match self.holding.end() {
            Some(end) if end.has_fallen_back() => {}
            Some(end) => end.fall_back_to_tcp(handle(fd)),
            None => {
                self.phase.set(ProcessPhase::Tcp);
                if let Some(end) = self.holding.bar() {
                    end.fall_back_to_tcp(handle(fd));
                }
            }
        }
    }

    fn is_tcp(&self) -> bool {
        self.holding.end().is_none() && self.phase.get() == ProcessPhase::Tcp
    }

    fn before_fork(&self, fd: RawFd) {
        self.look_alone(fd);
    }

    fn forking_without_end(&self, _: RawFd) {
        self.phase.set(ProcessPhase::Tcp);
    }

    fn forked(&self) {}
}

/// The kernel's handle for a descriptor of the calling process.
pub(super) fn handle(fd: RawFd) -> Socket {
    with(|world| Socket { pid: world.current_pid(), fd })
}

impl Stream {
    /// The end. Looks for an offer if there is none yet.
    pub(super) fn look(&self, fd: RawFd) -> Option<&End<Sim>> {
        if self.holding.end().is_none() && self.phase.get() == ProcessPhase::Candidate {
            let (tuple, cookie) = with(|world| {
                let socket = &world.host.sockets[self.socket];
                (Tuple::new(socket.peer, socket.own), socket.cookie)
            });
            let me = Process { pid: self.pid, fd: 0, cookie, program: [0; 16] };
            if let Some(end) = End::find(self.registry, &tuple, &me, self.counts.get()) {
                self.holding.begin(end, self.pid, handle(fd));
                self.phase.set(ProcessPhase::Settled);
            }
        }
        self.holding.end()
    }

    /// Looks for an offer while no counted call is under way, whose bytes would be missed.
    fn look_alone(&self, fd: RawFd) {
        self.begin_counting();
        self.look(fd);
        self.end_counting();
    }

    /// Begins a counted call. One thread at a time makes such calls.
    pub(super) fn begin_counting(&self) {
        while self.is_counting.replace(true) {
            wait_for(Wait::Until(now() + 10_000));
        }
    }

    pub(super) fn end_counting(&self) {
        self.is_counting.set(false);
    }
}

impl Descriptors for Own {
    type Kernel = Sim;
    type Stream = Stream;

    fn pid(&self) -> u32 {
        self.memory.pid
    }

    fn streams(&self) -> impl Iterator<Item = RawFd> {
        self.memory.fds().into_iter()
    }

    fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Stream) -> R) -> Option<R> {
        self.memory.find(fd).map(|stream| look(&stream))
    }

    fn with_socket<R>(&self, fd: RawFd, act: impl FnOnce(<Sim as Kernel>::Socket<'_>) -> R) -> R {
        act(handle(fd))
    }

    fn cookie(&self, fd: RawFd) -> Option<u64> {
        step();
        with(|world| {
            let id = world.host.socket_of(self.pid, fd)?;
            Some(world.host.sockets[id].cookie)
        })
    }

    fn for_each_open(&self, act: impl FnMut(RawFd)) -> bool {
        step();
        let open = with(|world| world.host.processes.get(&self.pid).map(|it| it.open.clone()));
        open.into_iter().flat_map(BTreeMap::into_keys).for_each(act);
        true
    }

    fn forget(&self, fd: RawFd) {
        if let Some(socket) = self.socket_of(fd) {
            self.memory.install(fd, socket, ProcessPhase::Tcp, Holding::new());
        }
    }

    fn share(&self, fd: RawFd, copy: RawFd) {
        if let Some(stream) = self.memory.find(fd) {
            stream.descriptors.set(stream.descriptors.get() + 1);
            self.memory.put(copy, stream);
        }
    }

    fn find(&self, fd: RawFd, cookie: u64) -> Option<End<Sim>> {
        let is_borrower = self.pid != self.memory.pid;
        if is_borrower && with(|world| world.mutation) == Some(Mutation::DupForgotten) {
            return None; // Finding the end would hide the mutation.
        }
        let id = self.socket_of(fd)?;
        let ends = with(|world| {
            let socket = &world.host.sockets[id];
            (socket.own, socket.peer_name())
        });
        End::inherited(self.memory.registry, ends, (0, cookie), self.memory.pid)
    }

    fn take_over(&self, fd: RawFd, end: End<Sim>) {
        if let Some(socket) = self.socket_of(fd) {
            let holding = Holding::inherited(end, self.memory.pid);
            self.memory.install(fd, socket, ProcessPhase::Settled, holding);
        }
    }
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It makes its next call.
    GoesOn,
    /// It has become another program, on Weft or not.
    Becomes { is_on_weft: bool },
    /// The thread has ended.
    Ends,
}

fn waits_beside_close() -> bool {
    with(|world| world.mutation) != Some(Mutation::StartBesideClose)
}

/// The hooks: what the library does before and after a program's calls.
impl Own {
    /// Starts a program on Weft, which takes over the sockets that it was started with.
    pub(super) fn begin(pid: Pid) -> Self {
        let own = Self { memory: Memory::new(pid), pid };
        with(|world| world.memories.insert(pid, Rc::clone(&own.memory)));
        let fds = with(|world| world.host.processes[&pid].open.keys().copied().collect::<Vec<_>>());
        fds.into_iter().for_each(|fd| inheritance::take_over(&own, fd));
        own
    }

    pub(super) fn socket_of(&self, fd: RawFd) -> Option<SocketId> {
        with(|world| world.host.socket_of(self.pid, fd))
    }

    fn flow() -> Flow {
        with(|world| if world.plan.credits { Flow::Credit } else { Flow::Packed })
    }

    pub(super) fn socket(&self) {
        step();
        let fd = with(|world| world.socket(self.pid));
        if let Some(socket) = self.socket_of(fd) {
            self.memory.install(fd, socket, ProcessPhase::Fresh, Holding::new());
        }
    }

    pub(super) fn connect(&self, fd: RawFd) {
        let Some(stream) = self.memory.find(fd) else { return };
        step();
        let connected = with(|world| {
            let socket = world.host.socket_of(self.pid, fd).ok_or(Errno::BADF)?;
            world.host.connect(socket)
        });
        if connected == Ok(()) {
            self.offer(&stream, fd);
        }
    }

    /// Called when the kernel has connected a socket.
    fn offer(&self, stream: &Stream, fd: RawFd) {
        step();
        if stream.phase.get() != ProcessPhase::Fresh {
            return;
        }
        let socket = stream.socket;
        let (tuple, cookie) = with(|world| {
            let socket = &world.host.sockets[socket];
            (Tuple::new(socket.own, socket.peer), socket.cookie)
        });
        let me = Process { pid: self.memory.pid, fd: 0, cookie, program: [0; 16] };
        let end = End::offer(self.memory.registry, &tuple, &me, Self::flow());
        stream.phase.set(if end.is_some() { ProcessPhase::Settled } else { ProcessPhase::Tcp });
        if let Some(end) = end {
            stream.holding.begin(end, self.memory.pid, handle(fd));
        }
    }

    pub(super) fn accept(&self) {
        step();
        let Some(fd) = with(|world| world.host.accept(self.pid)) else { return };
        let Some(socket) = self.socket_of(fd) else { return };
        self.memory.install(fd, socket, ProcessPhase::Candidate, Holding::new());
        if let Some(stream) = self.memory.find(fd) {
            stream.look_alone(fd);
        }
    }

    pub(super) fn close(&self, fd: RawFd) {
        self.changing(|| {
            self.closing(fd);
            step();
            with(|world| {
                world.host.close(self.pid, fd);
                world.after_call();
            });
        });
    }

    /// Waits until a close or a copy may begin.
    pub(super) fn wait_for_starts(&self) {
        while self.memory.starts_under_way.get() > 0 && waits_beside_close() {
            step();
        }
    }

    /// Runs a close or a copy. The table and the kernel disagree meanwhile, so no program is
    /// started.
    fn changing(&self, change: impl FnOnce()) {
        let under_way = &self.memory.changes_under_way;
        under_way.set(under_way.get() + 1);
        change();
        under_way.set(under_way.get() - 1);
    }

    /// Begins the start of a program, which [`Own::end_to_start`] ends.
    fn begin_to_start(&self) {
        let under_way = &self.memory.starts_under_way;
        under_way.set(under_way.get() + 1);
        while self.memory.changes_under_way.get() > 0 && waits_beside_close() {
            step();
        }
    }

    fn end_to_start(&self) {
        let under_way = &self.memory.starts_under_way;
        under_way.set(under_way.get() - 1);
    }

    fn closing(&self, fd: RawFd) {
        let Some(stream) = self.memory.remove(fd) else { return };
        if stream.descriptors.get() == 0 {
            stream.holding.closing(handle(fd));
        }
    }

    pub(super) fn dup(&self, fd: RawFd, to: Option<RawFd>) {
        self.changing(|| {
            if let Some(to) = to {
                self.closing(to);
            }
            step();
            let copy = with(|world| {
                let copy = world.host.dup(self.pid, fd, to);
                world.after_call();
                copy
            });
            if let Some(copy) = copy
                && with(|world| world.mutation) != Some(Mutation::DupForgotten)
            {
                self.share(fd, copy);
            }
        });
    }

    pub(super) fn set_cloexec(&self, fd: RawFd, is_cloexec: bool) {
        step();
        with(|world| world.host.set_cloexec(self.pid, fd, is_cloexec));
    }

    pub(super) fn shut_write(&self, stream: &Stream, fd: RawFd) {
        stream.begin_counting();
        if let Some(end) = stream.look(fd) {
            end.shut_write();
        } else {
            // The product remembers the shutdown. Here the socket gets no end any more.
            stream.phase.set(ProcessPhase::Tcp);
        }
        stream.end_counting();
        step();
        with(|world| {
            if let Some(socket) = world.host.socket_of(self.pid, fd) {
                world.host.shut_write(socket);
                world.connections[socket / 2].shut[socket % 2] = true;
                world.after_call();
            }
        });
    }

    pub(super) fn fork(&self) {
        let mutation = with(|world| world.mutation);
        self.memory.wait_for_fork();
        self.memory.is_forking.set(true);
        let fork = self.memory.forks.get() + 1;
        self.memory.forks.set(fork);
        if mutation != Some(Mutation::ChildUncounted) {
            inheritance::before_fork(self, fork);
        }
        let before = self.memory.fds();
        step();
        if with(|world| world.rng.u8(..8) == 0) {
            self.memory.is_forking.set(false);
            return inheritance::fork_failed(self, fork);
        }
        let child = with(|world| {
            let child = world.next_number();
            world.host.fork(self.pid, child);
            world.host.hide_all_but(child, &before);
            let memory = self.memory.copy(child);
            world.memories.insert(child, Rc::clone(&memory));
            Self { memory, pid: child }
        });
        self.memory.is_forking.set(false);
        let parent = self.memory.pid;
        spawn(child.pid, move || {
            inheritance::in_child(&child, parent);
            program::go_on(child);
        });
    }

    /// Makes the process another program, unless that fails.
    pub(super) fn exec(&self) -> Next {
        self.begin_to_start();
        let is_for_weft =
            inheritance::prepare(self, inheritance::ExecTarget::SameProcess).is_for_weft();
        step();
        if with(|world| world.rng.u8(..8) == 0) {
            inheritance::take_back(self);
            self.end_to_start();
            return Next::GoesOn;
        }
        self.memory.is_gone.set(true);
        with(|world| {
            let own = world.current();
            world.end_threads(self.pid, Some(own));
            world.memories.remove(&self.pid);
            world.host.exec(self.pid);
            world.after_call();
        });
        Next::Becomes { is_on_weft: is_for_weft || !program::is_foreign() }
    }

    /// `posix_spawn(3)` with copies of these descriptors.
    pub(super) fn spawn(&self, copies: &[RawFd]) {
        let is_late = with(|world| world.mutation) == Some(Mutation::LeavesLate);
        let prepare = || inheritance::prepare(self, inheritance::ExecTarget::Child(copies));
        self.begin_to_start();
        let before = self.memory.fds();
        let inheritance = if is_late { inheritance::Inheritance::empty() } else { prepare() };
        step();
        if with(|world| world.rng.u8(..16) == 0) {
            inheritance.take_back(); // The connections stay on TCP.
        } else {
            let is_for_weft = inheritance.is_for_weft();
            let child = with(|world| {
                let child = world.next_number();
                world.host.fork(self.pid, child);
                copies.iter().for_each(|&fd| world.host.set_cloexec(child, fd, false));
                world.host.hide_all_but(child, &before);
                world.host.exec(child);
                world.after_call();
                child
            });
            let is_on_weft = is_for_weft || !program::is_foreign();
            spawn(child, move || program::begin(child, is_on_weft));
            if is_late {
                step();
                drop(prepare());
            }
        }
        self.end_to_start();
    }

    /// `vfork(2)`: the child uses this process's memory until it becomes a program or ends. This
    /// thread sleeps until then.
    pub(super) fn vfork(&self) {
        step();
        let child = with(|world| {
            let child = world.next_number();
            world.host.fork(self.pid, child);
            world.borrowers.insert(child);
            child
        });
        let own = Self { memory: Rc::clone(&self.memory), pid: child };
        spawn(child, move || {
            // Changes of the child's descriptors do not affect the parent.
            let fds = own.memory.fds();
            for fd in fds {
                if with(|world| world.rng.u8(..4) == 0) {
                    step();
                    with(|world| {
                        world.host.close(child, fd);
                        world.after_call();
                    });
                }
            }
            if with(|world| world.rng.u8(..4) == 0) {
                drop(own);
                return end_process(child, false);
            }
            let mut inheritance = inheritance::prepare(&own, inheritance::ExecTarget::VforkChild);
            while with(|world| world.rng.u8(..16) == 0) {
                inheritance.take_back(); // There is no such program. The child may try another one.
                step();
                inheritance = inheritance::prepare(&own, inheritance::ExecTarget::VforkChild);
            }
            let is_for_weft = inheritance.is_for_weft();
            step();
            with(|world| {
                world.borrowers.remove(&child);
                world.host.exec(child);
                world.after_call();
            });
            drop(own);
            program::begin(child, is_for_weft || !program::is_foreign());
        });
        wait_for(Wait::VforkChild(child));
    }

    /// Passes a socket to another process on Weft.
    pub(super) fn pass(&self, fd: RawFd, to: Pid) {
        let Some(stream) = self.memory.find(fd) else { return };
        inheritance::pass_on(self, &stream, fd);
        step();
        with(|world| {
            world.host.pass(self.pid, fd, to);
            // If no process receives it, its wakeups stay unread, and the kernel resets the
            // connection.
            world.connections[stream.socket / 2].may_reset = true;
        });
    }

    /// Receives a socket that has been passed.
    pub(super) fn receive_passed(&self) {
        step();
        let received = with(|world| {
            let fd = world.host.receive(self.pid)?;
            world.host.hide(self.pid, fd);
            Some(fd)
        });
        let Some(fd) = received else { return };
        if self.memory.remove(fd).is_some() {
            fail("a number that is open has been given anew".to_owned());
        }
        inheritance::take_over(self, fd);
        with(|world| world.host.show(self.pid, fd));
    }

    /// `exit(3)`: ends all threads.
    pub(super) fn exit(&self) {
        let fds = self.memory.fds();
        for fd in fds {
            let Some(stream) = self.memory.remove(fd) else { continue };
            if stream.descriptors.get() == 0 {
                stream.holding.closing(handle(fd));
            }
        }
        step();
        if !self.memory.uses.borrow().is_empty() {
            // A thread that ends in a call may have been woken just now.
            with(|world| world.abandon(self.pid));
        }
        end_process(self.pid, true);
    }
}
