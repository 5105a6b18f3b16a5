//! A kernel for the unit tests: sockets, epoll instances and time in memory, for one test at a time
//! and in one thread.
//!
//! A descriptor has a number of the real kernel's, so that no other one has it. Where a call
//! sleeps, the sleeping thread itself does the next of the acts that the test has planned
//! ([`while_asleep`]); if none is left, the sleep ends at its time limit, at once. A sleep that
//! nothing would end fails the test. So no test waits, and each one is the same each time.

mod calls;
mod host;
mod instance;
mod socket;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::epoll_event;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;

pub(crate) use calls::{recv_from, recv_now, send_now, send_to, wait_for_events};
use host::{File, Host, with};
use socket::Socket;

/// The fake kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fake;

/// What happens while a thread sleeps.
type Act = Box<dyn FnOnce() + Send>;

static ACTS: Mutex<VecDeque<Act>> = Mutex::new(VecDeque::new());
static TURN: Mutex<()> = Mutex::new(());

/// A test's time with the kernel, which is fresh: other tests wait until this is dropped.
pub(crate) struct Booted(#[allow(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Drop for Booted {
    fn drop(&mut self) {
        acts().clear();
        with(|host| *host = Host::default());
    }
}

/// Boots it for a test.
pub(crate) fn boot() -> Booted {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    acts().clear(); // Those of a test that has failed.
    with(|host| *host = Host::default());
    Booted(turn)
}

fn acts() -> MutexGuard<'static, VecDeque<Act>> {
    ACTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plans what happens in the next sleep for which nothing is planned yet.
pub(crate) fn while_asleep(act: impl FnOnce() + Send + 'static) {
    acts().push_back(Box::new(act));
}

/// How many of the acts have not come to pass.
pub(crate) fn acts_left() -> usize {
    acts().len()
}

/// Forgets those that have not come to pass.
pub(crate) fn forget_acts() {
    acts().clear();
}

/// The next sleep, after those for which something is planned, ends by a signal.
pub(crate) fn interrupt_sleep() {
    while_asleep(|| with(|host| host.is_interrupted = true));
}

/// Both ends of a TCP connection.
pub(crate) fn connection() -> [RawFd; 2] {
    with(|host| {
        let (server, client) = (host.next_address(), host.next_address());
        let [one, other] = [(client, server), (server, client)].map(|(own, peer)| {
            host.open(|cookie| File::Socket(Socket::connected(cookie, own, peer)))
        });
        host.socket(one).expect("just made").other = Some(other);
        host.socket(other).expect("just made").other = Some(one);
        [one, other]
    })
}

/// A UDP socket with an address of its own.
pub(crate) fn datagram_socket() -> RawFd {
    with(|host| {
        let own = host.next_address();
        host.open(|cookie| File::Socket(Socket::datagram(cookie, own)))
    })
}

/// An epoll instance.
pub(crate) fn epoll() -> RawFd {
    with(|host| host.open(|_| File::Epoll(instance::Instance::default())))
}

/// Closes a descriptor.
pub(crate) fn close(fd: RawFd) {
    with(|host| host.close(fd));
}

/// Closes a descriptor, and opens a connection by the same number. Returns its other end.
pub(crate) fn reuse(fd: RawFd) -> RawFd {
    let [one, other] = connection();
    with(|host| host.move_to(one, fd));
    other
}

/// `shutdown(2)`.
pub(crate) fn shutdown(fd: RawFd, how: libc::c_int) {
    with(|host| host.shutdown(fd, how));
}

/// The peer's kernel resets a connection.
pub(crate) fn reset(fd: RawFd) {
    with(|host| host.reset(fd, Errno::CONNRESET));
}

/// Sets `O_NONBLOCK`.
pub(crate) fn set_nonblocking(fd: RawFd) {
    with(|host| host.socket(fd).expect("a socket").is_nonblocking = true);
}

/// Sets `SO_RCVTIMEO` or `SO_SNDTIMEO`.
pub(crate) fn set_time_limit(fd: RawFd, which: Timeout, limit: std::time::Duration) {
    with(|host| {
        let socket = host.socket(fd).expect("a socket");
        match which {
            Timeout::Recv => socket.receive_limit = Some(limit),
            Timeout::Send => socket.send_limit = Some(limit),
        }
    });
}

/// Sets an option of `SOL_SOCKET`.
pub(crate) fn set_option(fd: RawFd, option: libc::c_int, value: libc::c_int) {
    with(|host| host.socket(fd).expect("a socket").options.insert(option, value));
}

/// A socket's address, and its peer's.
pub(crate) fn addresses(fd: RawFd) -> [std::net::SocketAddr; 2] {
    with(|host| {
        let socket = host.socket(fd).expect("a socket");
        [socket.own, socket.peer]
    })
}

/// What the kernel holds for a socket's reader.
pub(crate) fn unread(fd: RawFd) -> usize {
    with(|host| host.socket(fd).expect("a socket").incoming.len())
}

/// What an instance has of a descriptor: the events asked for.
pub(crate) fn registered(epoll: RawFd, fd: RawFd) -> Option<u32> {
    with(|host| host.instance(epoll)?.registered(fd))
}

/// How often the core has made the call of this name.
pub(crate) fn calls(name: &str) -> u64 {
    with(|host| host.calls.get(name).copied().unwrap_or(0))
}

/// An empty list for events.
pub(crate) fn no_events<const N: usize>() -> [epoll_event; N] {
    [epoll_event { events: 0, u64: 0 }; N]
}

/// Nanoseconds of its clock.
pub(crate) fn time() -> u64 {
    with(|host| host.now)
}
