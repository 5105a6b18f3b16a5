//! What happens to a process's connections when it forks, executes or starts another program,
//! passes a socket on, or receives one.
//!
//! A program that gets a socket may run without Weft, and is not counted. So before it starts, each
//! connection that it gets falls back to TCP. Bytes that the rings still hold then can be read only
//! by a program on Weft, which learns about them from its environment.
//!
//! The decisions are made here. The descriptors and streams belong to the caller ([`Descriptors`]):
//! the sockets library or the simulation.

use std::os::fd::RawFd;

use smallvec::SmallVec;

use crate::end::{End, PutBack};
use crate::holding::Holding;
use crate::kernel::Kernel;
use crate::reason::Reason;

/// A TCP socket of a process, as the process's library knows it.
pub trait Stream {
    /// The kernel.
    type Kernel: PutBack;

    /// The socket's end, and the process number that holds it.
    fn holding(&self) -> &Holding<Self::Kernel>;

    /// Makes the connection fall back to TCP from whatever carries it. If it has no end yet, it
    /// never gets one ([`Holding::bar`]).
    fn fall_back_to_tcp(&self, fd: RawFd, why: Reason);

    /// Does the same for a socket that goes to a process without this one's memory.
    fn hand_on(&self, fd: RawFd, why: Reason) {
        self.fall_back_to_tcp(fd, why);
    }

    /// Whether the kernel has carried the connection from the start.
    fn is_tcp(&self) -> bool;

    /// Called before the process forks, to find an end that may exist by now.
    fn before_fork(&self, fd: RawFd);

    /// Called when the process forks while the socket has no end.
    fn forking_without_end(&self, fd: RawFd);

    /// Called in a child just born, which has the socket.
    fn forked(&self);
}

/// The descriptors of a process.
pub trait Descriptors {
    /// The kernel.
    type Kernel: PutBack;
    /// The streams behind the descriptors.
    type Stream: Stream<Kernel = Self::Kernel>;

    /// The process number.
    fn pid(&self) -> u32;

    /// Descriptors of TCP sockets that the library knows, in ascending order.
    fn streams(&self) -> impl Iterator<Item = RawFd>;

    /// Calls `look` with the stream of a descriptor, if there is one.
    fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Self::Stream) -> R) -> Option<R>;

    /// Calls `act` with the kernel's handle of a descriptor, which is valid only during the call.
    fn with_socket<R>(
        &self,
        fd: RawFd,
        act: impl FnOnce(<Self::Kernel as Kernel>::Socket<'_>) -> R,
    ) -> R;

    /// The cookie of a TCP socket over IP; `None` if the descriptor is anything else.
    fn cookie(&self, fd: RawFd) -> Option<u64>;

    /// Calls `act` with each descriptor that the calling process has. That includes a child of
    /// `vfork`, whose descriptors differ from those of the library's table. `false` if they could
    /// not be listed.
    fn for_each_open(&self, act: impl FnMut(RawFd)) -> bool;

    /// Leaves a descriptor's socket to the kernel from here on.
    fn forget(&self, fd: RawFd);

    /// Records that `copy` refers to the same open socket as `fd`.
    fn share(&self, fd: RawFd, copy: RawFd);

    /// Finds the end in memory of a socket that another process has passed on, by its addresses and
    /// cookie, if there is one. Counts this process as a holder.
    fn find(&self, fd: RawFd, cookie: u64) -> Option<End<Self::Kernel>>;

    /// Gives a descriptor's socket this end, which counts this process already.
    fn take_over(&self, fd: RawFd, end: End<Self::Kernel>);
}

/// The process that becomes the program, and so decides which sockets the program gets.
#[derive(Clone, Copy, Debug)]
pub enum ExecTarget<'a> {
    /// This process becomes the program.
    SameProcess,
    /// A child of `vfork`: it has descriptors of its own, but this process's memory.
    VforkChild,
    /// A child of this process. Besides the descriptors that stay open it gets copies of these.
    Child(&'a [RawFd]),
}

/// What a program that is about to start gets of a process's connections.
#[derive(Debug)]
#[must_use = "if the program does not start, it is taken back"]
pub struct Inheritance<K: PutBack> {
    has_unread: bool,
    /// Ends that count the program as a holder in advance, because it has to read from memory.
    counting: SmallVec<[End<K>; 4]>,
}

impl<K: PutBack> Inheritance<K> {
    /// An inheritance without connections.
    pub fn empty() -> Self {
        Self { has_unread: false, counting: SmallVec::new() }
    }

    /// Whether the program has to run on Weft, because unread bytes are in memory.
    #[must_use]
    pub fn is_for_weft(&self) -> bool {
        self.has_unread
    }

