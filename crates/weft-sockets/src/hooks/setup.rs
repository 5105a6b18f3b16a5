//! Hooks of the calls that create, connect and accept sockets.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged.
#![allow(unsafe_code)]

use libc::{c_int, sockaddr, socklen_t};
use weft_sys::Uncancelled;
use weft_sys::calls::io::Errno;

use super::files::check_stream;
use crate::address::read as read_address;
use crate::arguments::is_nowhere;
use crate::child_starts::Opening;
use crate::datagram::{Datagram, DatagramReason};
use crate::descriptor::stays_open;
use crate::kernel::End;
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::ways::fallback;
use crate::{by_hand, errno, identity, mode, open, reason, shared_files};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let opening = Opening::begin();
    let fd = next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
    // `getrandom`, which a thread's first hash table calls, is a cancellation point.
    let _uncancelled = Uncancelled::begin();
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let ours = match (kind & 0xf, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) if is_internet => {
            Some(Kind::Stream(Stream::fresh()))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if is_internet => {
            Some(Kind::Datagram(Datagram::fresh(domain == libc::AF_INET6)))
        }
        _ => None,
    };
    if fd < 0 || identity::is_borrowed() {
        return fd;
    }
    let before = errno::get();
    by_hand::begin();
    errno::set_raw(before);
    if let Some(ours) = ours
        && mode::enabled()
    {
        install(&opening, fd, ours);
        check_stream(fd);
    } else if open::knows(fd) {
        open::forget(fd); // An earlier file of this number was closed unseen.
    }
    fd
}

/// Records the new socket `fd`. If a child may have inherited it uncounted it stays with the
/// kernel.
fn install(opening: &Opening, fd: c_int, kind: Kind) {
    open::install(fd, kind);
    if opening.is_beside_child_start(|| stays_open(fd))
        && let Some(held) = sockets::find(fd)
    {
        match &*held {
            Kind::Stream(stream) => stream.fall_back_to_tcp(fd, Reason::Forked),
            Kind::Datagram(datagram) => datagram.fall_back_to_udp(DatagramReason::PassedOn),
        }
    }
}

/// Returns whether an address has the family `AF_UNSPEC`, with which `connect(2)` dissolves a
/// connection.
///
/// # Safety
/// The address is the program's.
unsafe fn is_no_address(address: *const sockaddr, len: socklen_t) -> bool {
    len as usize >= size_of::<libc::sa_family_t>()
        && !is_nowhere(address)
        // SAFETY: `len` covers the family, with which an address begins.
        && i32::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() })
            == libc::AF_UNSPEC
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if sockets::knows(fd) {
        // The peer looks for the offer as soon as the connection is established.
        let before = errno::get();
        if !shared_files::is_registry_open() {
            let _ = (shared_files::registry(), identity::program()); // Slow the first time.
        }
        errno::set_raw(before);
        // SAFETY: the program's own address.
        if unsafe { is_no_address(address, len) } {
            // The kernel drops unread data. Other processes may have the socket, too.
            fallback::one(fd, Reason::Ended);
        }
    }
    let result = next!(connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
    if let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        let before = errno::get();
        datagram.connected(fd);
        errno::set_raw(before);
        return result;
    }
    let goes_on = result == 0
        || matches!(
            errno::last(),
            Errno::INPROGRESS | Errno::ISCONN | Errno::ALREADY | Errno::INTR
        );
    if goes_on
        && let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        let before = errno::get();
        // SAFETY: the program's own address.
        if result == 0 && unsafe { is_no_address(address, len) } {
            let is_alone = stream.end().is_none_or(End::is_sole_holder);
            stream.dissolved();
            // The next connection would not know that another process holds it, too.
            let next = if is_alone { Stream::fresh() } else { Stream::kernels() };
            sockets::replace(&held, Kind::Stream(next));
            check_stream(fd);
        } else {
            // SAFETY: the program's own address.
            stream.connected_to(fd, unsafe { read_address(address, len) });
        }
        errno::set_raw(before);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let result = next!(bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
    if result == 0
        && let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        datagram.bound();
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let opening = Opening::begin();
    let accepted = next!(accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int);
    take(fd, accepted, &opening)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let opening = Opening::begin();
    let accepted = next!(accept4(
        fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int
    ) -> c_int);
    take(fd, accepted, &opening)
}

/// Has calls by hand seen from here on, because connections may arrive through any socket.
fn watch_calls() {
    if !identity::is_borrowed() {
        let before = errno::get();
        by_hand::begin();
        errno::set_raw(before);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    let made = next!(socketpair(
        domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int
    ) -> c_int);
    if made == 0 {
        watch_calls();
    }
    made
}

/// Takes over a socket that `accept` has returned.
fn take(listener: c_int, fd: c_int, opening: &Opening) -> c_int {
    if fd < 0 || !mode::enabled() || identity::is_borrowed() {
        return fd;
    }
    let before = errno::get();
    by_hand::begin();
    let held = sockets::find(listener);
    let listener = match held.as_deref() {
        Some(Kind::Stream(stream)) => Some(stream),
        _ => None,
    };
    if listener.is_some_and(Stream::accepts_brief) {
        reason::log_brief(fd);
        open::forget(fd);
        errno::set_raw(before);
        return fd;
    }
    match Stream::accepted(fd, listener.map(Stream::passes_option_on)) {
        Some(stream) => {
            if let Some(listener) = listener {
                listener.has_accepted(&stream);
            }
            install(opening, fd, Kind::Stream(stream));
            check_stream(fd);
        }
        None => open::forget(fd), // An earlier file of this number was closed unseen.
    }
    errno::set_raw(before);
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        stream.shutting(fd, how);
    } else if let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        datagram.fall_back_to_udp(DatagramReason::Shutdown); // The kernel implements the shutdown.
    }
    next!(shutdown(fd: c_int, how: c_int) -> c_int)
}
