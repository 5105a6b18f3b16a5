//! Reading and writing bytes.
//!
//! # Safety
//! Each function has the signature of the C library's that it stands in front of, and hands its
//! arguments on as they are. Buffers are the program's, as its calls promise.
#![allow(unsafe_code)]

use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;
use weft_sys::Buffers;

use crate::errno;
use crate::next::next;
use crate::table::{self, Kind};

/// Parts of one message (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// One buffer as a list.
fn one(place: *const c_void, len: size_t) -> [iovec; 1] {
    // Longer calls are cut short by the kernel as well (read(2), "Notes").
    const LONGEST: size_t = 0x7fff_f000;
    [iovec { iov_base: place.cast_mut(), iov_len: len.min(LONGEST) }]
}

/// Receives into a list of buffers. `None`: the kernel is to do it.
///
/// # Safety
/// The list and its buffers are valid to write, as the program's call promises.
pub(super) unsafe fn receive(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let held = table::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if count > PARTS_MAX {
        return Some(errno::fail(Errno::MSGSIZE) as ssize_t);
    }
    // SAFETY: the caller's promise.
    let buffers = unsafe { Buffers::new(list, count) }?;
    stream.recv(fd, buffers, flags).map(errno::count)
}

/// Sends a list of buffers. `None`: the kernel is to do it.
///
/// # Safety
/// The list and its buffers are valid to read, as the program's call promises.
pub(super) unsafe fn deliver(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let held = table::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if count > PARTS_MAX {
        return Some(errno::fail(Errno::MSGSIZE) as ssize_t);
    }
    // SAFETY: the caller's promise.
    let buffers = unsafe { Buffers::new(list, count) }?;
    stream.send(fd, buffers, flags).map(errno::count)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    let ours = match len {
        0 => None, // The kernel returns 0 at once, unlike recv (sock_read_iter).
        // SAFETY: the program's own buffer.
        _ => unsafe { receive(fd, one(to, len).as_ptr(), 1, 0) },
    };
    ours.unwrap_or_else(|| next!(read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the program's own buffer.
    let ours = unsafe { deliver(fd, one(from, len).as_ptr(), 1, 0) };
    ours.unwrap_or_else(|| next!(write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    let ours = match usize::try_from(count) {
        // SAFETY: the program's own list.
        Ok(len) if len <= PARTS_MAX => unsafe { receive(fd, list, len, 0) },
        _ => None,
    };
    ours.unwrap_or_else(|| next!(readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    let ours = match usize::try_from(count) {
        // SAFETY: the program's own list.
        Ok(len) if len <= PARTS_MAX => unsafe { deliver(fd, list, len, 0) },
        _ => None,
    };
    ours.unwrap_or_else(|| next!(writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own buffer.
    let ours = unsafe { receive(fd, one(to, len).as_ptr(), 1, flags) };
    ours.unwrap_or_else(
        || next!(recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own buffer.
    let ours = unsafe { deliver(fd, one(from, len).as_ptr(), 1, flags) };
    ours.unwrap_or_else(
        || next!(send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own buffer.
    let ours = unsafe { receive(fd, one(to, len).as_ptr(), 1, flags) };
    if ours.is_some_and(|received| received >= 0) && !address_len.is_null() {
        // SAFETY: the program's place. A TCP socket names nobody (tcp_recvmsg leaves it empty).
        unsafe { *address_len = 0 };
    }
    ours.unwrap_or_else(|| {
        next!(recvfrom(
            fd: c_int, to: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
            address_len: *mut socklen_t
        ) -> ssize_t)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    // SAFETY: the program's own buffer. A connected TCP socket does not look at the address.
    let ours = unsafe { deliver(fd, one(from, len).as_ptr(), 1, flags) };
    ours.unwrap_or_else(|| {
        next!(sendto(
            fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
            address_len: socklen_t
        ) -> ssize_t)
    })
}

// What programs compiled with _FORTIFY_SOURCE call: the same, after a look at the buffer's size.

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if table::knows(fd) && len <= room {
        // SAFETY: the program's own arguments.
        return unsafe { read(fd, to, len) };
    }
    next!(__read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if table::knows(fd) && len <= room {
        // SAFETY: the program's own arguments.
        return unsafe { recv(fd, to, len, flags) };
    }
    next!(__recv_chk(
        fd: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    if table::knows(fd) && len <= room {
        // SAFETY: the program's own arguments.
        return unsafe { recvfrom(fd, to, len, flags, address, address_len) };
    }
    next!(__recvfrom_chk(
        fd: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int,
        address: *mut sockaddr, address_len: *mut socklen_t
    ) -> ssize_t)
}
