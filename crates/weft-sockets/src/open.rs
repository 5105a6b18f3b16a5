//! Known descriptors of any kind: sockets and epoll instances.

use std::os::fd::RawFd;

use crate::epoll;
use crate::sockets::{self, Kind};

/// Returns whether `fd` is known.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    sockets::knows(fd) || epoll::knows(fd)
}

/// Records that `fd`, just opened, is a socket that Weft may carry.
pub(crate) fn install(fd: RawFd, kind: Kind) {
    epoll::forget_number(fd);
    sockets::install(fd, kind);
}

/// Forgets `fd`, which stands for a new file: the earlier one was closed unseen.
pub(crate) fn forget(fd: RawFd) {
    epoll::forget_number(fd);
    drop(sockets::remove(fd));
}

/// Returns every known descriptor in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    sockets::within(first, last).chain(epoll::within(first, last))
}
