//! What becomes of a process's connections when it has a child, becomes another program, starts
//! one, passes a socket on, or gets one.
//!
//! A program that gets a socket may be one without Weft, and nobody counts it. So before it starts,
//! each connection that it gets is on TCP. What the rings still hold then is for a program on Weft
//! to read, which learns of it from its environment.
//!
//! The decisions are made here, of descriptors and streams that are somebody else's
//! ([`Descriptors`]): the sockets library's, or the simulation's.

use std::os::fd::RawFd;

use crate::end::{End, PutBack};
use crate::holding::Holding;
use crate::kernel::Kernel;
use crate::reason::Reason;

/// A TCP socket of a process, as its library knows it.
pub trait Stream {
    /// The kernel.
    type Kernel: PutBack;

    /// The end that it has, and as whom.
    fn holding(&self) -> &Holding<Self::Kernel>;

    /// Has the connection go on over TCP, in whatever way it has been carried. One that has no end
    /// yet is barred from having one ([`Holding::bar`]).
    fn leave(&self, fd: RawFd, why: Reason);

    /// The same, for a process that has nothing of this one's memory.
    fn hand_on(&self, fd: RawFd, why: Reason) {
        self.leave(fd, why);
    }

    /// Whether the kernel has had the connection from the start.
    fn is_tcp(&self) -> bool;

    /// The process is about to fork: what can be known of an end is to be known now.
    fn before_fork(&self, fd: RawFd);

    /// The process forks, and the socket has no end.
    fn forking_without_end(&self, fd: RawFd);

    /// This is a child just born, which has the socket.
    fn born(&self);
}

/// The descriptors of a process.
pub trait Descriptors {
    /// The kernel.
    type Kernel: PutBack;
    /// What they are.
    type Stream: Stream<Kernel = Self::Kernel>;

    /// The process's number.
    fn pid(&self) -> u32;

    /// Those that are TCP sockets which the library knows, in their order.
    fn streams(&self) -> impl Iterator<Item = RawFd>;

    /// Looks at the stream that a descriptor stands for, if it is one.
    fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Self::Stream) -> R) -> Option<R>;

    /// Does something with the kernel's name for a descriptor, which is one during that alone.
    fn with_socket<R>(
        &self,
        fd: RawFd,
        act: impl FnOnce(<Self::Kernel as Kernel>::Socket<'_>) -> R,
    ) -> R;

    /// The kernel's number for an open TCP socket of IP; `None` if the descriptor is no such.
    fn cookie(&self, fd: RawFd) -> Option<u64>;

    /// Does something with each descriptor that the calling process has, in a child of `vfork` as
    /// well, whose descriptors are not those of the library's table. `false` if they could not be
    /// listed.
    fn for_each_open(&self, act: impl FnMut(RawFd)) -> bool;

    /// From here on the library leaves a descriptor's socket to the kernel.
    fn forget(&self, fd: RawFd);

    /// `copy` stands for the same open socket as `fd`.
    fn share(&self, fd: RawFd, copy: RawFd);

    /// The end in memory that a socket got from another process has, if it has one: by its
    /// addresses and by its number. It counts this process as a holder.
    fn find(&self, fd: RawFd, cookie: u64) -> Option<End<Self::Kernel>>;

    /// A descriptor's socket has this end, which counts this process.
    fn take_over(&self, fd: RawFd, end: End<Self::Kernel>);
}

/// Which sockets a program gets.
#[derive(Clone, Copy, Debug)]
pub enum Heir<'a> {
    /// This process becomes the program.
    Self_,
    /// A child of `vfork` becomes the program: its descriptors are its own, but not its memory.
    Borrower,
    /// A child of this process's becomes the program. Beside what stays open it gets copies of
    /// these.
    Child(&'a [RawFd]),
}

/// Prepares a process's connections for a program that is about to start. Returns whether it has to
/// be one on Weft: bytes that have not been read are in memory.
pub fn prepare<D: Descriptors>(process: &D, heir: Heir<'_>) -> bool {
    match heir {
        Heir::Self_ => prepare_self(process),
        Heir::Borrower => prepare_borrower(process),
        Heir::Child(copies) => {
            let mut rests = false;
            for fd in process.streams() {
                if stays_open(process, fd) || copies.contains(&fd) {
                    process.with(fd, |stream| rests |= start_with(process, stream, fd));
                }
            }
            rests
        }
    }
}

