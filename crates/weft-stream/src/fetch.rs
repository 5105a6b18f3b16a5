//! The kernel's interface for putting bytes back by the peer's socket.

use std::fmt::Debug;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use weft_sys::calls::event::{PollFd, PollFlags, poll};
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::{SendFlags, send, sockopt};
use weft_sys::calls::time::Timespec;
use weft_sys::calls::{is_ready, tcp_outstanding, tcp_received};

use crate::kernel::{Kernel, Linux};
use crate::peer_socket;

/// How long one wait for the kernel to deliver sent bytes lasts.
const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A kernel in which a process can fetch its peer's socket.
pub trait Fetch: Kernel {
    /// A fetched socket.
    type Fetched: Debug;

    /// Fetches the other end of the connection of `own` from one of the processes `pids`, of which
    /// the first probably has it as descriptor `likely`.
    fn fetch(
        own: Self::Socket<'_>,
        pids: impl Iterator<Item = u32> + Clone,
        likely: u32,
    ) -> Option<Self::Fetched>;

    /// Returns a fetched socket for one call.
    fn fetched(fetched: &Self::Fetched) -> Self::Socket<'_>;

    /// Sends as much as there is room for, without blocking and without raising a signal.
    ///
    /// # Errors
    /// An error of the kernel; the same holds for all calls here.
    fn send_at_once(socket: Self::Socket<'_>, bytes: &[u8]) -> Result<usize, Errno>;

    /// Returns how many bytes a socket has received.
    ///
    /// # Errors
    /// An error of the kernel.
    fn has_received(socket: Self::Socket<'_>) -> Result<u64, Errno>;

    /// Returns how many bytes that a socket has sent are not acknowledged.
    ///
    /// # Errors
    /// An error of the kernel.
    fn outstanding(socket: Self::Socket<'_>) -> Result<usize, Errno>;

    /// Returns whether urgent data are unread.
    fn has_urgent(socket: Self::Socket<'_>) -> bool;

    /// Returns the size of a socket's send buffer in bytes; 0 if it is not known.
    fn send_buffer_size(socket: Self::Socket<'_>) -> usize;

    /// Waits briefly for an event on a socket.
    fn wait_briefly(socket: Self::Socket<'_>, what: PollFlags);
}

impl Fetch for Linux {
    type Fetched = OwnedFd;

    fn fetch(
        own: BorrowedFd<'_>,
        pids: impl Iterator<Item = u32> + Clone,
        likely: u32,
    ) -> Option<OwnedFd> {
        peer_socket::fetch(own, pids, likely)
    }

    fn fetched(fetched: &OwnedFd) -> BorrowedFd<'_> {
        fetched.as_fd()
    }

    fn send_at_once(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    fn has_received(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        tcp_received(socket)
    }

    fn outstanding(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        tcp_outstanding(socket)
    }

    fn has_urgent(socket: BorrowedFd<'_>) -> bool {
        is_ready(socket, PollFlags::PRI)
    }

    fn send_buffer_size(socket: BorrowedFd<'_>) -> usize {
        sockopt::socket_send_buffer_size(socket).unwrap_or(0)
    }

    fn wait_briefly(socket: BorrowedFd<'_>, what: PollFlags) {
        let _ = poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&SLEEP_TIME));
    }
}
