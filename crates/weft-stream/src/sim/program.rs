//! The simulated programs: random calls, most of which move bytes.

use std::io::IoSliceMut;
use std::os::fd::RawFd;
use std::rc::Rc;

use rustix::io::Errno;
use weft_sys::Buffers;

use super::Mutation;
use super::host::{Pid, SocketId};
use super::process::{Next, Own, ProcessPhase, Stream, handle};
use super::world::{
    Call, Does, Sim, Wait, check, end_process, note, now, one_in, random, spawn, step, wait_for,
    with,
};
use crate::end::{Carrier, End};
use crate::inheritance;
use crate::kernel::Kernel as _;
use crate::reason::Reason;
use crate::recv_options::RecvOptions;

/// Maximum length of one call.
const LEN_MAX: usize = 120;
/// How long a reader sleeps if only the peer can wake it, and then the same for a writer.
const FUTEX_WAIT_TIME: u64 = 10_000_000;
const WRITER_SLEEP: u64 = 20_000_000;
const PROCESSES_MAX: usize = 6;

/// Whether the next program runs without Weft.
pub(super) fn is_foreign() -> bool {
    with(|world| world.plan.foreigners && world.rng.bool())
}

/// Runs a program from its start.
pub(super) fn begin(pid: Pid, is_on_weft: bool) {
    let mut is_on_weft = is_on_weft;
    loop {
        note(|| format!("begins, {}", if is_on_weft { "on Weft" } else { "without Weft" }));
        if !is_on_weft {
            return foreign(pid);
        }
        match acts(&Own::begin(pid)) {
            Next::Becomes { is_on_weft: next } => is_on_weft = next,
            _ => return,
        }
    }
}

/// Continues in a child of `fork`.
pub(super) fn go_on(own: Own) {
    let pid = own.pid;
    if let Next::Becomes { is_on_weft } = acts(&own) {
        drop(own);
        begin(pid, is_on_weft);
    }
}

fn may_act() -> bool {
    with(|world| {
        let may = world.acts > 0;
        world.acts = world.acts.saturating_sub(1);
        may
    })
}

/// Runs the main thread.
fn acts(own: &Own) -> Next {
    while may_act() {
        match act(own, true) {
            Next::GoesOn => {}
            next => return next,
        }
        step();
    }
    if one_in(4) {
        end_process(own.pid, false); // As by a signal or a direct `_exit`.
    } else {
        note(|| "exits".to_owned());
        own.exit();
    }
    Next::Ends
}

