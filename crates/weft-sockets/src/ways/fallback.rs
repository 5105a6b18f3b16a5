//! Has connections fall back to TCP before a call that only the kernel can do.

use std::os::fd::{AsFd as _, RawFd};

use super::rings::check_ring;
use crate::datagram::DatagramReason;
use crate::descriptor::Descriptor;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{by_hand, errno, handover, identity, mode, open, seccomp_fallback};

/// Has a connection fall back to TCP, and drains its wakeups from the kernel's socket. Returns
/// whether unread bytes are left in memory.
pub(crate) fn stream(stream: &Stream, fd: RawFd, why: Reason) -> bool {
    if mode::may_not_call() {
        // It has fallen back, and returning bytes takes system calls.
        return stream.link().is_some_and(|end| end.unread() > 0);
    }
    stream.fall_back_to_tcp(fd, why);
    stream.put_back_rest(fd);
    if let Some(end) = stream.link() {
        end.drain_wakeups(Descriptor::of(fd).as_fd());
    }
    stream.log_carrier(fd);
    stream.link().is_some_and(|end| end.unread() > 0)
}

/// Has the socket of a descriptor fall back, if it is known.
pub(crate) fn one(fd: RawFd, why: Reason) -> bool {
    let Some(held) = sockets::find(fd) else { return false };
    let before = errno::get();
    let is_unread = match &*held {
        Kind::Stream(it) => stream(it, fd, why),
        Kind::Datagram(datagram) => {
            datagram.fall_back_to_udp(DatagramReason::Option);
            false
        }
    };
    errno::set_raw(before);
    is_unread
}

/// Has all sockets of this process fall back.
pub(crate) fn all() {
    if !mode::enabled() || identity::is_borrowed() {
        return;
    }
    for fd in sockets::all() {
        one(fd, Reason::ByHand);
    }
}

/// Has calls by hand seen from here on, because the program opens another process, whose sockets it
/// may take.
pub(crate) fn looking_at_a_process() {
    if mode::enabled() && !identity::is_borrowed() {
        let before = errno::get();
        by_hand::begin();
        errno::set_raw(before);
    }
}

/// Returns whether a descriptor may be taken from another process. A process that has given up
/// system calls could not ask whose socket it is, and would read past the rings.
pub(crate) fn may_take() -> bool {
    !mode::may_not_call()
}

/// Takes over a socket that was taken from another process without its knowledge.
pub(crate) fn taken(fd: RawFd) {
    let is_on_weft = mode::enabled() || mode::is_in_fallback();
    if fd < 0 || !is_on_weft || identity::is_borrowed() {
        return;
    }
    let before = errno::get();
    open::forget(fd); // An earlier file of this number was closed unseen.
    check_ring(fd);
    handover::take_over(fd);
    one(fd, Reason::PassedOn);
    if mode::is_in_fallback() {
        seccomp_fallback::release(fd);
    }
    errno::set_raw(before);
}
