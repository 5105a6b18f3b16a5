//! The kernel's interface as connections use it.
//!
//! The product has one implementation, [`Linux`]. The simulation (`crate::sim`) has another, which
//! many processes share; there each of these calls is a point at which a process may be killed, or
//! another one may run. Calls are dispatched statically.

use std::collections::HashSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use weft_sys::Linux;
use weft_sys::calls;
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::{Errno, FdFlags, ioctl_fionread};
use weft_sys::calls::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect_unspec,
    shutdown, socket_with, sockopt,
};
use weft_sys::calls::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use weft_sys::calls::thread::nanosleep;
use weft_sys::calls::time::{ClockId, Timespec, clock_gettime};
use weft_sys::calls::{
    events_now, is_ready, is_tcp_open, recv_bytes, send_bytes, set_tcp_cork, set_tcp_nodelay,
    tcp_cork, tcp_nodelay,
};
use weft_sys::{Buffers, Threads, network_namespace};

use crate::proc_tcp::listed;
use crate::registry::Registry;
pub use crate::sock_diag::Holder;
use crate::sock_diag::holder_of;
use crate::tuple::Tuple;

/// How long [`Kernel::pause`] lasts, in nanoseconds.
const PAUSE_NS: i64 = 10_000_000;

/// A kernel, real or simulated.
pub trait Kernel: Threads + Copy + Debug + 'static {
    /// A socket of the calling process, valid for one call.
    type Socket<'a>: Copy + Debug;

    /// A moment at which a simulation may let another thread or process act.
    #[inline]
    fn moment() {}

    /// Lets a moment pass, in which others may run.
    fn pause() {
        std::thread::yield_now();
    }

    /// Calls `sendmsg(2)`, and returns how many bytes the socket took.
    ///
    /// # Errors
    /// An error of the kernel; the same holds for all calls here.
    fn send(socket: Self::Socket<'_>, buffers: Buffers<'_>, flags: i32) -> Result<usize, Errno>;

    /// Calls `recvmsg(2)` for at most `most` bytes.
    ///
    /// # Errors
    /// An error of the kernel.
    fn recv(
        socket: Self::Socket<'_>,
        buffers: Buffers<'_>,
        most: usize,
        flags: i32,
    ) -> Result<usize, Errno>;

    /// Sends a few bytes without blocking and without raising a signal.
    ///
    /// # Errors
    /// An error of the kernel.
    fn put(socket: Self::Socket<'_>, bytes: &[u8]) -> Result<usize, Errno>;

    /// Receives a few bytes without blocking; with `keep` they stay in the socket.
    ///
    /// # Errors
    /// An error of the kernel.
    fn take(socket: Self::Socket<'_>, bytes: &mut [u8], keep: bool) -> Result<usize, Errno>;

    /// Number of bytes that can be received before urgent data (`SIOCINQ`).
    ///
    /// # Errors
    /// An error of the kernel.
    fn unread(socket: Self::Socket<'_>) -> Result<usize, Errno>;

    /// Whether the kernel has seen the end of the peer's stream.
    fn is_hung_up(socket: Self::Socket<'_>) -> bool;

    /// Whether the kernel has an error to report. It stays in the socket.
    fn has_error(socket: Self::Socket<'_>) -> bool;

    /// Makes the socket send without delay from here on. Returns whether `TCP_NODELAY` and
    /// `TCP_CORK` were set before.
    fn undelay(socket: Self::Socket<'_>) -> [bool; 2];

    /// Resets the connection, so that every holder of the socket sees the error.
    fn dissolve(socket: Self::Socket<'_>);

    /// Resets the connection and takes the error, which the caller reports.
    fn reset(socket: Self::Socket<'_>);

    /// Makes the last `close` reset the connection (`SO_LINGER` 0).
    fn reset_at_close(socket: Self::Socket<'_>);

    /// Whether a descriptor stays open across `exec`.
    fn stays_open(socket: Self::Socket<'_>) -> bool;

    /// Finds the TCP socket between two addresses that some process has open.
    ///
    /// # Errors
    /// The kernel cannot say.
    fn holder_of(own: SocketAddr, peer: SocketAddr) -> Result<Option<Holder>, Errno>;

    /// Whether a process still runs.
    fn is_alive(pid: u32) -> bool;

    /// Every TCP connection of the network namespace that has an owner, in both orders of its ends.
    fn connections(namespace: u64) -> HashSet<Tuple>;

    /// The number of the calling thread's network namespace; 0 if the kernel reports none.
    ///
    /// # Errors
    /// An error of `socket(2)`.
    fn namespace() -> Result<u64, Errno>;

    /// Whether a registry belongs to this process's namespaces, so that process numbers and
    /// addresses in it mean the same here.
    fn is_own(registry: &Registry) -> bool;

    /// The effective user of the process.
    fn user() -> u32;

    /// Seconds of the monotonic clock.
    fn second() -> u64;

    /// Wakes all threads that wait on a word.
    fn wake_all(word: &AtomicU32) {
        Self::wake(word, u32::MAX);
    }
}

/// Whether an error concerns only the descriptor: another thread has closed it, or its number
/// refers to another file by now. The connection, which may have other descriptors, is not
/// affected.
pub(crate) fn is_descriptor_error(error: Errno) -> bool {
    matches!(error, Errno::BADF | Errno::NOTSOCK)
}

/// What a test has this thread do at a moment between two steps of an end.
#[cfg(test)]
pub(crate) mod meanwhile {
    use std::cell::RefCell;

    type Act = Box<dyn FnOnce()>;

    thread_local! {
        /// The moments that pass before, and what happens then.
        static NEXT: RefCell<Option<(u32, Act)>> = const { RefCell::new(None) };
    }

    /// Has this thread do something at the moment after the next `moments`.
    pub(crate) fn after(moments: u32, act: impl FnOnce() + 'static) {
        NEXT.set(Some((moments, Box::new(act))));
    }

    /// Does what is due if it was not yet.
    pub(crate) fn now() {
        if let Some((_, act)) = NEXT.take() {
            act();
        }
    }

    pub(super) fn moment() {
        match NEXT.take() {
            Some((0, act)) => act(),
            Some((moments, act)) => NEXT.set(Some((moments - 1, act))),
            None => {}
        }
    }
}

impl Kernel for Linux {
    type Socket<'a> = BorrowedFd<'a>;

    #[cfg(test)]
    fn moment() {
        meanwhile::moment();
    }

    #[inline]
    fn send(socket: BorrowedFd<'_>, buffers: Buffers<'_>, flags: i32) -> Result<usize, Errno> {
        buffers.send(socket, flags)
    }

    #[inline]
    fn recv(
        socket: BorrowedFd<'_>,
        buffers: Buffers<'_>,
        most: usize,
        flags: i32,
    ) -> Result<usize, Errno> {
        buffers.recv_most(socket, most, flags)
    }

    fn pause() {
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
    }

    #[inline]
    fn put(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        send_bytes(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    #[inline]
    fn take(socket: BorrowedFd<'_>, bytes: &mut [u8], keep: bool) -> Result<usize, Errno> {
        let kept = if keep { RecvFlags::PEEK } else { RecvFlags::empty() };
        recv_bytes(socket, bytes, RecvFlags::DONTWAIT | kept)
    }

    fn unread(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        ioctl_fionread(socket).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
        let asked = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        // The flags are also set if this end has shut down its own half.
        is_ready(socket, asked)
            && is_tcp_open(socket)
                .map_or_else(|error| !is_descriptor_error(error), |is_open| !is_open)
    }

    fn has_error(socket: BorrowedFd<'_>) -> bool {
        events_now(socket, PollFlags::empty()).contains(PollFlags::ERR)
    }

    fn undelay(socket: BorrowedFd<'_>) -> [bool; 2] {
        let before = [tcp_nodelay(socket), tcp_cork(socket)];
        let _ = set_tcp_cork(socket, false);
        let _ = set_tcp_nodelay(socket, true);
        before.map(|on| on == Ok(true))
    }

    fn dissolve(socket: BorrowedFd<'_>) {
        let _ = connect_unspec(socket);
        let _ = shutdown(socket, Shutdown::Both);
    }

    fn reset(socket: BorrowedFd<'_>) {
        Self::dissolve(socket);
        let _ = sockopt::socket_error(socket);
    }

    fn reset_at_close(socket: BorrowedFd<'_>) {
        let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }

    fn stays_open(socket: BorrowedFd<'_>) -> bool {
        calls::io::fcntl_getfd(socket).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
    }

    fn holder_of(own: SocketAddr, peer: SocketAddr) -> Result<Option<Holder>, Errno> {
        holder_of(own, peer)
    }

    fn is_alive(pid: u32) -> bool {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // A pidfd becomes readable when the process has closed everything.
            Ok(process) => !is_ready(process, PollFlags::IN),
            Err(error) => error != Errno::SRCH,
        }
    }

    fn connections(namespace: u64) -> HashSet<Tuple> {
        listed(namespace)
    }

    fn namespace() -> Result<u64, Errno> {
        let probe =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::empty(), None)?;
        Ok(network_namespace(&probe))
    }

    fn is_own(registry: &Registry) -> bool {
        registry.is_own()
    }

    fn user() -> u32 {
        geteuid().as_raw()
    }

    fn second() -> u64 {
        clock_gettime(ClockId::Monotonic).tv_sec.cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown as Half, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    #[test]
    fn descriptor_of_another_file_is_not_hung_up() {
        let (file, _other) = rustix::pipe::pipe().expect("a pipe");
        drop(_other);
        assert!(!Linux::is_hung_up(file.as_fd()));
    }

    #[test]
    fn shutdown_by_this_end_is_not_a_hang_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let one = TcpStream::connect(address).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        one.shutdown(Half::Read).expect("shut");
        assert!(!Linux::is_hung_up(one.as_fd()));
        drop(other);
        assert!(Linux::is_hung_up(one.as_fd()));
    }
}