    /// Takes back the holders that were counted in advance: the child has not started the program.
    pub fn take_back(self) {
        self.counting.iter().for_each(End::received_again);
    }

    /// Counts the program as a holder of the end.
    fn count(&mut self, end: &End<K>) {
        self.has_unread = true;
        self.counting.push(*end);
    }
}

/// Prepares a process's connections for a program that is about to start. If it does not start, a
/// child's part is undone by [`Inheritance::take_back`], the process's own by [`take_back`].
pub fn prepare<D: Descriptors>(process: &D, target: ExecTarget<'_>) -> Inheritance<D::Kernel> {
    let mut inheritance = Inheritance::empty();
    match target {
        ExecTarget::SameProcess => inheritance.has_unread = prepare_self(process),
        ExecTarget::VforkChild => prepare_vfork_child(process, &mut inheritance),
        ExecTarget::Child(copies) => {
            for fd in process.streams() {
                if stays_open(process, fd) || copies.contains(&fd) {
                    process.with(fd, |stream| start_with(process, stream, fd, &mut inheritance));
                }
            }
        }
    }
    inheritance
}

/// Undoes [`prepare`] of the process itself after an `exec` that failed.
pub fn take_back<D: Descriptors>(process: &D) {
    let is_lost = |&fd: &RawFd| {
        let holds = process.with(fd, |stream| stream.holding().hold_again(process.pid()));
        holds == Some(false)
    };
    let lost: Vec<_> = process.streams().filter(is_lost).collect();
    // Both ends had been given up, so the kernel has all there is of the connection.
    lost.into_iter().for_each(|fd| process.forget(fd));
}

fn prepare_self<D: Descriptors>(process: &D) -> bool {
    let mut has_unread = false;
    // First the descriptors that stay open: a socket may have several, of which one stays.
    for fd in process.streams().filter(|&fd| stays_open(process, fd)) {
        process.with(fd, |stream| {
            stream.hand_on(fd, Reason::Started);
            has_unread |= stream.holding().end().is_some_and(|end| rest_of(process, end, fd));
            stream.holding().hand_over();
        });
    }
    for fd in process.streams().filter(|&fd| !stays_open(process, fd)) {
        process.with(fd, |stream| {
            let fall_back = || stream.fall_back_to_tcp(fd, Reason::Started);
            process.with_socket(fd, |socket| stream.holding().closing_by_exec(socket, fall_back));
        });
    }
    has_unread
}

/// Prepares for a child of `vfork`. Its descriptors are not those of the table, which is the
/// parent's.
fn prepare_vfork_child<D: Descriptors>(process: &D, inheritance: &mut Inheritance<D::Kernel>) {
    // A socket that has no end yet is known only by its descriptor number, which may refer to
    // another socket in the child. So if the child may have any of them, none gets an end from here
    // on.
    if process.streams().any(|fd| process.with(fd, is_undecided) == Some(true)) {
        let mut may_have_any = false;
        let listed = for_each_inherited(process, |_, cookie| {
            may_have_any |= !process.streams().any(|own| has_end_of(process, own, cookie));
        });
        for fd in process.streams().filter(|_| may_have_any || !listed) {
            process.with(fd, |stream| {
                if is_undecided(stream) {
                    start_with(process, stream, fd, inheritance);
                }
            });
        }
    }
    let listed = for_each_inherited(process, |fd, cookie| {
        let mut is_known = false;
        for own in process.streams().filter(|&own| has_end_of(process, own, cookie)) {
            is_known = true;
            process.with(own, |stream| start_with(process, stream, fd, inheritance));
        }
        if !is_known {
            start_with_unlisted(process, fd, cookie, inheritance);
        }
    });
    for fd in process.streams().filter(|_| !listed) {
        process.with(fd, |stream| {
            if !stream.is_tcp() {
                start_with(process, stream, fd, inheritance);
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

/// Calls `act` with each TCP socket that a child of `vfork` passes to its program, and the socket's
/// cookie. `false` if they could not be listed.
fn for_each_inherited<D: Descriptors>(process: &D, mut act: impl FnMut(RawFd, u64)) -> bool {
    process.for_each_open(|fd| {
        if stays_open(process, fd)
            && let Some(cookie) = process.cookie(fd)
        {
            act(fd, cookie);
        }
    })
}

/// Prepares a socket that a child gets which is not counted.
fn start_with<D: Descriptors>(
    process: &D,
    stream: &D::Stream,
    fd: RawFd,
    inheritance: &mut Inheritance<D::Kernel>,
) {
    stream.fall_back_to_tcp(fd, Reason::Started);
    if let Some(end) = stream.holding().end()
        && rest_of(process, end, fd)
    {
        end.pass_on();
        inheritance.count(end);
    }
}

/// Does the same for a socket that a child of `vfork` still has and this process does not, because
/// another thread has closed it since. Other processes may hold the connection in memory.
fn start_with_unlisted<D: Descriptors>(
    process: &D,
    fd: RawFd,
    cookie: u64,
    inheritance: &mut Inheritance<D::Kernel>,
) {
    let Some(end) = process.find(fd, cookie) else { return };
    process.with_socket(fd, |socket| end.fall_back_to_tcp(socket));
    end.note_fallback(Reason::Started);
    if rest_of(process, &end, fd) {
        end.hand_over(process.pid());
        inheritance.count(&end);
    } else {
        end.release(process.pid());
    }
}

/// Whether the new program has something to read from memory. If it could not find the memory, and
/// no other process could read it, bytes would be missing from the stream: the connection is reset.
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

/// Prepares for the `fork` with this number. The child counts as a holder of what this process
/// holds before it is born. From before this call until the child is born no other thread opens a
/// socket, which the child would hold uncounted, or begins a `fork`.
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
                    // Another thread may be about to connect the socket.
                    if let Some(end) = stream.holding().bar() {
                        end.expect_child(process.pid());
                    }
                }
            }
        });
    }
}

