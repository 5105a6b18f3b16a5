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

use smallvec::SmallVec;

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

/// What a program that is about to start gets of a process's connections.
#[derive(Debug)]
#[must_use = "if the program does not start, it is taken back"]
pub struct Estate<K: PutBack> {
    rests: bool,
    /// Those that count the program in advance, for what it has to read from memory.
    counting: SmallVec<[End<K>; 4]>,
}

impl<K: PutBack> Estate<K> {
    /// Of nothing.
    pub fn empty() -> Self {
        Self { rests: false, counting: SmallVec::new() }
    }

    /// Whether the program has to be one on Weft: bytes that have not been read are in memory.
    #[must_use]
    pub fn is_for_weft(&self) -> bool {
        self.rests
    }

    /// The child that was to become the program has not started it.
    pub fn take_back(self) {
        self.counting.iter().for_each(End::received_again);
    }

    /// From here on the program counts as a holder.
    fn count(&mut self, end: &End<K>) {
        self.rests = true;
        self.counting.push(*end);
    }
}

/// Prepares a process's connections for a program that is about to start. If it does not, that is
/// taken back: by [`Estate::take_back`] of a child's, by [`take_back`] of the process's own.
pub fn prepare<D: Descriptors>(process: &D, heir: Heir<'_>) -> Estate<D::Kernel> {
    let mut estate = Estate::empty();
    match heir {
        Heir::Self_ => estate.rests = prepare_self(process),
        Heir::Borrower => prepare_borrower(process, &mut estate),
        Heir::Child(copies) => {
            for fd in process.streams() {
                if stays_open(process, fd) || copies.contains(&fd) {
                    process.with(fd, |stream| start_with(process, stream, fd, &mut estate));
                }
            }
        }
    }
    estate
}

/// The program that this process was to become has not started: the process is what it was.
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
fn prepare_borrower<D: Descriptors>(process: &D, estate: &mut Estate<D::Kernel>) {
    // A socket that has no end yet is known by its descriptor alone, which may be another one here.
    // None of them gets one from here on, if the child may have it.
    if process.streams().any(|fd| process.with(fd, is_undecided) == Some(true)) {
        let mut may_have_any = false;
        let listed = for_each_inherited(process, |_, cookie| {
            may_have_any |= !process.streams().any(|own| has_end_of(process, own, cookie));
        });
        for fd in process.streams().filter(|_| may_have_any || !listed) {
            process.with(fd, |stream| {
                if is_undecided(stream) {
                    start_with(process, stream, fd, estate);
                }
            });
        }
    }
    let listed = for_each_inherited(process, |fd, cookie| {
        let mut is_known = false;
        for own in process.streams().filter(|&own| has_end_of(process, own, cookie)) {
            is_known = true;
            process.with(own, |stream| start_with(process, stream, fd, estate));
        }
        if !is_known {
            start_with_unlisted(process, fd, cookie, estate);
        }
    });
    for fd in process.streams().filter(|_| !listed) {
        process.with(fd, |stream| {
            if !stream.is_tcp() {
                start_with(process, stream, fd, estate);
            }
        });
    }
}

/// Whether a stream may still get an end.
fn is_undecided<S: Stream>(stream: &S) -> bool {
    stream.holding().end().is_none() && !stream.is_tcp()
}

fn has_end_of<D: Descriptors>(process: &D, fd: RawFd, cookie: u64) -> bool {
    let is_its =
        |stream: &D::Stream| stream.holding().end().is_some_and(|end| end.cookie() == cookie);
    process.with(fd, is_its) == Some(true)
}

/// Does something with each TCP socket that a child of `vfork` hands on to its program, and its
/// number. `false` if they could not be listed.
fn for_each_inherited<D: Descriptors>(process: &D, mut act: impl FnMut(RawFd, u64)) -> bool {
    process.for_each_open(|fd| {
        if stays_open(process, fd)
            && let Some(cookie) = process.cookie(fd)
        {
            act(fd, cookie);
        }
    })
}

/// A child that nobody counts gets the socket.
fn start_with<D: Descriptors>(
    process: &D,
    stream: &D::Stream,
    fd: RawFd,
    estate: &mut Estate<D::Kernel>,
) {
    stream.leave(fd, Reason::Started);
    if let Some(end) = stream.holding().end()
        && rest_of(process, end, fd)
    {
        end.pass_on();
        estate.count(end);
    }
}

/// The same for a socket that a child of `vfork` still has and this process does not: another
/// thread has closed it since. Other processes may hold the connection in memory.
fn start_with_unlisted<D: Descriptors>(
    process: &D,
    fd: RawFd,
    cookie: u64,
    estate: &mut Estate<D::Kernel>,
) {
    let Some(end) = process.find(fd, cookie) else { return };
    process.with_socket(fd, |socket| end.leave(socket));
    end.note_left(Reason::Started);
    if rest_of(process, &end, fd) {
        end.hand_over(process.pid());
        estate.count(&end);
    } else {
        end.release(process.pid());
    }
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
/// born. From before this until then no other thread opens a socket, which the child would hold
/// uncounted, or begins a `fork`.
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
