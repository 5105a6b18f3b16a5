//! Connections go to TCP before a call that only the kernel can do.
//!
//! # Safety
//! Lists are the program's, as its calls guarantee.
#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, RawFd};

use super::rings::check_ring;
use crate::arguments::is_nowhere;
use crate::datagram::Why;
use crate::descriptor::Descriptor;
use crate::limits::AIO_BLOCKS_MAX;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{by_hand, errno, handover, identity, mode, open, seccomp_fallback};

/// Has a connection go on over TCP, and takes its wakeups from the kernel's socket. Returns whether
/// bytes that have come into memory are still unread there.
pub(crate) fn stream(stream: &Stream, fd: RawFd, why: Reason) -> bool {
    stream.leave(fd, why);
    stream.put_back_rest(fd);
    if let Some(end) = stream.link() {
        end.drain_wakeups(Descriptor::of(fd).as_fd());
    }
    stream.tell(fd);
    stream.link().is_some_and(|end| end.unread() > 0)
}

/// The same for what a descriptor stands for, if it is ours.
pub(crate) fn one(fd: RawFd, why: Reason) -> bool {
    let Some(held) = sockets::find(fd) else { return false };
    let before = errno::get();
    let is_unread = match &*held {
        Kind::Stream(it) => stream(it, fd, why),
        Kind::Datagram(datagram) => {
            datagram.leave(Why::Option);
            false
        }
    };
    errno::set_raw(before);
    is_unread
}

/// The same for all that this process has.
pub(crate) fn all() {
    if !mode::enabled() || identity::is_borrowed() {
        return;
    }
    for fd in sockets::all() {
        one(fd, Reason::ByHand);
    }
}

/// The program looks at another process, whose sockets it may take. Calls by hand are seen from
/// here on, that one, too.
pub(crate) fn looking_at_a_process() {
    if mode::enabled() && !identity::is_borrowed() {
        let before = errno::get();
        by_hand::begin();
        errno::set_raw(before);
    }
}

/// Whether a descriptor may be taken from another process. One that has given up system calls could
/// not ask whose socket it is, and would read beside the rings.
pub(crate) fn may_take() -> bool {
    !mode::may_not_call()
}

/// A socket has come from another process by a way that the other one does not see.
pub(crate) fn taken(fd: RawFd) {
    let is_on_weft = mode::enabled() || mode::is_in_fallback();
    if fd < 0 || !is_on_weft || identity::is_borrowed() {
        return;
    }
    let before = errno::get();
    open::forget(fd); // Closed behind our back.
    check_ring(fd);
    handover::take_over(fd);
    one(fd, Reason::PassedOn);
    if mode::is_in_fallback() {
        seccomp_fallback::release(fd);
    }
    errno::set_raw(before);
}

/// Where a control block of `io_submit(2)` has its descriptor (linux/aio_abi.h).
const FILDES_AT: usize = 20;

/// `io_submit(2)` is about to be made with these control blocks.
///
/// # Safety
/// The list is the program's.
pub(super) unsafe fn submitted(count: isize, blocks: *const *const u8) {
    if is_nowhere(blocks) {
        return;
    }
    for at in 0..usize::try_from(count).unwrap_or(0).min(AIO_BLOCKS_MAX) {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { blocks.add(at) };
        // SAFETY: guaranteed by the caller.
        let block = unsafe { place.read() };
        if is_nowhere(block) {
            return;
        }
        // SAFETY: within the program's control block.
        let place = unsafe { block.add(FILDES_AT) };
        // SAFETY: within the program's control block.
        one(unsafe { place.cast::<i32>().read_unaligned() }, Reason::ByHand);
    }
}