/// Undoes [`before_fork`] of the `fork` with this number, which has failed.
pub fn fork_failed<D: Descriptors>(process: &D, fork: u32) {
    for fd in process.streams() {
        process.with(fd, |stream| stream.holding().not_forked(fork, process.pid()));
    }
}

/// Makes this process, just born as a child of `parent`, a holder of its sockets' ends.
pub fn in_child<D: Descriptors>(process: &D, parent: u32) {
    for fd in process.streams() {
        let holds = process.with(fd, |stream| {
            stream.forked();
            stream.holding().forked(parent, process.pid())
        });
        if holds == Some(false) {
            process.forget(fd);
        }
    }
}

/// Prepares a socket that is about to be passed to another process (`SCM_RIGHTS`). The connection
/// falls back to TCP, because the receiver may not know the rings; a receiver on Weft takes the
/// unread bytes from memory ([`take_over`]).
pub fn pass_on<D: Descriptors>(process: &D, stream: &D::Stream, fd: RawFd) {
    stream.hand_on(fd, Reason::PassedOn);
    if let Some(end) = stream.holding().end() {
        end.pass_on();
        process.with_socket(fd, |socket| drain_wakeups_if_empty(end, socket));
    }
}

/// Takes the wakeups from a connection that has fallen back, unless something is unread in memory.
/// In that case they may be about to wake another process or thread, and the process that reads the
/// memory takes them afterwards. A call of another process that has read the last byte there, and
/// goes on at the kernel, has ended before this returns.
fn drain_wakeups_if_empty<K: Kernel>(end: &End<K>, socket: K::Socket<'_>) {
    if end.unread() == 0 {
        end.drain_wakeups(socket);
    }
}

/// Continues the connection of a TCP socket that the process has received, or had before an `exec`,
/// if something of it is in memory.
pub fn take_over<D: Descriptors>(process: &D, fd: RawFd) {
    let Some(cookie) = process.cookie(fd) else { return };
    let is_same = |&other: &RawFd| process.cookie(other) == Some(cookie);
    let same = process.streams().find(is_same);
    if let Some(same) = same {
        // The process has the socket already, by another descriptor.
        process.with(same, |stream| stream.holding().end().map(End::received_again));
        return process.share(same, fd);
    }
    let Some(end) = process.find(fd, cookie) else { return };
    process.with_socket(fd, |socket| drain_wakeups_if_empty(&end, socket));
    if end.is_over() {
        end.release(process.pid()); // Nothing is left in memory.
    } else {
        process.take_over(fd, end);
    }
}

/// Makes every connection of a process fall back to TCP.
pub fn leave_all<D: Descriptors>(process: &D, why: Reason) {
    for fd in process.streams() {
        process.with(fd, |stream| {
            stream.fall_back_to_tcp(fd, why);
            if let Some(end) = stream.holding().end() {
                if matches!(why, Reason::User | Reason::ByHand) {
                    // Another user may not fetch the peer's socket, and calls that are not seen do
                    // not read from memory. A second edge for known bytes does less harm.
                    process.with_socket(fd, |socket| end.put_back_rest(socket));
                }
                process.with_socket(fd, |socket| end.drain_wakeups(socket));
            }
        });
    }
}
