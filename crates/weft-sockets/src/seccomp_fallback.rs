//! A process that gives up system calls (seccomp(2)) would be killed for one of ours. So when it is
//! about to, everything goes back to the kernel, and the hooks do nothing from then on but call the
//! next library's function; except that bytes which have come into memory, and have not been read,
//! are read from there, which takes no system call.

use std::io::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_stream::inheritance;

use crate::datagram::Why;
use crate::handover::Own;
use crate::reason::{self, Reason};
use crate::sockets::{self, Kind};
use crate::{by_hand, epoll, errno, identity, mode, remote, shared_files};

/// To be called before the program gives up any system call.
pub(crate) fn enter() {
    enter_for(Reason::Seccomp);
    mode::give_up_calls();
}

/// The same for another reason.
pub(crate) fn enter_for(why: Reason) {
    let before = errno::get();
    leave_all(why); // While the reason can still be counted.
    by_hand::give_up();
    if mode::enter_fallback() {
        weft_sys::never_defer();
        epoll::enter_fallback();
        sockets::all().for_each(release);
        remote::stop();
        shared_files::leave();
    }
    errno::set_raw(before);
}

/// From here on all connections of this process are the kernel's: something is used that can reach
/// them unseen. With `WEFT_LOG=info` one line says why.
#[cold]
pub(crate) fn keep_on_tcp(why: &str) {
    if !mode::enabled() || identity::is_borrowed() {
        return;
    }
    reason::write_with(|line| write!(line, "all connections of this process: tcp, {why}"));
    enter_for(Reason::ByHand);
}

/// Has every connection go on over TCP.
pub(crate) fn leave_all(why: Reason) {
    if !mode::enabled() {
        return;
    }
    inheritance::leave_all(&Own, why);
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref() {
            datagram.leave(Why::Seccomp);
        }
    }
}

/// Forgets a socket of which nothing is left to be read.
pub(crate) fn release(fd: RawFd) {
    let Some(held) = sockets::find(fd) else { return };
    if let Kind::Stream(stream) = &*held {
        stream.disown_remote();
    }
    match &*held {
        Kind::Stream(stream) if stream.has_rest() => stream.enter_fallback(fd),
        Kind::Stream(stream) => {
            stream.enter_fallback(fd);
            drop(sockets::remove(fd));
            if held.descriptors() == 0 {
                stream.let_go();
            }
        }
        Kind::Datagram(datagram) => {
            drop(sockets::remove(fd));
            if held.descriptors() == 0 && datagram.watches().load(Ordering::Relaxed) == 0 {
                datagram.closing(fd);
            }
        }
    }
}