/// The program has not started: this process is what it was.
pub fn take_back<D: Descriptors>(process: &D) {
    let is_lost = |&fd: &RawFd| {
        let holds = process.with(fd, |stream| stream.holding().hold_again(process.pid()));
        holds == Some(false)
    };
    let lost: Vec<_> = process.streams().filter(is_lost).collect();
    // Both ends had been given up: what the kernel has of the connection is all there is.
    lost.into_iter().for_each(|fd| process.forget(fd));
}

fn prepare_self<D: Descriptors>(process: &D) -> bool {
    let mut rests = false;
    // First those that stay: of a socket with several descriptors one may.
    for fd in process.streams().filter(|&fd| stays_open(process, fd)) {
        process.with(fd, |stream| {
            stream.hand_on(fd, Reason::Started);
            rests |= stream.holding().end().is_some_and(|end| rest_of(process, end, fd));
            stream.holding().hand_over();
        });
    }
    for fd in process.streams().filter(|&fd| !stays_open(process, fd)) {
        process.with(fd, |stream| {
            let leave = || stream.leave(fd, Reason::Started);
            process.with_socket(fd, |socket| stream.holding().closing_by_exec(socket, leave));
        });
    }
    rests
}

/// The descriptors that this child has are not those of the table, which is the parent's.
fn prepare_borrower<D: Descriptors>(process: &D) -> bool {
    let (mut rests, mut is_any_unknown) = (false, false);
    let listed = process.for_each_open(|fd| {
        if !stays_open(process, fd) {
            return;
        }
        let Some(cookie) = process.cookie(fd) else { return };
        let mut is_known = false;
        for own in process.streams() {
            process.with(own, |stream| {
                if stream.holding().end().is_some_and(|end| end.cookie() == cookie) {
                    is_known = true;
                    rests |= start_with(process, stream, fd);
                }
            });
        }
        if !is_known {
            match start_with_unlisted(process, fd, cookie) {
                Some(has_rest) => rests |= has_rest,
                None => is_any_unknown = true,
            }
        }
    });
    // A socket that has no end yet is known by its descriptor alone, which may be another one here.
    for fd in process.streams() {
        process.with(fd, |stream| {
            let by_doubt = is_any_unknown && stream.holding().end().is_none();
            if (by_doubt || !listed) && !stream.is_tcp() {
                rests |= start_with(process, stream, fd);
            }
        });
    }
    rests
}

/// A child that nobody counts gets the socket. Whether something is left to be read from memory.
fn start_with<D: Descriptors>(process: &D, stream: &D::Stream, fd: RawFd) -> bool {
    stream.leave(fd, Reason::Started);
    let Some(end) = stream.holding().end() else { return false };
    let rests = rest_of(process, end, fd);
    if rests {
        end.pass_on();
    }
    rests
}

/// The same for a socket that a child of `vfork` still has and this process does not: another
/// thread has closed it since. Other processes may hold the connection in memory. `None`: it has
/// nothing there.
fn start_with_unlisted<D: Descriptors>(process: &D, fd: RawFd, cookie: u64) -> Option<bool> {
    let end = process.find(fd, cookie)?;
    process.with_socket(fd, |socket| end.leave(socket));
    end.note_left(Reason::Started);
    let rests = rest_of(process, &end, fd);
    if rests {
        end.hand_over(process.pid());
    } else {
        end.release(process.pid());
    }
    Some(rests)
}

/// Whether a new program has something to read from memory. What it could not find there, and
/// nobody else could read, must not be missing from the stream: the connection is reset.
fn rest_of<D: Descriptors>(process: &D, end: &End<D::Kernel>, fd: RawFd) -> bool {
    process.with_socket(fd, |socket| drain_wakeups_if_empty(end, socket));
    if !end.is_over() && !end.can_be_found() {
        process.with_socket(fd, |socket| end.put_back_rest(socket));
    }
    if end.is_over() {
        return false;
    }
    if !end.can_be_found() && end.is_sole_holder() {
        process.with_socket(fd, |socket| D::Kernel::dissolve(socket));
        return false;
    }
    true
}

