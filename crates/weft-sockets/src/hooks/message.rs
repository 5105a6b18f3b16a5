//! Hooks of `sendmsg(2)`, `recvmsg(2)`, `sendmmsg(2)` and `recvmmsg(2)`.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. The program guarantees that headers and buffers are valid.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use weft_sys::test_cancel;

use super::data::{Taken, deliver, deliver_datagram, length, receive, take_datagram};
use super::rights;
use crate::arguments::is_nowhere;
use crate::datagram::Received;
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::ways::fallback;
use crate::{address, errno};

/// Returns whether a TCP socket ignores a message's control data. If it does not (a time stamp, for
/// example), or if the data is malformed, only the kernel can handle it: the connection falls back
/// to TCP first.
///
/// # Safety
/// The header is the program's.
unsafe fn is_carried(fd: c_int, message: *const msghdr) -> bool {
    // SAFETY: the caller guarantees a readable header.
    let header = unsafe { message.read() };
    if header.msg_controllen == 0 {
        return true;
    }
    let Some(held) = sockets::find(fd) else { return false };
    let Kind::Stream(stream) = &*held else { return false };
    // SAFETY: the caller guarantees a readable header, and its control data is at a possible
    // address.
    let is_ignored = !is_nowhere(header.msg_control) && unsafe { rights::all(message, is_ignored) };
    if !is_ignored {
        fallback::stream(stream, fd, Reason::Option);
    }
    is_ignored
}

/// Returns whether TCP accepts and ignores a control message (`__sock_cmsg_send`).
fn is_ignored(header: &libc::cmsghdr) -> bool {
    header.cmsg_level != libc::SOL_SOCKET
        || matches!(header.cmsg_type, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS)
}

