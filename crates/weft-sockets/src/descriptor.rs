//! Asks the kernel about a descriptor of the program's.
//!
//! # Safety
//! A descriptor is borrowed for one call of the program, which has it open.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use weft_stream::Kernel as _;
use weft_sys::calls::event::{PollFlags, Timespec};
use weft_sys::calls::net::sockopt;

use crate::kernel::{Host, Kernel as _};

/// A descriptor of the program's, for the duration of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor(RawFd);

impl Descriptor {
    pub(crate) fn of(fd: RawFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the program has it open while it makes the call that this value is for. If
        // another thread closes it meanwhile, calls fail or reach the descriptor's new file, as
        // they would without Weft.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Returns a socket's own address.
pub(crate) fn own_address(fd: RawFd) -> Option<SocketAddr> {
    Host::own_address(Descriptor::of(fd).as_fd())
}

/// Returns both ends' addresses, if the socket is a connected IP socket.
pub(crate) fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
    Host::addresses(fd)
}

/// Returns whether a socket is an IPv4 or IPv6 socket.
pub(crate) fn is_internet(fd: RawFd) -> bool {
    use weft_sys::calls::net::AddressFamily;
    let domain = sockopt::socket_domain(Descriptor::of(fd));
    domain.is_ok_and(|domain| domain == AddressFamily::INET || domain == AddressFamily::INET6)
}

/// Returns whether a call on the socket must not block.
///
/// The kernel is asked each time: the flag belongs to the open file, and another process that
/// shares it may change it unseen. Only calls that would block ask.
pub(crate) fn is_nonblocking(fd: RawFd, flags: libc::c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || Host::is_nonblocking(Descriptor::of(fd).as_fd())
}

/// Returns whether calls on a socket have a time limit. Such calls are not restarted after a signal
/// (signal(7)).
pub(crate) fn has_time_limit(fd: RawFd, which: sockopt::Timeout) -> bool {
    Host::time_limit(Descriptor::of(fd).as_fd(), which).is_some()
}

/// Returns whether the kernel reports a hang-up of the socket.
pub(crate) fn is_hung_up(fd: RawFd) -> bool {
    Host::is_hung_up(Descriptor::of(fd).as_fd())
}

/// Returns whether a descriptor stays open across an exec.
pub(crate) fn stays_open(fd: RawFd) -> bool {
    Host::stays_open(Descriptor::of(fd).as_fd())
}

/// Returns which of these events a file has now, with errors and hang-ups; nothing if the kernel
/// does not say.
pub(crate) fn events_now(file: BorrowedFd<'_>, events: PollFlags) -> PollFlags {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Host::poll(file, events, Some(&now)).unwrap_or(PollFlags::empty())
}

/// Returns whether a descriptor has any of these events now, an error, or a hang-up.
pub(crate) fn is_ready(fd: RawFd, events: PollFlags) -> bool {
    !events_now(Descriptor::of(fd).as_fd(), events).is_empty()
}