fn stays_open<D: Descriptors>(process: &D, fd: RawFd) -> bool {
    process.with_socket(fd, |socket| D::Kernel::stays_open(socket))
}

/// Before the `fork` of this number: the child holds what this process holds, from before it is
/// born.
pub fn before_fork<D: Descriptors>(process: &D, fork: u32) {
    for fd in process.streams() {
        process.with(fd, |stream| {
            if !stream.holding().is_first_of(fork) {
                return;
            }
            stream.before_fork(fd);
            match stream.holding().end() {
                Some(end) => end.expect_child(process.pid()),
                None => {
                    stream.forking_without_end(fd);
                    // Another thread may be about to connect it.
                    if let Some(end) = stream.holding().bar() {
                        end.expect_child(process.pid());
                    }
                }
            }
        });
    }
}

/// There is no child by the `fork` of this number after all.
pub fn fork_failed<D: Descriptors>(process: &D, fork: u32) {
    for fd in process.streams() {
        process.with(fd, |stream| stream.holding().not_forked(fork, process.pid()));
    }
}

/// This is the child of `parent`, just born.
pub fn in_child<D: Descriptors>(process: &D, parent: u32) {
    for fd in process.streams() {
        let holds = process.with(fd, |stream| {
            stream.born();
            stream.holding().forked(parent, process.pid())
        });
        if holds == Some(false) {
            process.forget(fd);
        }
    }
}

/// A socket is about to be passed to another process (`SCM_RIGHTS`). It goes back to TCP, because
/// the process that gets it may not know the rings; a process on Weft takes from there what has not
/// been read ([`take_over`]).
pub fn pass_on<D: Descriptors>(process: &D, stream: &D::Stream, fd: RawFd) {
    stream.hand_on(fd, Reason::PassedOn);
    if let Some(end) = stream.holding().end() {
        end.pass_on();
        process.with_socket(fd, |socket| drain_wakeups_if_empty(end, socket));
    }
}

/// Takes the wakeups from a connection that has left memory, unless something is unread there: then
/// another process or thread may be about to be woken by them, and the process that reads what is
/// in memory takes them afterwards. A call of another's that has read the last byte there, and goes
/// on at the kernel, has ended before this returns.
fn drain_wakeups_if_empty<K: Kernel>(end: &End<K>, socket: K::Socket<'_>) {
    if end.unread() == 0 {
        end.drain_wakeups(socket);
    }
}

/// Goes on with the connection of a TCP socket that a process has got from another one, or from the
/// program that it was before, if there is something of it in memory.
pub fn take_over<D: Descriptors>(process: &D, fd: RawFd) {
    let Some(cookie) = process.cookie(fd) else { return };
    let is_same = |&other: &RawFd| process.cookie(other) == Some(cookie);
    let same = process.streams().find(is_same);
    if let Some(same) = same {
        // By another descriptor it is here already.
        process.with(same, |stream| stream.holding().end().map(End::received_again));
        return process.share(same, fd);
    }
    let Some(end) = process.find(fd, cookie) else { return };
    process.with_socket(fd, |socket| drain_wakeups_if_empty(&end, socket));
    if end.is_over() {
        end.release(process.pid()); // All of it is the kernel's.
    } else {
        process.take_over(fd, end);
    }
}

/// Has every connection of a process go on over TCP.
pub fn leave_all<D: Descriptors>(process: &D, why: Reason) {
    for fd in process.streams() {
        process.with(fd, |stream| {
            stream.leave(fd, why);
            if let Some(end) = stream.holding().end() {
                if why == Reason::User {
                    // While it has the right to.
                    process.with_socket(fd, |socket| end.put_back_rest(socket));
                }
                process.with_socket(fd, |socket| end.drain_wakeups(socket));
            }
        });
    }
}
