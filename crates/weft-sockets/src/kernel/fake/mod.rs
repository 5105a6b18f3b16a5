//! A kernel for the unit tests: sockets, epoll instances and time in memory, for one test at a time
//! and in one thread.
//!
//! Each descriptor reserves a number of the real kernel. Where a call sleeps, the sleeping thread
//! itself runs the next act that the test has planned ([`while_asleep`]). If none is left the sleep
//! ends at once, at its time limit. A sleep without limit fails the test. So no test waits, and
//! each run is the same.

mod calls;
mod disturbance;
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
pub(crate) use disturbance::{
    Impossible, are_busy, as_threads, disturb_after, disturbances_left, forget_disturbances,
};
use host::{File, Host, with};
use socket::Socket;

/// The fake kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fake;

/// An action that happens while a thread sleeps.
type Act = Box<dyn FnOnce() + Send>;

static ACTS: Mutex<VecDeque<Act>> = Mutex::new(VecDeque::new());
static ACT_BEFORE_RETURN: Mutex<Option<Act>> = Mutex::new(None);
static TURN: Mutex<()> = Mutex::new(());

/// A test's exclusive use of a fresh kernel; other tests wait until it is dropped.
pub(crate) struct Booted(#[allow(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Drop for Booted {
    fn drop(&mut self) {
        acts().clear();
        with(|host| *host = Host::default());
    }
}

/// Boots a fresh kernel for a test.
pub(crate) fn boot() -> Booted {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    acts().clear(); // A failed test may have left some.
    forget_disturbances();
    *act_before_return() = None;
    with(|host| *host = Host::default());
    Booted(turn)
}

fn acts() -> MutexGuard<'static, VecDeque<Act>> {
    ACTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plans an act for the next sleep that has none yet.
pub(crate) fn while_asleep(act: impl FnOnce() + Send + 'static) {
    acts().push_back(Box::new(act));
}

/// Plans an act for the time between the moment when a thread that waits in an epoll instance takes
/// events from the kernel, and its return to the core.
pub(crate) fn before_return(act: impl FnOnce() + Send + 'static) {
    *act_before_return() = Some(Box::new(act));
}

fn act_before_return() -> MutexGuard<'static, Option<Act>> {
    ACT_BEFORE_RETURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many planned acts have not run.
pub(crate) fn acts_left() -> usize {
    acts().len()
}

/// Forgets planned acts that have not run.
pub(crate) fn forget_acts() {
    acts().clear();
}

/// Plans that a signal ends the next sleep that has no act yet.
pub(crate) fn interrupt_sleep() {
    while_asleep(|| with(|host| host.is_interrupted = true));
}

/// Opens both ends of a TCP connection.
pub(crate) fn connection() -> [RawFd; 2] {
    with(|host| {
        let (server, client) = (host.next_address(), host.next_address());
        let [one, other] = [(client, server), (server, client)].map(|(own, peer)| {
            host.open(|cookie| File::Socket(Box::new(Socket::connected(cookie, own, peer))))
        });
        host.socket(one).expect("just made").other = Some(other);
        host.socket(other).expect("just made").other = Some(one);
        [one, other]
    })
}

/// Has what is sent by TCP stay in flight until it is delivered, at the latest to a thread that
/// sleeps.
pub(crate) fn slow_down() {
    with(|host| host.is_slow = true);
}

/// Lets processes fetch each other's sockets, so that unread bytes move to TCP with a connection
/// that falls back to TCP.
pub(crate) fn let_fetch() {
    with(|host| host.can_fetch = true);
}

/// Delivers at most this many packets to each socket.
pub(crate) fn deliver(most: usize) {
    with(|host| host.deliver_all(most));
}

/// Opens a UDP socket with an address of its own.
pub(crate) fn datagram_socket() -> RawFd {
    with(|host| {
        let own = host.next_address();
        host.open(|cookie| File::Socket(Box::new(Socket::datagram(cookie, own))))
    })
}

/// Opens an epoll instance.
pub(crate) fn epoll() -> RawFd {
    with(|host| host.open(|_| File::Epoll(instance::Instance::default())))
}

/// Closes a descriptor.
pub(crate) fn close(fd: RawFd) {
    with(|host| host.close(fd));
}

/// Closes a descriptor, and opens a connection with the same number. Returns the other end.
pub(crate) fn reuse(fd: RawFd) -> RawFd {
    let [one, other] = connection();
    with(|host| host.move_to(one, fd));
    other
}

/// Executes `shutdown(2)`.
pub(crate) fn shutdown(fd: RawFd, how: libc::c_int) {
    with(|host| host.shutdown(fd, how));
}

/// Resets a connection, as the peer's kernel does.
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

/// Returns a socket's address and its peer's.
pub(crate) fn addresses(fd: RawFd) -> [std::net::SocketAddr; 2] {
    with(|host| {
        let socket = host.socket(fd).expect("a socket");
        [socket.own, socket.peer]
    })
}

/// Returns how many unread bytes the kernel's socket has.
pub(crate) fn unread(fd: RawFd) -> usize {
    with(|host| host.socket(fd).expect("a socket").incoming.len())
}

/// Returns the events that an instance has registered for a descriptor.
pub(crate) fn registered(epoll: RawFd, fd: RawFd) -> Option<u32> {
    with(|host| host.instance(epoll)?.registered(fd))
}

/// Returns how often the core has made the call of this name.
pub(crate) fn calls(name: &str) -> u64 {
    with(|host| host.calls.get(name).copied().unwrap_or(0))
}

/// Returns an empty list of events.
pub(crate) fn no_events<const N: usize>() -> [epoll_event; N] {
    [epoll_event { events: 0, u64: 0 }; N]
}

/// Returns the time of the kernel's clock in nanoseconds.
pub(crate) fn time() -> u64 {
    with(|host| host.now)
}
