//! rsockets as plain sockets: an rsocket is a kernel socket, so that it works with all calls that
//! take a descriptor.
//!
//! # Safety
//! The functions pass their arguments to the C library's socket calls, whose requirements the
//! program fulfils. Calls that wait are cancellation points, as with sockets.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};

use libc::{
    AF_INET, AF_INET6, MSG_NOSIGNAL, SOCK_DGRAM, SOCK_STREAM, fd_set, iovec, msghdr, nfds_t, off_t,
    pollfd, sockaddr, socklen_t, ssize_t, timeval,
};
use weft_engine::Errno;

use crate::errno;

/// The level of rsocket options (`<rdma/rsocket.h>`).
const SOL_RDMA: c_int = 0x10000;
/// The values of the options `RDMA_SQSIZE` to `RDMA_IOMAPSIZE`: librdmacm's defaults, and no
/// mappings.
const RDMA_OPTIONS: [c_int; 4] = [384, 384, 64, 0];

#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let known = matches!(domain, AF_INET | AF_INET6) && matches!(kind, SOCK_STREAM | SOCK_DGRAM);
    if !known {
        return errno::minus_one(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: `socket` has no preconditions.
    unsafe { libc::socket(domain, kind, protocol) }
}

macro_rules! forward {
    ($($name:ident => $to:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the program guarantees what the socket call requires.
            unsafe { libc::$to($($arg),*) }
        }
    )* };
}

forward! {
    rbind => bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    rlisten => listen(socket: c_int, backlog: c_int) -> c_int;
    raccept => accept(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    rconnect => connect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    rshutdown => shutdown(socket: c_int, how: c_int) -> c_int;
    rclose => close(socket: c_int) -> c_int;
    rrecv => recv(socket: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> ssize_t;
    rrecvfrom => recvfrom(socket: c_int, buffer: *mut c_void, length: usize, flags: c_int,
        address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t;
    rrecvmsg => recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    rread => read(socket: c_int, buffer: *mut c_void, length: usize) -> ssize_t;
    rreadv => readv(socket: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    rpoll => poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    rselect => select(count: c_int, read: *mut fd_set, write: *mut fd_set, error: *mut fd_set,
        timeout: *mut timeval) -> c_int;
    rgetpeername => getpeername(socket: c_int, address: *mut sockaddr, length: *mut socklen_t)
        -> c_int;
    rgetsockname => getsockname(socket: c_int, address: *mut sockaddr, length: *mut socklen_t)
        -> c_int;
}

// The send functions pass MSG_NOSIGNAL, because rsockets raise no SIGPIPE.

#[unsafe(no_mangle)]
unsafe extern "C" fn rsend(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program guarantees what `send` requires.
    unsafe { libc::send(socket, buffer, length, flags | MSG_NOSIGNAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    // SAFETY: the program guarantees what `sendto` requires.
    unsafe { libc::sendto(socket, buffer, length, flags | MSG_NOSIGNAL, to, to_length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program guarantees what `sendmsg` requires.
    unsafe { libc::sendmsg(socket, message, flags | MSG_NOSIGNAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwrite(socket: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    // SAFETY: the program guarantees what `send` requires.
    unsafe { libc::send(socket, buffer, length, MSG_NOSIGNAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwritev(socket: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the structure consists of integers and pointers, for which zero is valid.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.cast_mut();
    message.msg_iovlen = usize::try_from(count).unwrap_or(0);
    // SAFETY: the program passes a vector of `count` entries, which `sendmsg` only reads.
    unsafe { libc::sendmsg(socket, &raw const message, MSG_NOSIGNAL) }
}

/// Forwards to `fcntl`, whose third argument is optional. Reading a missing one is harmless where
/// arguments are in registers, as on every 64-bit Linux.
#[unsafe(no_mangle)]
unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program guarantees what `fcntl` requires.
    unsafe { libc::fcntl(socket, command, argument) }
}

/// Accepts and ignores rsocket options, which are sizes of queues that sockets do not have.
#[unsafe(no_mangle)]
unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if level == SOL_RDMA {
        let known = usize::try_from(name).is_ok_and(|name| name <= RDMA_OPTIONS.len());
        return errno::minus_one(if known { Ok(()) } else { Err(Errno::NOPROTOOPT) });
    }
    // SAFETY: the program guarantees what `setsockopt` requires.
    unsafe { libc::setsockopt(socket, level, name, value, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if level != SOL_RDMA {
        // SAFETY: the program guarantees what `getsockopt` requires.
        return unsafe { libc::getsockopt(socket, level, name, value, length) };
    }
    let option = usize::try_from(name).ok().and_then(|name| RDMA_OPTIONS.get(name));
    let Some(&option) = option else { return errno::minus_one(Err(Errno::NOPROTOOPT)) };
    // SAFETY: the program passes `length` as a valid pointer.
    let room = unsafe { *length } as usize;
    if room < size_of::<c_int>() {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: the program passes a buffer of `*length` bytes, which is large enough (checked
    // above).
    unsafe { value.cast::<c_int>().write_unaligned(option) };
    // SAFETY: the program passes `length` as a valid pointer.
    unsafe { *length = size_of::<c_int>() as socklen_t };
    0
}

/// Fails: the peer of a socket cannot write to memory.
#[unsafe(no_mangle)]
extern "C" fn riomap(
    _socket: c_int,
    _buffer: *mut c_void,
    _length: usize,
    _protection: c_int,
    _flags: c_int,
    _offset: off_t,
) -> off_t {
    errno::minus_one(Err(Errno::OPNOTSUPP)).into()
}

/// Fails, since nothing can be mapped.
#[unsafe(no_mangle)]
extern "C" fn riounmap(_socket: c_int, _buffer: *mut c_void, _length: usize) -> c_int {
    errno::minus_one(Err(Errno::INVAL))
}

/// Fails with `(size_t) -1`, since nothing can be mapped.
#[unsafe(no_mangle)]
extern "C" fn riowrite(
    _socket: c_int,
    _buffer: *const c_void,
    _count: usize,
    _offset: off_t,
    _flags: c_int,
) -> usize {
    errno::minus_one(Err(Errno::OPNOTSUPP));
    usize::MAX
}
