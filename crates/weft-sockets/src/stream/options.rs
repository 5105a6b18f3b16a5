//! Options that only the kernel implements: a connection with one of them is on TCP.

use std::os::fd::{AsFd as _, RawFd};

use libc::c_int;

use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};

/// A socket buffer below this size limits how much a program can send unread, and the program may
/// rely on it: the rings are longer. Programs that set larger buffers only want throughput.
const BUFFER_MIN: u32 = 32 << 10;
/// The kernel doubles the size that a program sets.
const KERNELS_BUFFER_MIN: c_int = (BUFFER_MIN * 2) as c_int;

/// Tells which buffer sizes the program has set (Linux 5.14).
const SO_BUF_LOCK: c_int = 72;
const SNDBUF_LOCK: c_int = 1;
const RCVBUF_LOCK: c_int = 2;

/// Returns whether Weft refuses an option: `TCP_INQ` (Linux 4.18) reports the number of unread
/// bytes with each receive, which the rings do not support. gRPC tries it on each connection, and
/// does without.
pub(crate) fn is_refused(level: c_int, name: c_int) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
}

/// Returns whether only the kernel can do what a program is about to ask for. `given` is the
/// option's value, if it is an integer.
pub(crate) fn is_the_kernels(level: c_int, name: c_int, given: Option<c_int>) -> bool {
    match (level, name) {
        (
            libc::SOL_SOCKET,
            libc::SO_SNDBUF | libc::SO_RCVBUF | libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE,
        )
        | (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
            // The kernel treats a negative size as a large one.
            given.is_some_and(|size| size.cast_unsigned() < BUFFER_MIN)
        }
        (
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT
            | libc::SO_ZEROCOPY
            | libc::SO_OOBINLINE
            | libc::SO_PEEK_OFF
            | libc::SO_TIMESTAMP
            | libc::SO_TIMESTAMPNS
            | libc::SO_TIMESTAMPING
            | libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_MAX_PACING_RATE,
        )
        | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => true,
        _ => false,
    }
}

/// Returns whether a socket has one of the options that are worth a system call to check.
pub(super) fn has(fd: RawFd) -> bool {
    let locked = value(fd, SO_BUF_LOCK).unwrap_or(0);
    let is_small = |lock, name| {
        locked & lock != 0 && value(fd, name).is_some_and(|size| size < KERNELS_BUFFER_MIN)
    };
    value(fd, libc::SO_RCVLOWAT).is_some_and(|bytes| bytes > 1)
        || value(fd, libc::SO_OOBINLINE).is_some_and(|on| on != 0)
        || is_small(SNDBUF_LOCK, libc::SO_SNDBUF)
        || is_small(RCVBUF_LOCK, libc::SO_RCVBUF)
}

/// Returns the value of an option, if the kernel has the option.
fn value(fd: RawFd, name: c_int) -> Option<c_int> {
    Host::option(Descriptor::of(fd).as_fd(), name).ok()
}
