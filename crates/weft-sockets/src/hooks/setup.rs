//! Making, connecting and accepting sockets.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are.
#![allow(unsafe_code)]

use libc::{c_int, sockaddr, socklen_t};
use rustix::io::Errno;

use crate::errno;
use crate::next::next;
use crate::stream::Stream;
use crate::table::{self, Kind};
use crate::{process, settings};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int);
    let is_stream = kind & 0xf == libc::SOCK_STREAM
        && (domain == libc::AF_INET || domain == libc::AF_INET6)
        && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if fd >= 0 && is_stream && settings::enabled() && !process::is_borrowed() {
        table::install(fd, Kind::Stream(Stream::fresh()));
    } else if fd >= 0 && table::knows(fd) && !process::is_borrowed() {
        drop(table::remove(fd)); // Closed behind our back.
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if table::knows(fd) {
        // The peer looks for the offer as soon as the connection stands.
        process::prepare_to_offer();
    }
    let result = next!(connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int);
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
        // SAFETY: the kernel has read the program's address, which begins with its family.
        if result == 0 && i32::from(unsafe { (*address).sa_family }) == libc::AF_UNSPEC {
            stream.dissolved();
            table::install(fd, Kind::Stream(Stream::fresh()));
        } else {
            stream.connected(fd);
        }
        errno::set_raw(before);
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
    take(accepted)
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
    take(accepted)
}

fn take(fd: c_int) -> c_int {
    if fd < 0 || !settings::enabled() || process::is_borrowed() {
        return fd;
    }
    let before = errno::get();
    match Stream::accepted(fd) {
        Some(stream) => table::install(fd, Kind::Stream(stream)),
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
        stream.shutting(how);
    }
    next!(shutdown(fd: c_int, how: c_int) -> c_int)
}
