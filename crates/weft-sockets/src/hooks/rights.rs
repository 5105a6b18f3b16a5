//! Sockets that go from one process to another over a Unix socket (`SCM_RIGHTS`, unix(7)).
//!
//! # Safety
//! Headers are the program's, as its calls guarantee; their control data is walked by the C
//! library's macros.
#![allow(unsafe_code)]

use libc::{c_int, cmsghdr, msghdr};
use weft_stream::inheritance;

use super::files::check_stream;
use crate::datagram::Why;
use crate::handover::{self, Own};
use crate::link::Link;
use crate::sockets::{self, Kind};
use crate::{epoll, identity, mode, open, ways};

/// A message is about to be sent. Sockets in it go back to TCP: who gets them may not know the
/// rings. One that does takes from there what has not been read ([`take`]).
///
/// # Safety
/// The header is the program's.
pub(super) unsafe fn hand_on(message: *const msghdr) {
    if mode::is_in_fallback() {
        return;
    }
    let leave = |fd| {
        let Some(held) = sockets::find(fd) else { return epoll::hand_on(fd) };
        match &*held {
            Kind::Stream(stream) => {
                inheritance::pass_on(&Own, stream, fd);
                if let Some(remote) = stream.link().and_then(Link::remote) {
                    remote.retain();
                }
            }
            Kind::Datagram(datagram) => datagram.leave(Why::PassedOn),
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { for_each(message, leave) };
}

/// A message has been received. What we knew of the numbers of sockets in it is of others, which
/// were closed behind our back.
///
/// # Safety
/// The header is the program's, as the kernel has just filled it in.
pub(super) unsafe fn take(message: *const msghdr) {
    if mode::is_in_fallback() {
        return;
    }
    let take = |fd| {
        if identity::is_borrowed() {
            return;
        }
        open::forget(fd);
        ways::rings::check_ring(fd);
        handover::take_over(fd);
        check_stream(fd);
    };
    // SAFETY: guaranteed by the caller.
    unsafe { for_each(message, take) };
}

/// Whether all of a message's control data is sound, and as `test` says.
///
/// # Safety
/// The header and its control data are readable.
pub(super) unsafe fn all(message: *const msghdr, test: impl Fn(&cmsghdr) -> bool) -> bool {
    // SAFETY: guaranteed by the caller.
    let len = unsafe { message.read() }.msg_controllen;
    // SAFETY: guaranteed by the caller.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    let first = control as usize;
    while !control.is_null() {
        // SAFETY: within the control data, as the macro has found it.
        let header = unsafe { control.read_unaligned() };
        let room = len - (control as usize - first);
        if !(size_of::<cmsghdr>()..=room).contains(&header.cmsg_len) || !test(&header) {
            return false;
        }
        // SAFETY: guaranteed by the caller.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    true
}

/// # Safety
/// The header and its control data are readable.
unsafe fn for_each(message: *const msghdr, act: impl Fn(c_int)) {
    // SAFETY: guaranteed by the caller.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: within the control data, as the macro has found it.
        let header = unsafe { control.read_unaligned() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: the data of a header within the control data.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: the size of a header without data.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: the header says how many there are.
                let place = unsafe { data.cast::<c_int>().add(index) };
                // SAFETY: the header says how many there are; they need not be aligned.
                act(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: guaranteed by the caller.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}
