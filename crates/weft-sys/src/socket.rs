//! Non-blocking operations on stream sockets.
//!
//! # Safety
//! Options that rustix lacks, or decodes incorrectly, are read into local variables.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::calls::io::Errno;
use crate::calls::net::SendFlags;
use crate::calls::process::Pid;
use crate::calls::{call, option_of, send_bytes};

/// Appends received bytes to `buffer`, up to its capacity. Returns the number of bytes; 0 at the
/// end of the stream.
///
/// # Errors
/// `EAGAIN` if nothing is there; `ECONNRESET` or a similar error if the connection has died.
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    debug_assert!(buffer.len() < buffer.capacity(), "a full buffer would read as end of stream");
    let (fd, old, room) = (socket.as_raw_fd() as usize, buffer.len(), buffer.spare_capacity_mut());
    let (place, len) = (room.as_mut_ptr() as usize, room.len());
    let flags = libc::MSG_DONTWAIT as usize;
    // SAFETY: the kernel writes at most `len` bytes to the buffer's spare room, which lives during
    // the call.
    let received = unsafe { call(libc::SYS_recvfrom, [fd, place, len, flags, 0, 0]) }?;
    // SAFETY: the kernel has written that many bytes behind the old ones: at most `len`, because
    // MSG_TRUNC is not set.
    unsafe { buffer.set_len(old + received) };
    Ok(received)
}

/// Sends bytes, and returns how many the socket took.
///
/// # Errors
/// `EAGAIN` if it takes none; `EPIPE`, `ECONNRESET` or a similar error if the connection has died.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    send_bytes(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The credentials of the peer of a Unix socket: its process, or `None` if that is outside of this
/// PID namespace, and its user.
///
/// # Errors
/// An error of `getsockopt(2)`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(Option<Pid>, u32), Errno> {
    let value: [u32; 3] = option_of(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    let [pid, user, _] = value; // `struct ucred`
    Ok((Pid::from_raw(pid.cast_signed()), user))
}

/// The largest segment, in bytes, that a TCP connection sends at present (`TCP_MAXSEG`).
///
/// # Errors
/// An error of `getsockopt(2)`.
pub fn tcp_maxseg(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    let value: libc::c_int = option_of(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
    usize::try_from(value).map_err(|_| Errno::IO)
}

/// The network namespace of a socket (`SO_NETNS_COOKIE`); 0 before Linux 5.14, which reports none.
#[must_use]
pub fn network_namespace(socket: impl AsFd) -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    option_of(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0)
}
