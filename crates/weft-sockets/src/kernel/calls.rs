//! What the core asks of the kernel, in addition to the trait for connections in memory.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use libc::{c_int, epoll_event, pollfd};
use weft_stream::PutBack;
use weft_sys::FutexWord;
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt::Timeout;
use weft_sys::calls::time::Timespec;

/// A kernel. Errors are those of the corresponding system call.
pub(crate) trait Kernel:
    for<'a> weft_stream::Kernel<Socket<'a> = BorrowedFd<'a>> + PutBack
{
    /// Returns the time of a monotonic clock in nanoseconds.
    fn now() -> u64;

    /// Sleeps for a time.
    fn sleep_for(time: &Timespec);

    /// Returns a socket's own address.
    fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr>;

    /// Returns the address of a connected socket's peer.
    fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr>;

    /// Returns both ends' addresses of a connected IP socket. Preserves `errno`.
    fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)>;

    /// Binds a socket.
    fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Result<(), Errno>;

    /// Returns the local address from which a datagram to this target is sent.
    fn source_towards(target: SocketAddr) -> Option<IpAddr>;

    /// Returns the cookie of the socket on this host that receives datagrams from one address to
    /// another.
    fn receiver_of(from: SocketAddr, to: SocketAddr) -> Option<u64>;

    /// Returns the kernel's unique number of a socket.
    fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno>;

    /// Returns the kernel's number of a socket's network namespace; 0 if it is not known.
    fn network_of(socket: BorrowedFd<'_>) -> u64;

    /// Returns the inode of an open file.
    fn inode(file: BorrowedFd<'_>) -> Option<u64>;

    /// Returns whether a descriptor is open.
    fn is_open(file: BorrowedFd<'_>) -> bool;

    /// Returns whether an open file is non-blocking (`O_NONBLOCK`).
    fn is_nonblocking(file: BorrowedFd<'_>) -> bool;

    /// Returns whether a socket listens.
    fn is_listening(socket: BorrowedFd<'_>) -> bool;

    /// Returns whether the socket's next byte is the urgent one.
    fn is_at_mark(socket: BorrowedFd<'_>) -> bool;

    /// Returns a socket's time limit for blocking calls; `None` if there is none.
    fn time_limit(socket: BorrowedFd<'_>, which: Timeout) -> Option<Duration>;

    /// Returns an integer option of the level `SOL_SOCKET`.
    fn option(socket: BorrowedFd<'_>, option: c_int) -> Result<c_int, Errno>;

    /// Returns and clears a socket's pending error (`SO_ERROR`).
    fn take_error(socket: BorrowedFd<'_>) -> Option<Errno>;

    /// Returns how many bytes a TCP socket has received since it was connected.
    fn received(socket: BorrowedFd<'_>) -> Result<u64, Errno>;

    /// Blocks until something can be received, like a call of the program: the thread may be
    /// cancelled, and the socket's options and the signal handlers decide how long it waits.
    fn wait_for_bytes(socket: BorrowedFd<'_>) -> Result<(), Errno>;

    /// Waits until a file has any of these events, an error or a hang-up. Returns the events; none
    /// if the time is over.
    fn poll(
        file: BorrowedFd<'_>,
        events: PollFlags,
        timeout: Option<&Timespec>,
    ) -> Result<PollFlags, Errno>;

    /// Waits for several files, like a call of the program, whose thread may be cancelled. A
    /// negative result stands for `errno`.
    fn poll_as_program(set: &mut [pollfd], timeout: Option<&Timespec>) -> c_int;

    /// Sleeps while a shared futex word has `value`, for `time` at most.
    fn wait_on_word(word: &AtomicU32, value: u32, time: &Timespec) -> Result<(), Errno>;

    /// Sleeps until the peer wakes the word, for `time` at most. The only error is `EINTR`.
    fn wait_for_peer(word: FutexWord<'_>, time: &Timespec) -> Result<(), Errno>;

    /// Sleeps on several words, until a time of the monotonic clock.
    fn wait_for_peers<'a>(
        words: impl Iterator<Item = FutexWord<'a>>,
        until: &Timespec,
    ) -> Result<(), Errno>;

    /// Makes an `epoll_ctl(2)` for the program: returns 0, or -1 and `errno`.
    fn control(epoll: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> c_int;

    /// Takes an epoll instance's events without waiting. Returns their number.
    fn take_events(epoll: BorrowedFd<'_>, events: &mut [epoll_event]) -> Result<usize, Errno>;

    /// Returns an epoll instance's fdinfo (proc(5)), which lists its entries; empty if the kernel
    /// does not say.
    fn registrations(epoll: RawFd) -> String;
}
