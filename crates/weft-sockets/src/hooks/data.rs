//! Hooks of the calls that read and write bytes. They are cancellation points even if they find
//! bytes or room without a call of the C library.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. The program guarantees that its buffers are valid.
#![allow(unsafe_code)]

use std::io::IoSliceMut;

use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t, ssize_t};
use weft_stream::datagram::Arrival;
use weft_sys::calls::io::Errno;
use weft_sys::{Buffers, test_cancel};

use crate::arguments::is_nowhere;
use crate::datagram::Received;
use crate::limits::MESSAGE_PARTS_MAX;
use crate::next::next;
use crate::sockets::{self, Kind};
use crate::{address as names, errno};

/// Returns a list of one buffer.
fn one(place: *const c_void, len: size_t) -> [iovec; 1] {
    // The kernel cuts longer calls short, too (read(2), "Notes").
    const LONGEST: size_t = 0x7fff_f000;
    [iovec { iov_base: place.cast_mut(), iov_len: len.min(LONGEST) }]
}

fn is_no_list(list: *const iovec, count: usize) -> bool {
    count > 0 && is_nowhere(list)
}

/// Returns whether an address is in the kernel's half. A call with such an address fails before
/// anything else.
fn is_kernels<T>(place: *const T) -> bool {
    (place as isize) < 0
}

/// Returns the buffers up to the first with an impossible address, and whether there is such a one.
/// `None`: the kernel is to refuse the call.
///
/// # Safety
/// The list is readable, unless its address is impossible. Buffers are as for [`Buffers::new`].
unsafe fn buffers<'a>(list: *const iovec, count: usize) -> Option<(Buffers<'a>, bool)> {
    if is_no_list(list, count) {
        return None;
    }
    let mut sound = count;
    for at in 0..count {
        // SAFETY: `at` is below the list's `count`.
        let place = unsafe { list.add(at) };
        // SAFETY: `at` is below the list's `count`, and the list is readable.
        let part = unsafe { place.read() };
        if is_kernels(part.iov_base) {
            return None;
        }
        if part.iov_len > 0 && is_nowhere(part.iov_base) {
            sound = sound.min(at);
        }
    }
    // SAFETY: the caller guarantees the buffers before the first bad one.
    let buffers = unsafe { Buffers::new(list, sound) }?;
    Some((buffers, sound < count))
}

/// Receives into a list of buffers. `None`: the kernel is to do it.
///
/// # Safety
/// The list and its buffers are valid to write, as the program's call guarantees.
pub(super) unsafe fn receive(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let held = sockets::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if count > MESSAGE_PARTS_MAX {
        return Some(errno::fail(Errno::MSGSIZE) as ssize_t);
    }
    // SAFETY: the caller guarantees a readable list and writable buffers.
    let (buffers, is_cut) = unsafe { buffers(list, count) }?;
    if !is_cut {
        return stream.recv(fd, buffers, flags).map(errno::count);
    }
    if buffers.is_empty() {
        // The byte is only peeked at: the kernel would not take it either.
        let mut byte = [0];
        let mut slices = [IoSliceMut::new(&mut byte)];
        let flags = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC) | libc::MSG_PEEK;
        let found = stream.recv(fd, Buffers::of(&mut slices), flags)?;
        return Some(errno::count(match found {
            Ok(1..) => Err(Errno::FAULT),
            other => other,
        }));
    }
    // The result is the kernel's, and unread bytes stay, as there.
    let known = || stream.link().is_some_and(|end| end.unread() > buffers.len());
    let received = if known() { Ok(0) } else { stream.recv(fd, buffers, flags)? };
    Some(errno::count(if known() { Err(Errno::FAULT) } else { received }))
}

