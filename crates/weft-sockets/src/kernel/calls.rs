//! What the core asks of the kernel, beside what connections in memory ask of it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use libc::{c_int, epoll_event, pollfd};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::time::Timespec;
use weft_stream::PutBack;
use weft_sys::FutexWord;

/// A kernel. Errors are those that the system call of the same meaning reports.
pub(crate) trait Kernel:
    for<'a> weft_stream::Kernel<Socket<'a> = BorrowedFd<'a>> + PutBack
{
    /// Nanoseconds that no one adjusts.
    fn now() -> u64;

    /// Sleeps for a time.
    fn sleep_for(time: &Timespec);

    /// A socket's own address.
    fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr>;

    /// The address of a connected socket's peer.
    fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr>;

    /// Both ends' addresses, of an IP socket that is connected. `errno` stays as it is.
    fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)>;

    /// Binds a socket.
    fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Result<(), Errno>;

    /// Which of this host's addresses a datagram to this target is sent from.
    fn source_towards(target: SocketAddr) -> Option<IpAddr>;

    /// The cookie of the socket on this host that receives what one address sends to another.
    fn receiver_of(from: SocketAddr, to: SocketAddr) -> Option<u64>;

    /// The kernel's number for a socket.
    fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno>;

    /// The kernel's number for a socket's network namespace; 0 where it tells none.
    fn network_of(socket: BorrowedFd<'_>) -> u64;

    /// The inode of an open file.
    fn inode(file: BorrowedFd<'_>) -> Option<u64>;

    /// Whether a descriptor is open.
    fn is_open(file: BorrowedFd<'_>) -> bool;

    /// Whether calls on an open file return at once (`O_NONBLOCK`).
    fn is_nonblocking(file: BorrowedFd<'_>) -> bool;

    /// Whether a socket listens.
    fn is_listening(socket: BorrowedFd<'_>) -> bool;

    /// Whether the next byte that a socket has is the urgent one.
    fn is_at_mark(socket: BorrowedFd<'_>) -> bool;

    /// For how long a call on a socket waits; `None` for ever.
    fn time_limit(socket: BorrowedFd<'_>, which: Timeout) -> Option<Duration>;

    /// An option of sockets (`SOL_SOCKET`) that is an integer.
    fn option(socket: BorrowedFd<'_>, option: c_int) -> Result<c_int, Errno>;

    /// A socket's error, which it has no more afterwards (`SO_ERROR`).
    fn take_error(socket: BorrowedFd<'_>) -> Option<Errno>;

    /// Bytes that a TCP socket has received since it was connected.
    fn received(socket: BorrowedFd<'_>) -> Result<u64, Errno>;

    /// Sleeps until something can be received, as a call of the program's does: its thread may be
    /// cancelled, and the socket's own options and the handlers of signals say how long it waits.
    fn wait_for_bytes(socket: BorrowedFd<'_>) -> Result<(), Errno>;

    /// Waits until a file is ready for any of these events, has an error or has hung up, and says
    /// what it is ready for: nothing when the time is over.
    fn poll(
        file: BorrowedFd<'_>,
        events: PollFlags,
        timeout: Option<&Timespec>,
    ) -> Result<PollFlags, Errno>;

    /// The same for several files, as a call of the program's, whose thread may be cancelled. A
    /// negative result stands for `errno`.
    fn poll_as_program(set: &mut [pollfd], timeout: Option<&Timespec>) -> c_int;

    /// Sleeps while a word that processes share is `value`, for `time` at most.
    fn wait_on_word(word: &AtomicU32, value: u32, time: &Timespec) -> Result<(), Errno>;

    /// Sleeps until the peer wakes it, for `time` at most. The only error is
    /// `EINTR`.
    fn wait_for_peer(word: FutexWord<'_>, time: &Timespec) -> Result<(), Errno>;

    /// The same on several, up to a time of the monotonic clock.
    fn wait_for_peers<'a>(
        words: impl Iterator<Item = FutexWord<'a>>,
        until: &Timespec,
    ) -> Result<(), Errno>;

    /// `epoll_ctl(2)` as a call of the program's: 0, or -1 and `errno`.
    fn control(epoll: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> c_int;

    /// What an epoll instance has to report now, and how many events that are.
    fn take_events(epoll: BorrowedFd<'_>, events: &mut [epoll_event]) -> Result<usize, Errno>;

    /// What an epoll instance watches, as proc(5) has it (fdinfo); nothing where the kernel does
    /// not say.
    fn registrations(epoll: RawFd) -> String;
}
