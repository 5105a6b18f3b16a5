//! Sockets that one process passes to another over a Unix socket (`SCM_RIGHTS`, unix(7)).
//!
//! # Safety
//! The program guarantees that headers are valid. The C library's macros walk their control data.
#![allow(unsafe_code)]

use libc::{c_int, cmsghdr, msghdr};
use weft_stream::inheritance;

use super::files::check_stream;
use crate::datagram::DatagramReason;
use crate::handover::{self, Own};
use crate::link::AnyEnd;
use crate::sockets::{self, Kind};
use crate::{epoll, identity, mode, open, ways};

/// Has the sockets in a message fall back to TCP before it is sent, because the receiving process
/// may not use rings. A receiver that does continues with their unread bytes ([`take`]).
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
                if let Some(remote) = stream.link().and_then(AnyEnd::remote) {
                    remote.retain();
                }
            }
            Kind::Datagram(datagram) => datagram.fall_back_to_udp(DatagramReason::PassedOn),
        }
    };
    // SAFETY: the caller guarantees a readable header with its control data.
    unsafe { for_each(message, leave) };
}

/// Takes over the sockets in a message that has been received. Table entries with their numbers are
/// stale: those descriptors were closed unseen.
///
/// # Safety
/// The header is the program's, and the kernel has just filled it in.
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
    // SAFETY: the kernel has just filled in the header and its control data.
    unsafe { for_each(message, take) };
}

/// Returns whether all of a message's control data is well-formed and passes `test`.
///
/// # Safety
/// The header and its control data are readable.
pub(super) unsafe fn all(message: *const msghdr, test: impl Fn(&cmsghdr) -> bool) -> bool {
    // SAFETY: the caller guarantees a readable header.
    let len = unsafe { message.read() }.msg_controllen;
    // SAFETY: the caller guarantees a readable header.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    let first = control as usize;
    while !control.is_null() {
        // SAFETY: the macro returns only headers inside the control data.
        let header = unsafe { control.read_unaligned() };
        let room = len - (control as usize - first);
        if !(size_of::<cmsghdr>()..=room).contains(&header.cmsg_len) || !test(&header) {
            return false;
        }
        // SAFETY: the header is inside the control data, and its length has been checked.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    true
}

/// # Safety
/// The header and its control data are readable.
unsafe fn for_each(message: *const msghdr, act: impl Fn(c_int)) {
    // SAFETY: the caller guarantees a readable header.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: the macro returns only headers inside the control data.
        let header = unsafe { control.read_unaligned() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: computes an address behind a header of the control data.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: computes a size from a constant.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: the header's length covers `count` descriptors.
                let place = unsafe { data.cast::<c_int>().add(index) };
                // SAFETY: the header's length covers `count` descriptors, read unaligned.
                act(unsafe { place.read_unaligned() });
            }
        }
        // SAFETY: the caller guarantees readable control data.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}
