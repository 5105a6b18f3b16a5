//! The system calls of the data path, as rustix has them, but made where `system_call` makes
//! them: where the kernel reports calls made by hand, one of rustix' costs a signal.
//!
//! # Safety
//! Each call gets the addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::futex::Wait;
use rustix::time::Timespec;

/// Without `errno`: the program's call may succeed in the end.
///
/// # Safety
/// As for `system_call`.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { crate::by_hand::raw_system_call(number, arguments) };
    if (-4095..0).contains(&result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result.cast_unsigned())
}

/// # Safety
/// As for `system_call`.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { crate::by_hand::system_call(number, arguments) };
    usize::try_from(result).map_err(|_| {
        let code = std::io::Error::last_os_error().raw_os_error();
        code.map_or(Errno::IO, Errno::from_raw_os_error)
    })
}

fn address<T>(place: Option<&T>) -> usize {
    place.map_or(0, |place| ptr::from_ref(place) as usize)
}

/// Whether all that sleep on a word are threads of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They may be other processes', too.
    Processes,
    /// They are.
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

/// Sleeps while a word is `value`, until woken, for `time` at most.
///
/// # Errors
/// `EAGAIN`: it is another; `ETIMEDOUT`; `EINTR`.
pub fn futex_wait(
    word: &AtomicU32,
    sharing: Sharing,
    value: u32,
    time: Option<&Timespec>,
) -> Result<(), Errno> {
    let operation = libc::FUTEX_WAIT as usize | sharing.flag();
    let arguments = [word.as_ptr() as usize, operation, value as usize, address(time), 0, 0];
    // SAFETY: a word that lives, and NULL or a time.
    unsafe { call(libc::SYS_futex, arguments) }.map(drop)
}

