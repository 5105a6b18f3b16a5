//! Hooks of the socket options that Weft takes part in.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged. The program guarantees that places for values are valid.
#![allow(unsafe_code)]

use libc::{c_int, c_void, socklen_t};
use weft_stream::Delays;
use weft_sys::calls::io::Errno;

use weft_extended::abi::SOL_WEFT;

use super::extended::{get_option, set_option};
use crate::arguments::is_nowhere;
use crate::errno;
use crate::link::AnyEnd;
use crate::next::next;
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::stream::options;

/// Returns the delay bit of an option that holds bytes back.
fn delay(level: c_int, name: c_int) -> Option<u32> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(Delays::NODELAY),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(Delays::CORK),
        _ => None,
    }
}

/// Returns the integer value of an option. `None`: the kernel is to report what is wrong.
///
/// # Safety
/// `len` bytes can be read at `value`, unless its address is impossible.
unsafe fn integer(value: *const c_void, len: socklen_t) -> Option<c_int> {
    let is_whole = c_int::try_from(len).is_ok_and(|len| len as usize >= size_of::<c_int>());
    // SAFETY: `len` covers an integer, and the caller guarantees that many readable bytes.
    (is_whole && !is_nowhere(value)).then(|| unsafe { value.cast::<c_int>().read_unaligned() })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level == SOL_WEFT
        // SAFETY: the program's own places.
        && let Some(result) = unsafe { get_option(fd, name, value, len) }
    {
        return result;
    }
    let result = next!(getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int);
    if result != 0 {
        return result;
    }
    let Some(held) = sockets::find(fd) else { return result };
    let Kind::Stream(stream) = &*held else { return result };
    let ours = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            stream.connected(fd); // Programs ask for the result of an asynchronous connect.
            let error = stream.take_error().map(Errno::raw_os_error);
            // SAFETY: the kernel has just written to `len`.
            let reported = if error.is_none() && unsafe { *len } as usize == size_of::<c_int>() {
                // SAFETY: the kernel has just written an integer there.
                unsafe { value.cast::<c_int>().read_unaligned() }
            } else {
                0
            };
            stream.error_reported(reported);
            error
        }
        _ => {
            let delays = stream.link().and_then(AnyEnd::delays);
            let known = delay(level, name).zip(delays);
            known.map(|(option, delays)| c_int::from(delays.is_set(option)))
        }
    };
    if let Some(ours) = ours {
        let bytes = ours.to_ne_bytes();
        // SAFETY: the kernel has just written to `len`.
        let room = unsafe { *len } as usize;
        let count = bytes.len().min(room);
        // SAFETY: `count` is at most the number of bytes that the kernel has just written there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), count) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == SOL_WEFT
        // SAFETY: the program's own value.
        && let Some(result) = unsafe { set_option(fd, name, value, len) }
    {
        return result;
    }
    // SAFETY: the program's own value.
    let given = unsafe { integer(value, len) };
    if let Some(option) = delay(level, name)
        && let Some(given) = given
        && let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
        && let Some(delays) = stream.link().and_then(AnyEnd::delays)
    {
        delays.set(option, given != 0);
        return 0; // The kernel's socket carries wakeups, which must not be delayed.
    }
    if options::is_refused(level, name)
        && let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
        && !stream.is_tcp()
    {
        return errno::fail(Errno::NOPROTOOPT);
    }
    if options::is_the_kernels(level, name, given)
        && let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        stream.fall_back_to_tcp(fd, Reason::Option);
        stream.has_option();
        stream.log_carrier(fd);
    }
    let result = next!(setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int);
    if result == 0
        && let Some(held) = sockets::find(fd)
        && let Kind::Datagram(datagram) = &*held
    {
        // A value that is not an integer counts as set.
        let mut first = 1;
        if !value.is_null() && len as usize == size_of::<c_int>() {
            // SAFETY: `len` is the size of an integer, and the kernel has just read the value.
            first = unsafe { value.cast::<c_int>().read_unaligned() };
        }
        datagram.option(fd, level, name, first);
    }
    result
}
