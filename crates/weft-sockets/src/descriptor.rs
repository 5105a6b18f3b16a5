//! What the kernel says of a descriptor of the program's.
//!
//! # Safety
//! Descriptors are borrowed for one call, from the program, which has them open; addresses are read
//! into local variables.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use rustix::net::sockopt;
use weft_stream::{Kernel, Linux};
use weft_sys::calls::{file_flags, socket_timeout};

use crate::{address, errno};

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
    rustix::net::getsockname(Descriptor::of(fd)).ok()?.try_into().ok()
}

/// Both ends' addresses, of an IP socket that is connected.
pub(crate) fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: it writes an address.
    let own = unsafe { named(fd, libc::getsockname) }?;
    // SAFETY: it writes an address.
    Some((own, unsafe { named(fd, libc::getpeername) }?))
}

type Name = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

/// An address of a socket, as a function of the C library's tells it.
///
/// # Safety
/// The function writes an address, and how long it is.
unsafe fn named(fd: RawFd, function: Name) -> Option<SocketAddr> {
    // SAFETY: a structure of integers, for which zero is valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&name) as libc::socklen_t;
    let place: *mut libc::sockaddr = (&raw mut name).cast();
    let before = errno::get();
    // SAFETY: the places are local variables, and `len` says how long the first is.
    if unsafe { function(fd, place, &raw mut len) } != 0 {
        errno::set_raw(before);
        return None;
    }
    // SAFETY: so many bytes have been written.
    unsafe { address::read(place, len) }
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
    flags & libc::MSG_DONTWAIT != 0
        || file_flags(Descriptor::of(fd).as_fd())
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Whether calls on a socket have a time limit, with which none is made again (signal(7)).
pub(crate) fn has_time_limit(fd: RawFd, which: sockopt::Timeout) -> bool {
    matches!(socket_timeout(Descriptor::of(fd).as_fd(), which), Ok(Some(_)))
}

/// Whether the kernel has seen the peer go for good.
pub(crate) fn is_hung_up(fd: RawFd) -> bool {
    Linux::is_hung_up(Descriptor::of(fd).as_fd())
}

/// Whether a descriptor stays open when the process becomes another program.
pub(crate) fn stays_open(fd: RawFd) -> bool {
    Linux::stays_open(Descriptor::of(fd).as_fd())
}
