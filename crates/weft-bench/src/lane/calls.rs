//! Socket calls of the C library, as an efficient program makes them.
//!
//! # Safety
//! The C library gets borrowed descriptors, and memory with its length that is borrowed during the
//! call.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

/// Sends with `send(2)` and `MSG_NOSIGNAL`, without blocking unless it may, and returns the number
/// of bytes.
///
/// # Errors
/// The error of the system call.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], may_block: bool) -> Result<usize, Errno> {
    let fd = socket.as_fd().as_raw_fd();
    let flags = libc::MSG_NOSIGNAL | flags_of(may_block);
    // SAFETY: the bytes are readable for the call.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| last_error())
}

/// Receives with `recv(2)`, without blocking unless it may, and returns the number of bytes.
///
/// # Errors
/// The error of the system call.
pub(super) fn recv(socket: impl AsFd, bytes: &mut [u8], may_block: bool) -> Result<usize, Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the bytes are writable for the call.
    let received =
        unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags_of(may_block)) };
    usize::try_from(received).map_err(|_| last_error())
}

fn flags_of(may_block: bool) -> libc::c_int {
    if may_block { 0 } else { libc::MSG_DONTWAIT }
}

/// Waits until one of the descriptors is ready (`poll(2)`).
///
/// # Errors
/// The error of the system call.
pub(super) fn poll(descriptors: &mut [libc::pollfd], timeout: Duration) -> Result<usize, Errno> {
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: the list is writable for the call.
    let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), count, milliseconds(timeout)) };
    usize::try_from(ready).map_err(|_| last_error())
}

/// An epoll instance whose entries are named by numbers.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an instance without entries.
    ///
    /// # Errors
    /// The error of the system call.
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: it takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the descriptor has just been created, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a descriptor for readability.
    ///
    /// # Errors
    /// The error of the system call.
    pub(super) fn add(&self, socket: impl AsFd, number: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: number };
        let (epoll, fd) = (self.0.as_raw_fd(), socket.as_fd().as_raw_fd());
        // SAFETY: the event is readable for the call.
        let done = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// Returns the numbers of the readable descriptors, at most `N`.
    ///
    /// # Errors
    /// The error of the system call.
    pub(super) fn wait<const N: usize>(
        &self,
        timeout: Duration,
    ) -> Result<impl Iterator<Item = u64> + use<N>, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
        let (epoll, count) = (self.0.as_raw_fd(), libc::c_int::try_from(N).unwrap_or(1));
        let timeout = milliseconds(timeout);
        // SAFETY: the list is writable for the call.
        let ready = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), count, timeout) };
        let ready = usize::try_from(ready).map_err(|_| last_error())?;
        Ok(events.into_iter().take(ready).map(|event| event.u64))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn milliseconds(time: Duration) -> libc::c_int {
    libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