/// Returns whether the kernel refuses a message before it looks at the socket, because its address
/// has a negative length.
///
/// # Safety
/// The header is readable.
unsafe fn has_bad_name(message: *const msghdr) -> bool {
    // SAFETY: the caller guarantees a readable header.
    let header = unsafe { message.read() };
    !header.msg_name.is_null() && c_int::try_from(header.msg_namelen).is_err()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    test_cancel();
    if !is_nowhere(message)
        && sockets::knows(fd)
        // SAFETY: the program's own header.
        && !unsafe { has_bad_name(message) }
    {
        // SAFETY: the program's own header.
        let header = unsafe { message.read() };
        // SAFETY: the program's own header.
        if unsafe { is_carried(fd, message) } {
            // SAFETY: the program's own list.
            let ours = unsafe { deliver(fd, header.msg_iov, header.msg_iovlen, flags) };
            let ours = ours.or_else(|| {
                let to = (header.msg_name.cast_const().cast(), header.msg_namelen);
                // SAFETY: the program's own list, and the program's own address.
                unsafe { deliver_datagram(fd, header.msg_iov, header.msg_iovlen, flags, to) }
            });
            if let Some(sent) = ours {
                return sent;
            }
        }
    } else if !is_nowhere(message) {
        // SAFETY: the program's own header.
        unsafe { rights::hand_on(message) };
    }
    next!(sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    test_cancel();
    if !is_nowhere(message)
        && sockets::knows(fd)
        // SAFETY: the program's own header.
        && !unsafe { has_bad_name(message) }
    {
        // SAFETY: the program's own header.
        let header = unsafe { &mut *message };
        let (list, count) = (header.msg_iov, header.msg_iovlen);
        let mut kernel =
            |flags| next!(recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t);
        // SAFETY: the program's own list.
        let taken = unsafe { take_datagram(fd, list, count, flags, &mut kernel) };
        match taken {
            Some(Taken { from: Received::Kernel(received), .. }) => return received,
            Some(Taken { from: Received::Memory(arrival), is_v6 }) => {
                if !header.msg_name.is_null() {
                    let (place, room) = (header.msg_name.cast(), header.msg_namelen);
                    // SAFETY: the program's own place.
                    header.msg_namelen =
                        unsafe { address::write(arrival.from, is_v6, place, room) };
                }
                header.msg_controllen = 0;
                let cut = if arrival.copied < arrival.len { libc::MSG_TRUNC } else { 0 };
                header.msg_flags = cut;
                return length(arrival, flags);
            }
            None => {}
        }
        // SAFETY: the program's own list.
        let ours = unsafe { receive(fd, header.msg_iov, header.msg_iovlen, flags) };
        if let Some(received) = ours {
            if received >= 0 {
                if !header.msg_name.is_null() {
                    header.msg_namelen = 0;
                }
                header.msg_controllen = 0;
                header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            }
            return received;
        }
    }
    let received = next!(recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t);
    if received >= 0 {
        // SAFETY: the kernel has just filled in the header.
        unsafe { rights::take(message) };
    }
    received
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !sockets::knows(fd) || is_nowhere(messages) {
        for at in (0..count as usize).take_while(|_| !is_nowhere(messages)) {
            // SAFETY: the program's own list of `count`.
            let message = unsafe { messages.add(at) };
            // SAFETY: the program's own list of `count`; a message begins with its header.
            unsafe { rights::hand_on(message.cast()) };
        }
        return next!(sendmmsg(
            fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int
        ) -> c_int);
    }
    let mut done = 0;
    while done < count.min(1024) {
        // SAFETY: the program's own list of `count`.
        let message = unsafe { messages.add(done as usize) };
        // SAFETY: the program's own list of `count`.
        let message = unsafe { &mut *message };
        // SAFETY: the program's own header.
        let sent = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        let Ok(sent) = c_uint::try_from(sent) else { break };
        message.msg_len = sent;
        done += 1;
    }
    if done == 0 && count > 0 { -1 } else { c_int::try_from(done).unwrap_or(c_int::MAX) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let is_wrong = !timeout.is_null()
        // SAFETY: not an impossible address, so the program passes a valid time.
        && (is_nowhere(timeout) || !super::ready::is_time(unsafe { &*timeout }));
    if !sockets::knows(fd) || is_nowhere(messages) || is_wrong {
        let received = next!(recvmmsg(
            fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
        ) -> c_int);
        for at in 0..usize::try_from(received).unwrap_or(0) {
            // SAFETY: the program's own list, and the kernel has filled in `received` entries.
            let message = unsafe { messages.add(at) };
            // SAFETY: the program's own list, and the kernel has filled in `received` entries; a
            // message begins with its header.
            unsafe { rights::take(message.cast()) };
        }
        return received;
    }
    let limit = if timeout.is_null() {
        None
    } else {
        // SAFETY: not NULL, so the program passes a valid time.
        let timeout = unsafe { timeout.read() };
        Some(crate::wait::now().saturating_add(super::ready::nanoseconds(timeout)))
    };
    let mut is_stream = false;
    if let Some(Kind::Stream(stream)) = sockets::find(fd).as_deref() {
        is_stream = true;
        // The kernel reports a pending error before it receives anything (do_recvmmsg).
        if flags & libc::MSG_ERRQUEUE == 0
            && let Some(error) = stream.pending_error(fd)
        {
            return errno::fail(error);
        }
    }
    let mut done = 0;
    let mut flags = flags;
    while done < count.min(1024) {
        // SAFETY: the program's own list of `count`.
        let message = unsafe { messages.add(done as usize) };
        // SAFETY: the program's own list of `count`.
        let message = unsafe { &mut *message };
        // SAFETY: the program's own header.
        let received = unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags) };
        let Ok(received) = c_uint::try_from(received) else { break };
        message.msg_len = received;
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        // The limit is only checked after each message (recvmmsg(2)). An empty message ends a
        // stream.
        if received == 0 && is_stream || limit.is_some_and(|limit| crate::wait::now() >= limit) {
            break;
        }
    }
    if done == 0 && count > 0 { -1 } else { c_int::try_from(done).unwrap_or(c_int::MAX) }
}
