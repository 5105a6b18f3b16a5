//! The transport of a watched socket: the kernel's `epoll_ctl`, falling back to TCP, and unread
//! data in memory.

use std::os::fd::{AsFd as _, RawFd};

use libc::{c_int, epoll_event};

use crate::datagram::DatagramReason;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::link::AnyEnd;
use crate::reason::Reason;
use crate::sockets::{Held, Kind};

/// Makes the kernel's `epoll_ctl(2)`.
pub(super) fn kernel_control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    event: Option<epoll_event>,
) -> c_int {
    Host::control(epoll, operation, fd, event)
}

/// Has a socket fall back to TCP, because only the kernel can wake all threads that wait for it.
pub(super) fn fall_back_to_tcp(socket: &Held, fd: RawFd) {
    match &**socket {
        Kind::Stream(stream) => {
            if stream.link().is_none() && Host::is_listening(Descriptor::of(fd).as_fd()) {
                return; // A listener carries no data.
            }
            stream.fall_back_to_tcp(fd, Reason::Watched);
            if let Some(end) = stream.link() {
                // A wakeup byte must not be reported as data.
                end.drain_wakeups(Descriptor::of(fd).as_fd());
            }
        }
        Kind::Datagram(datagram) => datagram.fall_back_to_udp(DatagramReason::Watched),
    }
}

/// Falls back like [`leave`], but keeps unread data in memory: moved to the kernel's socket it
/// would raise an edge.
pub(super) fn fall_back_unread(socket: &Held, fd: RawFd) {
    if let Kind::Stream(stream) = &**socket {
        stream.fall_back_unread(fd, Reason::Watched);
    }
}

/// Returns whether data waits in memory now.
pub(super) fn holds_something(socket: &Held) -> bool {
    match &**socket {
        Kind::Stream(stream) => stream.link().is_some_and(|end| end.seen() > 0),
        Kind::Datagram(datagram) => datagram.known_inbox().is_some_and(|it| !it.is_empty()),
    }
}

/// Returns whether memory has, or may get, data that the kernel does not report.
pub(super) fn may_hold_something(socket: &Held) -> bool {
    match &**socket {
        Kind::Stream(stream) => match stream.link() {
            Some(AnyEnd::Local(end)) => !end.is_over(),
            Some(AnyEnd::Remote(_)) => true,
            None => !stream.is_tcp(),
        },
        Kind::Datagram(datagram) => {
            !datagram.is_off() || datagram.known_inbox().is_some_and(|inbox| !inbox.is_empty())
        }
    }
}
