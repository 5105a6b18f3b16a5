//! Making, connecting and accepting sockets.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_int, sockaddr, socklen_t};
use rustix::io::Errno;
use weft_stream::End;

use super::data::is_nowhere;
use crate::datagram::{Datagram, Why};
use crate::errno;
use crate::next::next;
use crate::reason::Reason;
use crate::stream::Stream;
use crate::table::{self, Kind};
use crate::ways::{leave, stdio};
use crate::{by_hand, process, settings};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
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
    if fd >= 0 {
        watch_calls();
    }
    if fd >= 0
        && let Some(ours) = ours
        && settings::enabled()
        && !process::is_borrowed()
    {
        table::install(fd, ours);
        stdio::check(fd);
    } else if fd >= 0 && table::knows(fd) && !process::is_borrowed() {
        drop(table::remove(fd)); // Closed behind our back.
    }
    fd
}

/// Whether an address is of no family: `connect(2)` dissolves a connection then.
///
/// # Safety
/// The address is the program's.
unsafe fn is_no_address(address: *const sockaddr, len: socklen_t) -> bool {
    len as usize >= size_of::<libc::sa_family_t>()
        && !is_nowhere(address)
        // SAFETY: an address begins with its family.
        && i32::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() })
            == libc::AF_UNSPEC
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if table::knows(fd) {
        // The peer looks for the offer as soon as the connection stands.
        process::prepare_to_offer();
        // SAFETY: the program's own address.
        if unsafe { is_no_address(address, len) } {
            // The kernel drops what has not been read. Other processes may have the socket, too.
            leave::one(fd, Reason::Ended);
        }
    }
    let result = next!(connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
    if let Some(held) = table::find(fd)
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
        && let Some(held) = table::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        let before = errno::get();
        // SAFETY: the program's own address.
        if result == 0 && unsafe { is_no_address(address, len) } {
            let is_alone = stream.end().is_none_or(End::is_sole_holder);
            stream.dissolved();
            // Another process would not be known to hold the next connection.
            let next = if is_alone { Stream::fresh() } else { Stream::kernels() };
            table::replace(&held, Kind::Stream(next));
            stdio::check(fd);
        } else {
            stream.connected(fd);
        }
        errno::set_raw(before);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let result = next!(bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
    if result == 0
        && let Some(held) = table::find(fd)
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
    let accepted = next!(accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int);
    take(fd, accepted)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let accepted = next!(accept4(
        fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int
    ) -> c_int);
    take(fd, accepted)
}

/// Calls by hand are seen from here on: by any socket a connection may come.
fn watch_calls() {
    if !process::is_borrowed() {
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

/// What `accept` of a listening socket has returned.
fn take(listener: c_int, fd: c_int) -> c_int {
    if fd < 0 || !settings::enabled() || process::is_borrowed() {
        return fd;
    }
    let before = errno::get();
    watch_calls();
    match Stream::accepted(listener, fd) {
        Some(stream) => {
            table::install(fd, Kind::Stream(stream));
            stdio::check(fd);
        }
        None => drop(table::remove(fd)), // Closed behind our back, if it was ours.
    }
    errno::set_raw(before);
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(held) = table::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        stream.shutting(fd, how);
    } else if let Some(held) = table::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        datagram.leave(Why::Shutdown); // What that means is the kernel's to say.
    }
    next!(shutdown(fd: c_int, how: c_int) -> c_int)
}
