//! Hooks of remaining functions: namespaces, descriptors of other processes, and reading and
//! writing with flags.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes, and passes its
//! arguments on unchanged.
#![allow(unsafe_code)]

use libc::{c_int, c_uint, iovec, off_t, ssize_t};

use weft_sys::calls::io::Errno;

use crate::next::next;
use crate::reason::Reason;
use crate::ways::{fallback, process};
use crate::{errno, sockets};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    process::unsharing(flags);
    next!(unshare(flags: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    process::entering(kind);
    next!(setns(fd: c_int, kind: c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_open(process: libc::pid_t, flags: c_uint) -> c_int {
    fallback::looking_at_a_process();
    next!(pidfd_open(process: libc::pid_t, flags: c_uint) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    if !fallback::may_take() {
        return errno::fail(Errno::PERM);
    }
    let got = next!(pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int);
    fallback::taken(got);
    got
}

/// Defines hooks of `preadv2(2)` and `pwritev2(2)`. Without an offset they act like `readv(2)` and
/// `writev(2)`; with an offset they fail on a socket, as in the kernel.
macro_rules! at_offset {
    ($name:ident, $plain:path, $at_once:path) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int,
            list: *const iovec,
            count: c_int,
            offset: off_t,
            flags: c_int,
        ) -> ssize_t {
            if offset == -1 && sockets::knows(fd) {
                match (flags & !RWF_IGNORED, usize::try_from(count)) {
                    // SAFETY: the program's own list.
                    (0, _) => return unsafe { $plain(fd, list, count) },
                    (libc::RWF_NOWAIT, Ok(count)) => {
                        // SAFETY: a structure of integers and pointers, for which zero is valid.
                        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
                        header.msg_iov = list.cast_mut();
                        header.msg_iovlen = count;
                        // SAFETY: the program's own list.
                        return unsafe { $at_once(fd, &raw mut header, libc::MSG_DONTWAIT) };
                    }
                    _ => drop(fallback::one(fd, Reason::ByHand)),
                }
            }
            next!($name(
                fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int
            ) -> ssize_t)
        }
    };
}

/// Flags that a socket ignores.
const RWF_IGNORED: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC;

at_offset!(preadv2, libc::readv, libc::recvmsg);
at_offset!(preadv64v2, libc::readv, libc::recvmsg);
at_offset!(pwritev2, libc::writev, libc::sendmsg);
at_offset!(pwritev64v2, libc::writev, libc::sendmsg);