/// Sends a list of buffers. `None`: the kernel is to do it.
///
/// # Safety
/// The list and its buffers are valid to read, as the program's call guarantees.
pub(super) unsafe fn deliver(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    let held = sockets::find(fd)?;
    let Kind::Stream(stream) = &*held else { return None };
    if count > MESSAGE_PARTS_MAX {
        return Some(errno::fail(Errno::MSGSIZE) as ssize_t);
    }
    // SAFETY: the caller guarantees a readable list and buffers.
    let (buffers, is_cut) = unsafe { buffers(list, count) }?;
    if is_cut {
        // Errors of the socket take precedence over EFAULT.
        // SAFETY: the list has no entries.
        let none = unsafe { Buffers::new(list, 0) }?;
        let sent = stream.send(fd, none, flags)?;
        return Some(errno::count(sent.and(Err(Errno::FAULT))));
    }
    stream.send(fd, buffers, flags).map(errno::count)
}

/// Receives a datagram into a list of buffers. `None`: the descriptor is not a known UDP socket.
///
/// # Safety
/// As for [`receive`].
unsafe fn receive_datagram(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    kernel: &mut dyn FnMut(c_int) -> ssize_t,
) -> Option<ssize_t> {
    // SAFETY: the caller guarantees a readable list and writable buffers.
    let received = unsafe { take_datagram(fd, list, count, flags, kernel) }?;
    Some(match received {
        Taken { from: Received::Kernel(received), .. } => received,
        Taken { from: Received::Memory(arrival), .. } => length(arrival, flags),
    })
}

/// A received datagram, and the address family of its socket.
pub(super) struct Taken {
    pub(super) from: Received,
    pub(super) is_v6: bool,
}

/// Receives a datagram like [`receive_datagram`], and returns it with its sender.
///
/// # Safety
/// As for [`receive`].
pub(super) unsafe fn take_datagram(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    kernel: &mut dyn FnMut(c_int) -> ssize_t,
) -> Option<Taken> {
    if !sockets::knows(fd) || count > MESSAGE_PARTS_MAX || is_no_list(list, count) {
        return None;
    }
    let held = sockets::find(fd)?;
    let Kind::Datagram(datagram) = &*held else { return None };
    // SAFETY: the caller guarantees a readable list and writable buffers.
    let buffers = unsafe { Buffers::new(list, count) }?;
    Some(Taken { from: datagram.receive(fd, buffers, flags, kernel), is_v6: datagram.is_v6() })
}

/// Returns the result of a call that has received a datagram (`MSG_TRUNC`: recv(2)).
pub(super) fn length(arrival: Arrival, flags: c_int) -> ssize_t {
    let len = if flags & libc::MSG_TRUNC != 0 { arrival.len } else { arrival.copied };
    ssize_t::try_from(len).unwrap_or(ssize_t::MAX)
}

/// Sends a datagram from a list of buffers. `None`: the kernel is to do it.
///
/// # Safety
/// The list and its buffers are valid as for [`deliver`]; the address is NULL or the program's.
pub(super) unsafe fn deliver_datagram(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    (address, len): (*const sockaddr, socklen_t),
) -> Option<ssize_t> {
    if !sockets::knows(fd) || count > MESSAGE_PARTS_MAX || is_no_list(list, count) {
        return None;
    }
    let held = sockets::find(fd)?;
    let Kind::Datagram(datagram) = &*held else { return None };
    let to = if address.is_null() {
        None
    } else {
        // SAFETY: the program passes an address of `len` bytes.
        let to = unsafe { names::read(address, len) };
        datagram.bound(); // Sending binds the socket, if it is not bound.
        Some(to?)
    };
    // SAFETY: the caller guarantees a readable list and buffers.
    let buffers = unsafe { Buffers::new(list, count) }?;
    let before = errno::get();
    match datagram.send(fd, to, buffers, flags) {
        None => {
            errno::set_raw(before);
            None
        }
        Some(sent) => Some(errno::count(sent)),
    }
}

