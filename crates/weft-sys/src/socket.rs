//! Stream sockets without blocking.
//!
//! # Safety
//! Options that rustix lacks, or misreads, are read into local variables.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;

/// Appends to `buffer` what the socket holds, at most up to its capacity. Returns the number of
/// bytes, 0 at the end of the stream.
///
/// # Errors
/// `EAGAIN` when nothing is there; `ECONNRESET` and the like when the connection has died.
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    debug_assert!(buffer.len() < buffer.capacity(), "a full buffer would read as end of stream");
    rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::DONTWAIT).map(|(n, _)| n)
}

/// Hands bytes to the socket and returns how many it took.
///
/// # Errors
/// `EAGAIN` when it takes none; `EPIPE`, `ECONNRESET` and the like when the connection has died.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Who is at the other end of a Unix socket: the process, `None` when it is outside of our PID
/// namespace, and the user.
///
/// # Errors
/// What `getsockopt(2)` reports.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(Option<Pid>, u32), Errno> {
    let mut value = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are valid for writing, and `len` says how large `value` is.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if code != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok((Pid::from_raw(value.pid), value.uid))
}

/// The largest segment that a TCP connection sends now, in bytes (`TCP_MAXSEG`).
///
/// # Errors
/// What `getsockopt(2)` reports.
pub fn tcp_maxseg(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are valid for writing, and `len` says how large `value` is.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if code != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    usize::try_from(value).map_err(|_| Errno::IO)
}

/// How many bytes of a TCP connection its peer's host has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// What `ioctl(2)` reports.
pub fn tcp_unacknowledged(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut value: libc::c_int = 0;
    // SAFETY: this request writes an int, for which `value` is the place.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) };
    if code != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    usize::try_from(value).map_err(|_| Errno::IO)
}

/// The kernel's number for the network namespace of a socket (`SO_NETNS_COOKIE`); 0 before Linux
/// 5.14, which tells none.
#[must_use]
pub fn network_namespace(socket: impl AsFd) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut value = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are valid for writing, and `len` says how large `value` is.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if code == 0 { value } else { 0 }
}
