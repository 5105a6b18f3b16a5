//! What carries a socket that is watched: the kernel's own function, falling back to it, and what
//! memory still holds.

use std::os::fd::{AsFd as _, RawFd};

use libc::{c_int, epoll_event};

use crate::datagram::Why;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::link::Link;
use crate::reason::Reason;
use crate::sockets::{Held, Kind};

/// `epoll_ctl(2)`, by the kernel.
pub(super) fn kernel_control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    event: Option<epoll_event>,
) -> c_int {
    Host::control(epoll, operation, fd, event)
}

/// Has a socket fall back to TCP: the kernel alone can wake all who watch it.
pub(super) fn leave(socket: &Held, fd: RawFd) {
    match &**socket {
        Kind::Stream(stream) => {
            if stream.link().is_none() && Host::is_listening(Descriptor::of(fd).as_fd()) {
                return; // It listens, and carries nothing.
            }
            stream.leave(fd, Reason::Watched);
            if let Some(end) = stream.link() {
                end.drain_wakeups(Descriptor::of(fd).as_fd()); // No wakeup is to be taken for data.
            }
        }
        Kind::Datagram(datagram) => datagram.leave(Why::Watched),
    }
}

/// The same, but what is unread in memory stays there: back in the kernel it would be an edge.
pub(super) fn leave_unread(socket: &Held, fd: RawFd) {
    if let Kind::Stream(stream) = &**socket {
        stream.leave_unread(fd, Reason::Watched);
    }
}

/// Whether something waits in memory now.
pub(super) fn holds_something(socket: &Held) -> bool {
    match &**socket {
        Kind::Stream(stream) => stream.link().is_some_and(|end| end.seen() > 0),
        Kind::Datagram(datagram) => datagram.known_inbox().is_some_and(|it| !it.is_empty()),
    }
}

/// Whether there is, or may come, something in memory that the kernel does not tell of.
pub(super) fn may_hold_something(socket: &Held) -> bool {
    match &**socket {
        Kind::Stream(stream) => match stream.link() {
            Some(Link::Local(end)) => !end.is_over(),
            Some(Link::Remote(_)) => true,
            None => !stream.is_tcp(),
        },
        Kind::Datagram(datagram) => {
            !datagram.is_off() || datagram.known_inbox().is_some_and(|inbox| !inbox.is_empty())
        }
    }
}