fn act(own: &Own, is_main: bool) -> Next {
    let known = with(|world| world.host.known(own.pid));
    let is_ours = |&(fd, _): &(RawFd, _)| own.memory.find(fd).is_some();
    // The kernel alone handles a copy that the library does not know.
    let forgets = with(|world| world.mutation) == Some(Mutation::DupForgotten);
    let stray = known.iter().find(|it| forgets && !is_ours(it)).copied();
    let fds: Vec<_> = known.into_iter().filter(is_ours).map(|(fd, _)| fd).collect();
    let any = |fds: &[RawFd]| (!fds.is_empty()).then(|| fds[random(fds.len())]);
    let fd = any(&fds);
    // Descriptors that may be closed or replaced, once no program is being started.
    let idle = || -> Vec<RawFd> {
        own.wait_for_starts();
        let is_idle = |&fd: &RawFd| own.memory.find(fd).is_some() && own.memory.is_idle(fd);
        fds.iter().copied().filter(is_idle).collect()
    };
    let has_room = with(|world| world.host.processes.len() < PROCESSES_MAX);
    match random(40) {
        0..2 if fds.len() < 4 => {
            note(|| "socket".to_owned());
            own.socket();
        }
        2..4 => {
            let is_fresh = |&fd: &RawFd| {
                let socket = own.memory.find(fd).map(|stream| stream.socket);
                socket.is_some_and(|socket| with(|world| world.host.is_fresh(socket)))
            };
            if let Some(fd) = any(&fds.iter().copied().filter(is_fresh).collect::<Vec<_>>()) {
                note(|| format!("connect {fd}"));
                using(own, fd, || own.connect(fd));
            }
        }
        4..6 if with(|world| world.host.has_backlog()) => {
            note(|| "accept".to_owned());
            own.accept();
        }
        4..6 => {}
        6..15 => {
            if let Some((fd, socket)) = stray {
                foreign_send(fd, socket);
            } else if let Some(fd) = fd {
                send(own, fd, one_in(3));
            }
        }
        15..24 => {
            if let Some((fd, socket)) = stray {
                foreign_receive(fd, socket);
            } else if let Some(fd) = fd {
                receive(own, fd, one_in(2));
            }
        }
        24..26 => {
            if let Some(fd) = any(&idle()) {
                note(|| format!("close {fd}"));
                own.close(fd);
            }
        }
        26 => {
            own.wait_for_starts();
            if let Some(fd) = fd
                && own.memory.find(fd).is_some()
            {
                note(|| format!("dup {fd}"));
                using(own, fd, || own.dup(fd, None));
            }
        }
        27 => {
            if let (Some(to), Some(fd)) = (any(&idle()), fd)
                && fd != to
                && own.memory.find(fd).is_some()
            {
                note(|| format!("dup2 {fd} {to}"));
                using(own, fd, || own.dup(fd, Some(to)));
            }
        }
        28 => {
            if let Some(fd) = fd {
                own.set_cloexec(fd, one_in(2));
            }
        }
        29 if one_in(3) => {
            if let Some(fd) = fd
                && let Some(stream) = own.memory.find(fd)
            {
                note(|| format!("shutdown {fd}"));
                // No thread may send meanwhile: bytes that the kernel takes between the mark and
                // its own shutdown are lost (docs/internals/sockets.md).
                let socket = stream.socket;
                let begins = with(|world| {
                    let outgoing = world.outgoing(socket);
                    let begins = !outgoing.is_sending();
                    if begins {
                        outgoing.begin_send(Vec::new());
                    }
                    begins
                });
                if begins {
                    using(own, fd, || {
                        calling(socket, Does::Send, || own.shut_write(&stream, fd));
                    });
                    check(with(|world| world.outgoing(socket).end_send(0)));
                }
            }
        }
        30..32 if has_room => {
            note(|| "fork".to_owned());
            own.fork();
        }
        32 if is_main && one_in(2) => {
            note(|| "exec".to_owned());
            return own.exec();
        }
        33 if has_room => {
            let copies: Vec<_> = fd.into_iter().filter(|_| one_in(2)).collect();
            note(|| format!("spawn with {copies:?}"));
            own.spawn(&copies);
        }
        34 if has_room && is_main => {
            note(|| "vfork".to_owned());
            own.vfork();
        }
        35 if with(|world| world.plan.passes) => {
            let others: Vec<_> = with(|world| world.memories.keys().copied().collect());
            if let Some(fd) = fd
                && !others.is_empty()
            {
                let to = others[random(others.len())];
                note(|| format!("passes {fd} to {to}"));
                using(own, fd, || own.pass(fd, to));
            }
        }
        36 | 37 => {
            note(|| "receives what was passed".to_owned());
            own.receive_passed();
        }
        38 if is_main && with(|world| world.plan.threads) && has_room => {
            let own = own.clone();
            note(|| "thread".to_owned());
            spawn(own.pid, move || {
                for _ in 0..10 {
                    if !may_act() || act(&own, false) != Next::GoesOn {
                        return;
                    }
                    step();
                }
            });
        }
        39 if one_in(4) && with(|world| world.is_nobody_asleep()) => {
            note(|| "leaves".to_owned());
            inheritance::leave_all(own, Reason::Seccomp);
        }
        _ => {}
    }
    Next::GoesOn
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Counts a call on a descriptor while it is under way.
pub(super) fn using<R>(own: &Own, fd: RawFd, act: impl FnOnce() -> R) -> R {
    *own.memory.uses.borrow_mut().entry(fd).or_insert(0) += 1;
    let result = act();
    let mut uses = own.memory.uses.borrow_mut();
    let count = uses.get_mut(&fd).expect("counted");
    *count -= 1;
    if *count == 0 {
        uses.remove(&fd);
    }
    result
}

/// Reports a call to the model while it is under way.
fn calling<R>(socket: SocketId, does: Does, act: impl FnOnce() -> R) -> R {
    with(|world| {
        let current = world.current();
        world.threads[current].calls.push(Call { socket, does });
    });
    let result = act();
    with(|world| {
        let current = world.current();
        world.threads[current].calls.pop();
    });
    result
}

/// The stream to send or receive on. A thread uses it only after it has been connected.
fn usable(own: &Own, fd: RawFd) -> Option<Rc<Stream>> {
    let stream = own.memory.find(fd)?;
    (stream.phase.get() != ProcessPhase::Fresh).then_some(stream)
}

fn send(own: &Own, fd: RawFd, waits: bool) {
    let Some(stream) = usable(own, fd) else { return };
    using(own, fd, || {
        loop {
            match send_once(&stream.clone(), fd) {
                Some(Err(Errno::AGAIN)) if waits => {}
                Some(_) => return want_room(&stream),
                None => return,
            }
            if !wait_for_room(&stream, fd) {
                return;
            }
        }
    });
}

/// Asks for room, as a poll does that the program may not repeat.
fn want_room(stream: &Stream) {
    if with(|world| world.plan.moments)
        && one_in(3)
        && let Some(end) = stream.holding.end()
        && end.carrier_out() == Carrier::Memory
    {
        end.want_room();
    }
}

/// Makes one call that does not wait. `None` if another thread is in one.
fn send_once(stream: &Rc<Stream>, fd: RawFd) -> Option<Result<usize, Errno>> {
    let socket = stream.socket;
    let bytes = with(|world| {
        if world.outgoing(socket).is_sending() {
            return None;
        }
        let len = world.rng.usize(1..=LEN_MAX);
        let bytes: Vec<u8> = (0..len).map(|_| world.rng.u8(b'A'..=b'z')).collect();
        world.outgoing(socket).begin_send(bytes.clone());
        Some(bytes)
    })?;
    let sent = calling(socket, Does::Send, || {
        let mut copy = bytes.clone();
        let slices = &mut [IoSliceMut::new(&mut copy)];
        let buffers = Buffers::of(slices);
        match stream.holding.end() {
            Some(end) => end.try_send(handle(fd), buffers, 0),
            None if stream.phase.get() == ProcessPhase::Candidate => {
                stream.begin_counting();
                let sent = match stream.look(fd) {
                    Some(end) => end.try_send(handle(fd), buffers, 0),
                    None => Sim::send(handle(fd), buffers, 0).inspect(|&sent| {
                        let (before, read) = stream.counts.get();
                        stream.counts.set((before + sent as u64, read));
                    }),
                };
                stream.end_counting();
                sent
            }
            None => Sim::send(handle(fd), buffers, 0),
        }
    });
    note(|| format!("send {fd}, socket {socket}: {sent:?} of {}", text(&bytes)));
    check(with(|world| {
        let count = sent.unwrap_or(0);
        if count > 0 {
            world.progressed();
        }
        world.outgoing(socket).end_send(count)
    }));
    check_send(socket, sent);
    Some(sent)
}

fn check_send(socket: SocketId, sent: Result<usize, Errno>) {
    check(with(|world| {
        let other = world.host.other(socket);
        let is_fresh = world.host.is_fresh(socket);
        let connection = &mut world.connections[socket / 2];
        match sent {
            Ok(_) => {
                if world.host.is_closed(other) {
                    connection.may_reset = true;
                }
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET)
                if connection.may_reset
                    || connection.shut[socket % 2]
                    || world.host.is_closed(other) =>
            {
                connection.reported[socket % 2] = true;
                Ok(())
            }
            Err(_) if is_fresh => Ok(()),
            Err(error) => Err(format!("socket {socket} cannot send for no reason: {error}")),
        }
    }));
}

/// Sleeps like `Stream::wait_for_room` of the sockets library. `false` means that the caller gives
/// up.
fn wait_for_room(stream: &Stream, fd: RawFd) -> bool {
    let socket = stream.socket;
    calling(socket, Does::SleepForRoom, || {
        let Some(end) = stream.holding.end().filter(|end| end.carrier_out() == Carrier::Memory)
        else {
            wait_for(Wait::Writable(socket));
            return;
        };
        loop {
            let (word, value) = end.want_room_by_futex();
            if end.room() > 0 {
                return;
            }
            wait_for(Wait::Word(word, value, now() + WRITER_SLEEP));
            if end.room() > 0 {
                return;
            }
            if Sim::is_hung_up(handle(fd)) {
                return end.hang_up_unread(handle(fd));
            }
            if end.carrier_out() != Carrier::Memory {
                return;
            }
        }
    });
    true
}

fn receive(own: &Own, fd: RawFd, waits: bool) {
    let Some(stream) = usable(own, fd) else { return };
    using(own, fd, || {
        let (socket, most) = (stream.socket, 1 + random(LEN_MAX));
        loop {
            let look = RecvOptions { look: true, ..RecvOptions::default() };
            if receive_once(&stream, fd, most, look) != Err(Errno::AGAIN) || !waits {
                return;
            }
            let Some(end) = stream.holding.end() else {
                if stream.holding.begin_sleep() {
                    sleep(socket, Wait::Readable(socket));
                }
                stream.holding.end_sleep();
                continue;
            };
            if wait_in_memory(end, &stream, fd, most) != Err(Errno::AGAIN) {
                return;
            }
        }
    });
}

fn sleep(socket: SocketId, wait: Wait) {
    calling(socket, Does::SleepForBytes, || wait_for(wait));
}

/// Waits like `Stream::wait_and_recv` of the sockets library, and receives.
fn wait_in_memory(
    end: &End<Sim>,
    stream: &Rc<Stream>,
    fd: RawFd,
    most: usize,
) -> Result<usize, Errno> {
    let quick = RecvOptions { look: false, ..RecvOptions::default() };
    let look = RecvOptions { look: true, ..RecvOptions::default() };
    let socket = stream.socket;
    if end.carrier_in() == Carrier::Memory && one_in(2) {
        if let Some(word) = end.begin_futex_wait() {
            sleep(socket, Wait::Futex(word, now() + FUTEX_WAIT_TIME));
        }
        let received = receive_once(stream, fd, most, quick);
        if received != Err(Errno::AGAIN) {
            return received;
        }
    }
    end.begin_sleep();
    let received = receive_once(stream, fd, most, look);
    if received == Err(Errno::AGAIN) {
        sleep(socket, Wait::Readable(socket));
    }
    end.end_sleep();
    if received == Err(Errno::AGAIN) { receive_once(stream, fd, most, look) } else { received }
}

/// Makes one call that does not wait.
fn receive_once(
    stream: &Rc<Stream>,
    fd: RawFd,
    most: usize,
    options: RecvOptions,
) -> Result<usize, Errno> {
    let socket = stream.socket;
    with(|world| world.incoming(socket).begin_receive());
    let mut bytes = vec![0; most];
    let received = calling(socket, Does::Receive(most), || {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let buffers = Buffers::of(slices);
        match stream.holding.end() {
            Some(end) => end.try_recv(handle(fd), buffers, options),
            None if stream.phase.get() == ProcessPhase::Candidate => {
                stream.begin_counting();
                let received = match stream.look(fd) {
                    Some(end) => end.try_recv(handle(fd), buffers, options),
                    None => Sim::recv(handle(fd), buffers, usize::MAX, 0).inspect(|&received| {
                        let (sent, before) = stream.counts.get();
                        stream.counts.set((sent, before + received as u64));
                    }),
                };
                stream.end_counting();
                received
            }
            None => Sim::recv(handle(fd), buffers, usize::MAX, 0),
        }
    });
    finish_receive(socket, fd, &bytes, received);
    received
}

fn finish_receive(socket: SocketId, fd: RawFd, bytes: &[u8], received: Result<usize, Errno>) {
    note(|| {
        let bytes = text(&bytes[..received.unwrap_or(0)]);
        format!("receive {fd}, socket {socket}: {received:?} {bytes}")
    });
    let result = with(|world| {
        let count = received.unwrap_or(0);
        if count > 0 {
            world.progressed();
        }
        world.incoming(socket).end_receive(&bytes[..count])?;
        let is_reported = world.connections[socket / 2].reported[socket % 2];
        let may_reset = world.connections[socket / 2].may_reset;
        match received {
            Ok(0) if is_reported => Ok(()),
            Ok(0) if !world.host.has_end(socket) => {
                Err(format!("socket {socket} gets an end that has not come"))
            }
            Ok(0) if world.incoming(socket).has_unread() => {
                Err(format!("socket {socket} gets an end before all bytes"))
            }
            Err(Errno::CONNRESET | Errno::PIPE) if may_reset || is_reported => {
                world.connections[socket / 2].reported[socket % 2] = true;
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::NOTCONN) => Ok(()), // The socket was not connected when the call was made.
            Err(error) => Err(format!("socket {socket} cannot receive for no reason: {error}")),
        }
    });
    check(result);
}

/// Runs a program without Weft, which uses only the kernel's socket.
fn foreign(pid: Pid) {
    while may_act() {
        let all = with(|world| world.host.known(pid));
        if all.is_empty() {
            break;
        }
        let (fd, socket) = all[random(all.len())];
        match random(6) {
            0..3 => foreign_receive(fd, socket),
            3..5 => foreign_send(fd, socket),
            _ => {
                step();
                with(|world| {
                    world.host.close(pid, fd);
                    world.after_call();
                });
            }
        }
        step();
    }
    end_process(pid, false);
}

fn foreign_receive(fd: RawFd, socket: SocketId) {
    with(|world| world.incoming(socket).begin_receive());
    let mut bytes = vec![0; 1 + random(LEN_MAX)];
    let most = bytes.len();
    let received = calling(socket, Does::Receive(most), || {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        Sim::recv(handle(fd), Buffers::of(slices), usize::MAX, 0)
    });
    finish_receive(socket, fd, &bytes, received);
}

fn foreign_send(fd: RawFd, socket: SocketId) {
    let bytes = with(|world| {
        if world.outgoing(socket).is_sending() {
            return None;
        }
        let bytes: Vec<u8> = (0..20).map(|_| world.rng.u8(b'A'..=b'z')).collect();
        world.outgoing(socket).begin_send(bytes.clone());
        Some(bytes)
    });
    let Some(mut bytes) = bytes else { return };
    let sent = calling(socket, Does::Send, || {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        Sim::send(handle(fd), Buffers::of(slices), 0)
    });
    note(|| format!("send {fd}, socket {socket}: {sent:?} of {}", text(&bytes)));
    check(with(|world| world.outgoing(socket).end_send(sent.unwrap_or(0))));
    check_send(socket, sent);
}