const NO_ADDRESS: (*const sockaddr, socklen_t) = (std::ptr::null(), 0);

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    test_cancel();
    let ours = match len {
        0 => None, // Unlike recv, read returns 0 at once (sock_read_iter).
        // SAFETY: the program's own buffer.
        _ => unsafe { receive(fd, one(to, len).as_ptr(), 1, 0) }.or_else(|| {
            let mut kernel = |flags| {
                next!(recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t)
            };
            // SAFETY: the program's own buffer.
            unsafe { receive_datagram(fd, one(to, len).as_ptr(), 1, 0, &mut kernel) }
        }),
    };
    ours.unwrap_or_else(|| next!(read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    from: *const c_void,
    len: size_t,
) -> ssize_t {
    test_cancel();
    // SAFETY: the program's own buffer.
    let ours = unsafe { deliver(fd, one(from, len).as_ptr(), 1, 0) }
        // SAFETY: the program's own buffer.
        .or_else(|| unsafe { deliver_datagram(fd, one(from, len).as_ptr(), 1, 0, NO_ADDRESS) });
    ours.unwrap_or_else(|| next!(write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t))
}

/// Returns whether the buffers of `readv(2)` or `writev(2)` hold no byte. Then the kernel returns 0
/// without asking the socket: the call neither blocks nor fails, and sends no datagram.
///
/// # Safety
/// As for [`receive`].
unsafe fn holds_none(fd: c_int, list: *const iovec, count: usize) -> bool {
    if !sockets::knows(fd) || is_no_list(list, count) {
        return false;
    }
    // SAFETY: the caller guarantees a readable list.
    unsafe { Buffers::new(list, count) }.is_some_and(|buffers| buffers.is_empty())
}

/// Executes `readv(2)` on a UDP socket.
///
/// # Safety
/// As for [`receive`].
unsafe fn read_datagram(fd: c_int, list: *const iovec, count: usize) -> Option<ssize_t> {
    if !sockets::knows(fd) || is_no_list(list, count) {
        return None;
    }
    // SAFETY: a structure of integers and pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.cast_mut();
    header.msg_iovlen = count;
    let message = &raw mut header;
    let mut kernel =
        |flags| next!(recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t);
    // SAFETY: the caller guarantees a readable list and writable buffers.
    unsafe { receive_datagram(fd, list, count, 0, &mut kernel) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    test_cancel();
    let ours = match usize::try_from(count) {
        // SAFETY: the program's own list.
        Ok(len) if len <= MESSAGE_PARTS_MAX && !unsafe { holds_none(fd, list, len) } => {
            // SAFETY: the program's own list.
            unsafe { receive(fd, list, len, 0) }
                // SAFETY: the program's own list.
                .or_else(|| unsafe { read_datagram(fd, list, len) })
        }
        _ => None,
    };
    ours.unwrap_or_else(|| next!(readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    test_cancel();
    let ours = match usize::try_from(count) {
        // SAFETY: the program's own list.
        Ok(len) if len <= MESSAGE_PARTS_MAX && !unsafe { holds_none(fd, list, len) } => {
            // SAFETY: the program's own list.
            unsafe { deliver(fd, list, len, 0) }
                // SAFETY: the program's own list.
                .or_else(|| unsafe { deliver_datagram(fd, list, len, 0, NO_ADDRESS) })
        }
        _ => None,
    };
    ours.unwrap_or_else(|| next!(writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    test_cancel();
    // SAFETY: the program's own buffer.
    let ours = unsafe { receive(fd, one(to, len).as_ptr(), 1, flags) }.or_else(|| {
        let mut kernel =
            |flags| next!(recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t);
        // SAFETY: the program's own buffer.
        unsafe { receive_datagram(fd, one(to, len).as_ptr(), 1, flags, &mut kernel) }
    });
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
    test_cancel();
    // SAFETY: the program's own buffer.
    let ours = unsafe { deliver(fd, one(from, len).as_ptr(), 1, flags) }
        // SAFETY: the program's own buffer.
        .or_else(|| unsafe { deliver_datagram(fd, one(from, len).as_ptr(), 1, flags, NO_ADDRESS) });
    ours.unwrap_or_else(
        || next!(send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t),
    )
}

/// Returns the room for a sender's address, which the kernel checks only after it has received.
///
/// # Safety
/// `len` is readable, unless its address is impossible.
unsafe fn room_for_name(len: *const socklen_t) -> Result<socklen_t, Errno> {
    if is_nowhere(len) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller guarantees a readable place.
    let room = unsafe { len.read_unaligned() };
    if room > c_int::MAX as socklen_t { Err(Errno::INVAL) } else { Ok(room) }
}

/// Returns whether the kernel refuses a destination address before it looks at the socket: the
/// address is too long, or lies where no process has memory.
fn is_bad_name(address: *const sockaddr, len: socklen_t) -> bool {
    let is_too_long = len as usize > size_of::<libc::sockaddr_storage>();
    !address.is_null() && (is_too_long || len > 0 && is_nowhere(address))
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
    test_cancel();
    let kernel = |flags| {
        next!(recvfrom(
            fd: c_int, to: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
            address_len: *mut socklen_t
        ) -> ssize_t)
    };
    // SAFETY: the program's own buffer.
    let taken = unsafe { take_datagram(fd, one(to, len).as_ptr(), 1, flags, &mut { kernel }) };
    match taken {
        Some(Taken { from: Received::Kernel(received), .. }) => return received,
        Some(Taken { from: Received::Memory(arrival), is_v6 }) => {
            if address.is_null() {
                return length(arrival, flags);
            }
            // SAFETY: the program's own place.
            let room = match unsafe { room_for_name(address_len) } {
                Ok(room) => room,
                Err(errno) => return errno::fail(errno) as ssize_t,
            };
            // SAFETY: the program's own place.
            let len = unsafe { names::write(arrival.from, is_v6, address, room) };
            // SAFETY: the program's own place.
            unsafe { address_len.write(len) };
            return length(arrival, flags);
        }
        None => {}
    }
    // SAFETY: the program's own buffer.
    let ours = unsafe { receive(fd, one(to, len).as_ptr(), 1, flags) };
    if ours.is_some_and(|received| received >= 0) && !address.is_null() {
        // SAFETY: the program's own place.
        if let Err(errno) = unsafe { room_for_name(address_len) } {
            return errno::fail(errno) as ssize_t;
        }
        // A TCP socket reports no sender's address (tcp_recvmsg leaves it empty).
        // SAFETY: the program's own place, which `room_for_name` has just read.
        unsafe { address_len.write(0) };
    }
    ours.unwrap_or_else(|| kernel(flags))
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
    test_cancel();
    let ours = if is_bad_name(address, address_len) {
        None
    } else {
        // SAFETY: the program's own buffer. A connected TCP socket does not look at the address.
        unsafe { deliver(fd, one(from, len).as_ptr(), 1, flags) }.or_else(|| {
            let to = (address, address_len);
            // SAFETY: the program's own buffer and address.
            unsafe { deliver_datagram(fd, one(from, len).as_ptr(), 1, flags, to) }
        })
    };
    ours.unwrap_or_else(|| {
        next!(sendto(
            fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
            address_len: socklen_t
        ) -> ssize_t)
    })
}

// Variants for programs compiled with _FORTIFY_SOURCE, which check the buffer's size first.

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if sockets::knows(fd) && len <= room {
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
    if sockets::knows(fd) && len <= room {
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
    if sockets::knows(fd) && len <= room {
        // SAFETY: the program's own arguments.
        return unsafe { recvfrom(fd, to, len, flags, address, address_len) };
    }
    next!(__recvfrom_chk(
        fd: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int,
        address: *mut sockaddr, address_len: *mut socklen_t
    ) -> ssize_t)
}
