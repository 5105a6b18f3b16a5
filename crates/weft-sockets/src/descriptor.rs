//! What the kernel says of a descriptor of the program's.
//!
//! # Safety
//! Descriptors are borrowed for one call, from the program, which has them open.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use rustix::event::{PollFlags, Timespec};
use rustix::net::sockopt;
use weft_stream::Kernel as _;

use crate::kernel::{Host, Kernel as _};

/// A descriptor of the program's, for one call: what borrows it lives no longer than this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor(RawFd);

impl Descriptor {
    pub(crate) fn of(fd: RawFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the program has it open while it makes the call that this value is for; if it
        // closes it meanwhile, calls fail or reach what it has opened instead, as they would
        // without us.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// A socket's own address.
pub(crate) fn own_address(fd: RawFd) -> Option<SocketAddr> {
    Host::own_address(Descriptor::of(fd).as_fd())
}

/// Both ends' addresses, of an IP socket that is connected.
pub(crate) fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
    Host::addresses(fd)
}

/// Whether a socket is of IPv4 or IPv6.
pub(crate) fn is_internet(fd: RawFd) -> bool {
    use rustix::net::AddressFamily;
    let domain = sockopt::socket_domain(Descriptor::of(fd));
    domain.is_ok_and(|domain| domain == AddressFamily::INET || domain == AddressFamily::INET6)
}

/// Whether a call on the socket returns at once.
///
/// The kernel is asked each time: the flag is of the open file, which other processes may have by
/// ways that nobody sees, and change. Only calls that have found nothing ask.
pub(crate) fn is_nonblocking(fd: RawFd, flags: libc::c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || Host::is_nonblocking(Descriptor::of(fd).as_fd())
}

/// Whether calls on a socket have a time limit, with which none is made again (signal(7)).
pub(crate) fn has_time_limit(fd: RawFd, which: sockopt::Timeout) -> bool {
    Host::time_limit(Descriptor::of(fd).as_fd(), which).is_some()
}

/// Whether the kernel has seen the peer go for good.
pub(crate) fn is_hung_up(fd: RawFd) -> bool {
    Host::is_hung_up(Descriptor::of(fd).as_fd())
}

/// Whether a descriptor stays open when the process becomes another program.
pub(crate) fn stays_open(fd: RawFd) -> bool {
    Host::stays_open(Descriptor::of(fd).as_fd())
}

/// Which of these events a file has now, and whether it has an error or has hung up; nothing where
/// the kernel does not say.
pub(crate) fn events_now(file: BorrowedFd<'_>, events: PollFlags) -> PollFlags {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Host::poll(file, events, Some(&now)).unwrap_or(PollFlags::empty())
}

/// Whether a descriptor has any of these events now, an error, or has hung up.
pub(crate) fn is_ready(fd: RawFd, events: PollFlags) -> bool {
    !events_now(Descriptor::of(fd).as_fd(), events).is_empty()
}
