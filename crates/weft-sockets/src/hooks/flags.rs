//! Flags of a descriptor's file with which only the kernel's sockets work as they should.

use libc::{c_int, c_void};

use crate::datagram::DatagramReason;
use crate::reason::Reason;
use crate::sockets::{self, Kind};

/// Has a socket fall back to TCP because the program turns on `O_ASYNC`: only the kernel sends
/// these signals.
pub(super) fn becomes_signal_driven(fd: c_int) {
    let Some(held) = sockets::find(fd) else { return };
    match &*held {
        Kind::Stream(stream) => {
            stream.fall_back_to_tcp(fd, Reason::Signals);
            stream.log_carrier(fd);
        }
        Kind::Datagram(datagram) => datagram.fall_back_to_udp(DatagramReason::Option),
    }
}

/// Has a connection fall back to TCP because the program turns on `O_APPEND`, with which the kernel
/// refuses `sendfile` and `splice` to it (do_splice_direct). So no connection in memory has it.
pub(super) fn becomes_append_only(fd: c_int) {
    if let Some(held) = sockets::find(fd)
        && let Kind::Stream(stream) = &*held
    {
        stream.fall_back_to_tcp(fd, Reason::Option);
        stream.log_carrier(fd);
    }
}

/// Checks an `fcntl(2)` that is about to be made for flags that only the kernel's sockets have.
pub(super) fn sets_flags(fd: c_int, command: c_int, argument: *mut c_void) {
    let has = |flag: c_int| argument as usize & flag as usize != 0;
    if command != libc::F_SETFL {
        return;
    }
    if has(libc::O_ASYNC) {
        becomes_signal_driven(fd);
    }
    if has(libc::O_APPEND) {
        becomes_append_only(fd);
    }
}
