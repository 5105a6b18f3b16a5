//! Descriptors of ours, whatever they stand for: sockets and epoll instances.

use std::os::fd::RawFd;

use crate::epoll;
use crate::sockets::{self, Kind};

/// Whether `fd` is ours.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    sockets::knows(fd) || epoll::knows(fd)
}

/// `fd`, just opened, is a socket of ours.
pub(crate) fn install(fd: RawFd, kind: Kind) {
    epoll::forget_number(fd);
    sockets::install(fd, kind);
}

/// `fd` stands for something new. What we knew of it was closed behind our back.
pub(crate) fn forget(fd: RawFd) {
    epoll::forget_number(fd);
    drop(sockets::remove(fd));
}

/// Every descriptor of ours in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    sockets::within(first, last).chain(epoll::within(first, last))
}