/// Wakes at most so many that sleep on a word.
pub fn futex_wake(word: &AtomicU32, sharing: Sharing, most: u32) {
    let operation = libc::FUTEX_WAKE as usize | sharing.flag();
    let most = most.min(i32::MAX.cast_unsigned()) as usize;
    let arguments = [word.as_ptr() as usize, operation, most, 0, 0, 0];
    // SAFETY: a word that lives. There is nobody to tell of an error.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// Sleeps on several words up to a time of the monotonic clock.
///
/// # Errors
/// As for [`futex_wait`], and `ENOSYS` before Linux 5.16.
pub fn futex_wait_any(waits: &[Wait], until: &Timespec) -> Result<(), Errno> {
    let clock = libc::CLOCK_MONOTONIC as usize;
    let arguments =
        [waits.as_ptr() as usize, waits.len(), 0, ptr::from_ref(until) as usize, clock, 0];
    // SAFETY: a list of as many, whose words the caller has got from references.
    unsafe { call(libc::SYS_futex_waitv, arguments) }.map(drop)
}

/// Offers the core to others.
pub fn sched_yield() {
    // SAFETY: it takes no memory. It does not fail.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Waits for readiness (`ppoll(2)`), and returns how many are ready.
///
/// # Errors
/// What the kernel says, `EINTR` among that.
pub fn poll(set: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
    let mut time = timeout.copied(); // The kernel writes what is left to it.
    let time = time.as_mut().map_or(0, |time| ptr::from_mut(time) as usize);
    // SAFETY: a list of as many, as the kernel has it, and NULL or a time.
    unsafe { call(libc::SYS_ppoll, [set.as_mut_ptr() as usize, set.len(), time, 0, 0, 0]) }
}

/// Which of these events a file has now, and whether it has an error or has hung up; nothing where
/// the kernel does not say.
pub fn events_now(file: impl AsFd, events: PollFlags) -> PollFlags {
    let mut set = [PollFd::from_borrowed_fd(file.as_fd(), events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = poll(&mut set, Some(&now));
    asked.map_or(PollFlags::empty(), |_| set[0].revents())
}

/// Whether a file has any of these events now, an error, or has hung up.
pub fn is_ready(file: impl AsFd, events: PollFlags) -> bool {
    !events_now(file, events).is_empty()
}

/// What an epoll instance has to report now (`epoll_pwait(2)`), and how many events that are.
///
/// # Errors
/// What the kernel says.
pub fn take_events(epoll: impl AsFd, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
    let arguments = [number(epoll), events.as_mut_ptr() as usize, events.len(), 0, 0, 0];
    // SAFETY: a list of as many.
    unsafe { call(libc::SYS_epoll_pwait, arguments) }
}

/// Receives from a socket.
///
/// # Errors
/// What the kernel says.
pub fn recv_bytes(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    let (fd, flags) = (number(socket), flags.bits() as usize);
    // SAFETY: a buffer of that length.
    let received = unsafe {
        call(libc::SYS_recvfrom, [fd, bytes.as_mut_ptr() as usize, bytes.len(), flags, 0, 0])
    };
    received.map(|received| received.min(bytes.len())) // MSG_TRUNC
}

/// Sends over a socket.
///
/// # Errors
/// What the kernel says.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    let (fd, flags) = (number(socket), flags.bits() as usize);
    // SAFETY: a buffer of that length.
    unsafe { call(libc::SYS_sendto, [fd, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) }
}

/// Reads from a file.
///
/// # Errors
/// What the kernel says.
pub fn read(file: impl AsFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [number(file), bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: a buffer of that length.
    unsafe { call(libc::SYS_read, arguments) }
}

/// Writes to a file.
///
/// # Errors
/// What the kernel says.
pub fn write(file: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let arguments = [number(file), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: a buffer of that length.
    unsafe { call(libc::SYS_write, arguments) }
}

/// Reads from a place of a file (`pread(2)`).
///
/// # Errors
/// What the kernel says.
pub fn read_at(file: impl AsFd, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    let arguments = [number(file), bytes.as_mut_ptr() as usize, bytes.len(), at as usize, 0, 0];
    // SAFETY: a buffer of that length.
    unsafe { call(libc::SYS_pread64, arguments) }
}

/// Moves the offset of an open file (`lseek(2)`), and returns where it is now.
///
/// # Errors
/// What the kernel says.
pub fn seek(file: impl AsFd, offset: u64, whence: libc::c_int) -> Result<u64, Errno> {
    let arguments = [number(file), offset as usize, whence as usize, 0, 0, 0];
    // SAFETY: it takes no memory.
    unsafe { call(libc::SYS_lseek, arguments) }.map(|at| at as u64)
}

/// The type and the size of a file (`fstat(2)`).
///
/// # Errors
/// What the kernel says.
pub fn type_and_size(file: impl AsFd) -> Result<(FileType, u64), Errno> {
    let mut state = MaybeUninit::<libc::stat>::uninit();
    let arguments = [number(file), state.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: a place for what the kernel writes: the C library has the kernel's structure.
    unsafe { call(libc::SYS_fstat, arguments) }?;
    // SAFETY: the call has succeeded, so the kernel has written it.
    let state = unsafe { state.assume_init() };
    Ok((FileType::from_raw_mode(state.st_mode), u64::try_from(state.st_size).unwrap_or(0)))
}

/// The flags of an open file (`F_GETFL`).
///
/// # Errors
/// What the kernel says.
pub fn file_flags(file: impl AsFd) -> Result<OFlags, Errno> {
    // SAFETY: it takes no memory.
    let flags =
        unsafe { call(libc::SYS_fcntl, [number(file), libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.map(|flags| OFlags::from_bits_retain(flags as u32))
}

/// For how long a call on a socket waits (`SO_RCVTIMEO`, `SO_SNDTIMEO`); `None` for ever.
///
/// # Errors
/// What the kernel says.
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
/// What the kernel says.
pub fn socket_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    option_of(socket, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// An option of sockets (`SOL_SOCKET`) that is an integer.
///
/// # Errors
/// What the kernel says.
pub fn socket_option(socket: impl AsFd, option: libc::c_int) -> Result<libc::c_int, Errno> {
    option_of(socket, libc::SOL_SOCKET, option)
}

/// Whether bytes wait for others to go with them (`TCP_CORK`).
///
/// # Errors
/// What the kernel says.
pub fn tcp_cork(socket: impl AsFd) -> Result<bool, Errno> {
    option_of::<libc::c_int>(socket, libc::IPPROTO_TCP, libc::TCP_CORK).map(|on| on != 0)
}

/// Whether the next byte of a TCP socket is the urgent one (`sockatmark(3)`).
pub fn is_at_mark(socket: impl AsFd) -> bool {
    /// Of linux/sockios.h.
    const SIOCATMARK: usize = 0x8905;
    let mut answer: libc::c_int = 0;
    let arguments = [number(socket), SIOCATMARK, (&raw mut answer) as usize, 0, 0, 0];
    // SAFETY: the place for the answer is a local variable.
    let result = unsafe { call(libc::SYS_ioctl, arguments) };
    result.is_ok() && answer != 0
}

/// Whether bytes go at once (`TCP_NODELAY`).
///
/// # Errors
/// What the kernel says.
pub fn tcp_nodelay(socket: impl AsFd) -> Result<bool, Errno> {
    option_of::<libc::c_int>(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY).map(|on| on != 0)
}

/// Whether the kernel expects a TCP socket's peer to send more (`TCP_INFO`).
///
/// # Errors
/// What the kernel says.
pub fn is_tcp_open(socket: impl AsFd) -> Result<bool, Errno> {
    const OPEN: [u8; 3] = [1, 4, 5]; // TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2
    let info = option_of::<[u8; 8]>(socket, libc::IPPROTO_TCP, libc::TCP_INFO);
    info.map(|[state, ..]| OPEN.contains(&state))
}

/// Bytes that a TCP socket has received since it was connected (`TCP_INFO`).
///
/// # Errors
/// What the kernel says.
pub fn tcp_received(socket: impl AsFd) -> Result<u64, Errno> {
    const WORDS: usize = 17;
    // `tcpi_bytes_received` is the last of so many.
    let info = option_of::<[u64; WORDS]>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(info[WORDS - 1])
}

/// Bytes that a TCP socket has sent and that its peer's host has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// What the kernel says.
pub fn tcp_outstanding(socket: impl AsFd) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    let place = &raw mut bytes as usize;
    let fd = socket.as_fd().as_raw_fd() as usize;
    // SAFETY: this request writes an int, for which `bytes` is the place.
    unsafe { call(libc::SYS_ioctl, [fd, libc::TIOCOUTQ as usize, place, 0, 0, 0]) }?;
    usize::try_from(bytes).map_err(|_| Errno::INVAL)
}

/// Sets `TCP_CORK`.
///
/// # Errors
/// What the kernel says.
pub fn set_tcp_cork(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_CORK, on.into())
}

/// Sets `TCP_NODELAY`.
///
/// # Errors
/// What the kernel says.
pub fn set_tcp_nodelay(socket: impl AsFd, on: bool) -> Result<(), Errno> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, on.into())
}

/// An option whose value is as long as `T`, of integers.
fn option_of<T: Default>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> Result<T, Errno> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let (level, option, place) = (level as usize, option as usize, &raw mut value);
    let arguments = [number(socket), level, option, place as usize, &raw mut len as usize, 0];
    // SAFETY: both places are local variables, and `len` says how long the first is.
    unsafe { call(libc::SYS_getsockopt, arguments) }.map(|_| value)
}

fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    let (level, option, place) = (level as usize, option as usize, &raw const value);
    let arguments = [number(socket), level, option, place as usize, size_of_val(&value), 0];
    // SAFETY: a local variable of that length.
    unsafe { call(libc::SYS_setsockopt, arguments) }.map(drop)
}

fn number(fd: impl AsFd) -> usize {
    fd.as_fd().as_raw_fd() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use rustix::net::sockopt;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    #[test]
    fn calls_do_what_those_of_rustix_do() {
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
    fn files_are_read_where_they_are_to_be() {
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
    fn a_futex_sleeps_while_its_word_is_the_value() {
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
