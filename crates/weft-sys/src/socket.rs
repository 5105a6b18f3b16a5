//! Non-blocking operations on stream sockets.
//!
//! # Safety
//! Options that rustix lacks, or decodes incorrectly, are read into local variables.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;

/// Appends received bytes to `buffer`, up to its capacity. Returns the number of bytes; 0 at the
/// end of the stream.
///
/// # Errors
/// `EAGAIN` if nothing is there; `ECONNRESET` or a similar error if the connection has died.
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    debug_assert!(buffer.len() < buffer.capacity(), "a full buffer would read as end of stream");
    rustix::net::recv(socket, spare_capacity(buffer), RecvFlags::DONTWAIT).map(|(n, _)| n)
}

/// Sends bytes, and returns how many the socket took.
///
/// # Errors
/// `EAGAIN` if it takes none; `EPIPE`, `ECONNRESET` or a similar error if the connection has died.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The credentials of the peer of a Unix socket: its process, or `None` if that is outside of this
/// PID namespace, and its user.
///
/// # Errors
/// An error of `getsockopt(2)`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(Option<Pid>, u32), Errno> {
    let mut value = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are local variables, and `len` is the size of `value`.
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

/// The largest segment, in bytes, that a TCP connection sends at present (`TCP_MAXSEG`).
///
/// # Errors
/// An error of `getsockopt(2)`.
pub fn tcp_maxseg(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are local variables, and `len` is the size of `value`.
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

/// Number of bytes of a TCP connection that the peer's host has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// An error of `ioctl(2)`.
pub fn tcp_unacknowledged(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut value: libc::c_int = 0;
    // SAFETY: the request writes an int, and `value` is one that lives during the call.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) };
    if code != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    usize::try_from(value).map_err(|_| Errno::IO)
}

/// The network namespace of a socket (`SO_NETNS_COOKIE`); 0 before Linux 5.14, which reports none.
#[must_use]
pub fn network_namespace(socket: impl AsFd) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut value = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: `value` and `len` are local variables, and `len` is the size of `value`.
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
