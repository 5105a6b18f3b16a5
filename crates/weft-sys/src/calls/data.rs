//! The system calls of the data path.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use libc::epoll_event;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::futex::Wait;
use rustix::time::Timespec;

use super::raw::{address, call, number, option_of, set_option};

/// Which threads may sleep on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Threads of several processes.
    Processes,
    /// Threads of one process only.
    Threads,
}

impl Sharing {
    fn flag(self) -> usize {
        match self {
            Self::Processes => 0,
            Self::Threads => libc::FUTEX_PRIVATE_FLAG as usize,
        }
    }
}

/// Sleeps while a word has the value `value`, until woken, for `time` at most.
///
/// # Errors
/// `EAGAIN`: the word has another value; `ETIMEDOUT`; `EINTR`.
pub fn futex_wait(
    word: &AtomicU32,
    sharing: Sharing,
    value: u32,
    time: Option<&Timespec>,
) -> Result<(), Errno> {
    let operation = libc::FUTEX_WAIT as usize | sharing.flag();
    let arguments = [word.as_ptr() as usize, operation, value as usize, address(time), 0, 0];
    // SAFETY: the word and the time live during the call; without a time the pointer is NULL.
    unsafe { call(libc::SYS_futex, arguments) }.map(drop)
}

/// Wakes at most `most` threads that sleep on a word.
pub fn futex_wake(word: &AtomicU32, sharing: Sharing, most: u32) {
    let operation = libc::FUTEX_WAKE as usize | sharing.flag();
    let most = most.min(i32::MAX.cast_unsigned()) as usize;
    let arguments = [word.as_ptr() as usize, operation, most, 0, 0, 0];
    // SAFETY: the word lives during the call. An error cannot be handled.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// Sleeps on several words, until a time of the monotonic clock at most.
///
/// # Errors
/// Those of [`futex_wait`], and `ENOSYS` before Linux 5.16.
pub fn futex_wait_any(waits: &[Wait], until: &Timespec) -> Result<(), Errno> {
    let clock = libc::CLOCK_MONOTONIC as usize;
    let arguments =
        [waits.as_ptr() as usize, waits.len(), 0, ptr::from_ref(until) as usize, clock, 0];
    // SAFETY: `waits` and `until` live during the call, and the length is that of the list. The
    // words came from references that outlive it.
    unsafe { call(libc::SYS_futex_waitv, arguments) }.map(drop)
}

/// Yields the core to other threads.
pub fn sched_yield() {
    // SAFETY: `sched_yield` accesses no memory, and never fails.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Waits for readiness (`ppoll(2)`), and returns the number of ready descriptors.
///
/// # Errors
/// An error of the kernel, including `EINTR`.
pub fn poll(set: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
    let mut time = timeout.copied(); // The kernel overwrites it with the remaining time.
    let time = time.as_mut().map_or(0, |time| ptr::from_mut(time) as usize);
    // SAFETY: `PollFd` has the layout of `pollfd`, the length is that of the list, and the time is
    // a local variable or NULL.
    unsafe { call(libc::SYS_ppoll, [set.as_mut_ptr() as usize, set.len(), time, 0, 0, 0]) }
}

/// The events in `events` that a file has now, plus an error or a hang-up. Empty if the kernel does
/// not answer.
pub fn events_now(file: impl AsFd, events: PollFlags) -> PollFlags {
    let mut set = [PollFd::from_borrowed_fd(file.as_fd(), events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = poll(&mut set, Some(&now));
    asked.map_or(PollFlags::empty(), |_| set[0].revents())
}

/// Whether a file has any of these events now, an error, or a hang-up.
pub fn is_ready(file: impl AsFd, events: PollFlags) -> bool {
    !events_now(file, events).is_empty()
}

/// Reads the events that an epoll instance has now (`epoll_pwait(2)`), and returns their number.
///
/// # Errors
/// An error of the kernel.
pub fn take_events(epoll: impl AsFd, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let arguments = [number(&epoll), events.as_mut_ptr() as usize, events.len(), 0, 0, 0];
    // SAFETY: the length is that of the list, which lives during the call.
    unsafe { call(libc::SYS_epoll_pwait, arguments) }
}

/// Receives from a socket.
///
/// # Errors
/// An error of the kernel.
pub fn recv_bytes(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    let (fd, flags) = (number(&socket), flags.bits() as usize);
    // SAFETY: the length is that of the buffer, which lives during the call.
    let received = unsafe {
        call(libc::SYS_recvfrom, [fd, bytes.as_mut_ptr() as usize, bytes.len(), flags, 0, 0])
    };
    received.map(|received| received.min(bytes.len())) // MSG_TRUNC
}

/// Sends over a socket.
///
/// # Errors
/// An error of the kernel.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    let (fd, flags) = (number(&socket), flags.bits() as usize);
    // SAFETY: the length is that of the buffer, which lives during the call.
    unsafe { call(libc::SYS_sendto, [fd, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) }
}

/// Reads from a file.
///
/// # Errors
/// An error of the kernel.
pub fn read(file: impl AsFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [number(&file), bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the length is that of the buffer, which lives during the call.
    unsafe { call(libc::SYS_read, arguments) }
}

/// Writes to a file.
///
/// # Errors
/// An error of the kernel.
pub fn write(file: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let arguments = [number(&file), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the length is that of the buffer, which lives during the call.
    unsafe { call(libc::SYS_write, arguments) }
}

/// Reads at an offset of a file (`pread(2)`).
///
/// # Errors
/// An error of the kernel.
pub fn read_at(file: impl AsFd, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    let arguments = [number(&file), bytes.as_mut_ptr() as usize, bytes.len(), at as usize, 0, 0];
    // SAFETY: the length is that of the buffer, which lives during the call.
    unsafe { call(libc::SYS_pread64, arguments) }
}

/// Reads what is in the kernel's page cache at an offset of a file (`preadv2(2)` with
/// `RWF_NOWAIT`).
///
/// # Errors
/// `EAGAIN` if nothing is cached there, `EOPNOTSUPP` for a file that cannot be read so, and other
/// errors of the kernel.
pub fn read_cached_at(file: impl AsFd, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    const NOWAIT: usize = libc::RWF_NOWAIT as usize;
    let vector = [bytes.as_mut_ptr() as usize, bytes.len()];
    let arguments = [number(&file), vector.as_ptr() as usize, 1, at as usize, 0, NOWAIT];
    // SAFETY: the one element of the vector, which has the form of `struct iovec`, is the buffer,
    // and both live during the call. The kernel takes the offset's low half as all of it.
    unsafe { call(libc::SYS_preadv2, arguments) }
}

/// Moves the offset of an open file (`lseek(2)`), and returns the new offset.
///
/// # Errors
/// An error of the kernel.
pub fn seek(file: impl AsFd, offset: u64, whence: libc::c_int) -> Result<u64, Errno> {
    let arguments = [number(&file), offset as usize, whence as usize, 0, 0, 0];
    // SAFETY: `lseek` accesses no memory.
    unsafe { call(libc::SYS_lseek, arguments) }.map(|at| at as u64)
}

/// The type and the size of a file (`fstat(2)`).
///
/// # Errors
/// An error of the kernel.
pub fn type_and_size(file: impl AsFd) -> Result<(FileType, u64), Errno> {
    let mut state = MaybeUninit::<libc::stat>::uninit();
    let arguments = [number(&file), state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: `state` has room for the structure that the kernel writes: `libc::stat` is the
    // kernel's.
    unsafe { call(libc::SYS_fstat, arguments) }?;
    // SAFETY: the call has succeeded, so the kernel has filled the structure.
    let state = unsafe { state.assume_init() };
    Ok((FileType::from_raw_mode(state.st_mode), u64::try_from(state.st_size).unwrap_or(0)))
}

/// The flags of an open file (`F_GETFL`).
///
/// # Errors
/// An error of the kernel.
pub fn file_flags(file: impl AsFd) -> Result<OFlags, Errno> {
    // SAFETY: `F_GETFL` accesses no memory.
    let flags =
        unsafe { call(libc::SYS_fcntl, [number(&file), libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.map(|flags| OFlags::from_bits_retain(flags as u32))
}

/// The timeout of calls on a socket (`SO_RCVTIMEO`, `SO_SNDTIMEO`); `None` if there is none.
///
/// # Errors
/// An error of the kernel.
pub fn socket_timeout(socket: impl AsFd, which: Timeout) -> Result<Option<Duration>, Errno> {
    let option = match which {
        Timeout::Recv => libc::SO_RCVTIMEO,
        Timeout::Send => libc::SO_SNDTIMEO,
    };
    let [seconds, micros] = option_of::<[i64; 2]>(socket, libc::SOL_SOCKET, option)?;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let micros = u64::try_from(micros).unwrap_or(0);
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    Ok((!time.is_zero()).then_some(time))
}

/// The kernel's number for a socket (`SO_COOKIE`).
///
/// # Errors
/// An error of the kernel.
pub fn socket_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    option_of(socket, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The value of a socket option (`SOL_SOCKET`) that is an integer.
///
/// # Errors
/// An error of the kernel.
pub fn socket_option(socket: impl AsFd, option: libc::c_int) -> Result<libc::c_int, Errno> {
    option_of(socket, libc::SOL_SOCKET, option)
}

/// Whether the socket delays bytes to send full segments (`TCP_CORK`).
///
/// # Errors
/// An error of the kernel.
pub fn tcp_cork(socket: impl AsFd) -> Result<bool, Errno> {
    option_of::<libc::c_int>(socket, libc::IPPROTO_TCP, libc::TCP_CORK).map(|on| on != 0)
}

/// Whether the next byte of a TCP socket is the urgent one (`sockatmark(3)`).
pub fn is_at_mark(socket: impl AsFd) -> bool {
    /// From `linux/sockios.h`.
    const SIOCATMARK: usize = 0x8905;
    let mut answer: libc::c_int = 0;
    let arguments = [number(&socket), SIOCATMARK, (&raw mut answer) as usize, 0, 0, 0];
    // SAFETY: the request writes an int, and `answer` is one that lives during the call.
    let result = unsafe { call(libc::SYS_ioctl, arguments) };
    result.is_ok() && answer != 0
}

/// Whether the socket sends without delay (`TCP_NODELAY`).
///
/// # Errors
/// An error of the kernel.
pub fn tcp_nodelay(socket: impl AsFd) -> Result<bool, Errno> {
    option_of::<libc::c_int>(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY).map(|on| on != 0)
}

/// Whether the kernel expects a TCP socket's peer to send more (`TCP_INFO`).
///
/// # Errors
/// An error of the kernel.
pub fn is_tcp_open(socket: impl AsFd) -> Result<bool, Errno> {
    const OPEN: [u8; 3] = [1, 4, 5]; // TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2
    let info = option_of::<[u8; 8]>(socket, libc::IPPROTO_TCP, libc::TCP_INFO);
    info.map(|[state, ..]| OPEN.contains(&state))
}

/// Number of bytes that a TCP socket has received since it was connected (`TCP_INFO`).
///
/// # Errors
/// An error of the kernel.
pub fn tcp_received(socket: impl AsFd) -> Result<u64, Errno> {
    const WORDS: usize = 17;
    // `tcpi_bytes_received` is the last of these words.
    let info = option_of::<[u64; WORDS]>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(info[WORDS - 1])
}

/// The shortest round trip that a TCP socket has measured (`TCP_INFO`); `None` if it has measured
/// none.
///
/// # Errors
/// An error of the kernel.
pub fn tcp_round_trip(socket: impl AsFd) -> Result<Option<Duration>, Errno> {
    const WORDS: usize = 19;
    // `tcpi_min_rtt` is the second half of the last of these words, in microseconds.
    let info = option_of::<[u64; WORDS]>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let [.., a, b, c, d] = info[WORDS - 1].to_ne_bytes();
    let microseconds = u32::from_ne_bytes([a, b, c, d]);
    Ok((microseconds != u32::MAX).then(|| Duration::from_micros(microseconds.into())))
}

/// Number of bytes that a TCP socket has sent and the peer's host has not acknowledged
/// (`SIOCOUTQ`).
///
/// # Errors
/// An error of the kernel.
pub fn tcp_outstanding(socket: impl AsFd) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    let place = &raw mut bytes as usize;
    let fd = socket.as_fd().as_raw_fd() as usize;
    // SAFETY: the request writes an int, and `bytes` is one that lives during the call.
    unsafe { call(libc::SYS_ioctl, [fd, libc::TIOCOUTQ as usize, place, 0, 0, 0]) }?;
    usize::try_from(bytes).map_err(|_| Errno::INVAL)
}

/// Sets `TCP_CORK`.
///
/// # Errors
/// An error of the kernel.
pub fn set_tcp_cork(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_CORK, &libc::c_int::from(on))
}

/// Sets `TCP_NODELAY`.
///
/// # Errors
/// An error of the kernel.
pub fn set_tcp_nodelay(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &libc::c_int::from(on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use rustix::net::sockopt;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    #[test]
    fn calls_behave_like_those_of_rustix() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_readable = || {
            let mut set = [PollFd::new(&other, PollFlags::IN)];
            let ready = poll(&mut set, Some(&now)).expect("a poll");
            assert_eq!(ready > 0, set[0].revents() == PollFlags::IN);
            ready > 0
        };
        assert!(!is_readable());
        assert_eq!(send_bytes(&one, b"abc", SendFlags::NOSIGNAL), Ok(3));
        assert!(is_readable());
        let mut room = [0; 8];
        assert_eq!(recv_bytes(&other, &mut room, RecvFlags::PEEK), Ok(3));
        assert_eq!(recv_bytes(&other, &mut room, RecvFlags::DONTWAIT), Ok(3));
        assert_eq!(&room[..3], b"abc");
        assert_eq!(recv_bytes(&other, &mut room, RecvFlags::DONTWAIT), Err(Errno::AGAIN));

        assert_eq!(write(&one, b"de"), Ok(2));
        assert_eq!((read(&other, &mut room), &room[..2]), (Ok(2), &b"de"[..]));

        assert!(!file_flags(&one).expect("flags").contains(OFlags::NONBLOCK));
        one.set_nonblocking(true).expect("a flag");
        assert_eq!(file_flags(&one), rustix::fs::fcntl_getfl(&one));

        assert_eq!(socket_timeout(&one, Timeout::Send), Ok(None));
        let time = Some(Duration::from_millis(1_500));
        sockopt::set_socket_timeout(&one, Timeout::Send, time).expect("an option");
        assert_eq!(socket_timeout(&one, Timeout::Send), Ok(time));
        assert_eq!(socket_timeout(&one, Timeout::Recv), Ok(None));
        assert_eq!(socket_cookie(&one), sockopt::socket_cookie(&one));
    }

    #[test]
    fn reading_at_an_offset_does_not_move_the_file_offset() {
        let file = rustix::fs::memfd_create("calls", MemfdFlags::CLOEXEC).expect("a file");
        assert_eq!(write(&file, b"abcdef"), Ok(6));
        assert_eq!(type_and_size(&file), Ok((FileType::RegularFile, 6)));
        let mut room = [0; 8];
        assert_eq!((read_at(&file, &mut room, 2), &room[..4]), (Ok(4), &b"cdef"[..]));
        assert_eq!(read_at(&file, &mut room, 6), Ok(0));
        assert_eq!(seek(&file, 0, libc::SEEK_CUR), Ok(6), "reading at a place moves nothing");
        assert_eq!(seek(&file, 1, libc::SEEK_SET), Ok(1));
        assert_eq!((read(&file, &mut room), &room[..5]), (Ok(5), &b"bcdef"[..]));

        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(type_and_size(&pipe), Ok((FileType::Fifo, 0)));
        assert_eq!(read_at(&pipe, &mut room, 0), Err(Errno::SPIPE));
        assert_eq!(seek(&pipe, 0, libc::SEEK_CUR), Err(Errno::SPIPE));
    }

    #[test]
    fn options_of_tcp_are_set_and_read() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        for on in [true, false] {
            assert_eq!(set_tcp_nodelay(&socket, on), Ok(()));
            assert_eq!((tcp_nodelay(&socket), sockopt::tcp_nodelay(&socket)), (Ok(on), Ok(on)));
            assert_eq!(set_tcp_cork(&socket, on), Ok(()));
            assert_eq!((tcp_cork(&socket), sockopt::tcp_cork(&socket)), (Ok(on), Ok(on)));
        }
        let (other, _) = UnixStream::pair().expect("a pair");
        assert!(tcp_cork(&other).is_err());
    }

    #[test]
    fn futex_sleeps_while_its_word_has_the_value() {
        let word = AtomicU32::new(1);
        let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for sharing in [Sharing::Processes, Sharing::Threads] {
            assert_eq!(futex_wait(&word, sharing, 2, None), Err(Errno::AGAIN));
            assert_eq!(futex_wait(&word, sharing, 1, Some(&soon)), Err(Errno::TIMEDOUT));
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    while word.load(Ordering::SeqCst) == 1 {
                        let _ = futex_wait(&word, sharing, 1, None);
                    }
                });
                word.store(3, Ordering::SeqCst);
                futex_wake(&word, sharing, u32::MAX);
                sleeper.join().expect("it wakes");
                word.store(1, Ordering::SeqCst);
            });
        }
    }
}
