//! The fallback of a process that gives up system calls (seccomp(2)): it would be killed for one of
//! Weft's. Before it does so everything returns to the kernel, and from then on the hooks only call
//! the next library's function. One exception: unread bytes in memory are still read from there,
//! which takes no system call.

use std::io::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_stream::inheritance;

use crate::datagram::DatagramReason;
use crate::handover::Own;
use crate::reason::{self, Reason};
use crate::sockets::{self, Kind};
use crate::{by_hand, epoll, errno, identity, mode, remote, shared_files};

/// Enters the fallback, before the program gives up any system call.
pub(crate) fn enter() {
    enter_for(Reason::Seccomp);
    mode::give_up_calls();
}

/// Enters the fallback for another reason.
pub(crate) fn enter_for(why: Reason) {
    let before = errno::get();
    leave_all(why); // Counting the reason needs the registry.
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

/// Keeps all connections of this process on TCP from here on, because it uses something that can
/// reach them unseen. With `WEFT_LOG=info` one line says why.
#[cold]
pub(crate) fn keep_on_tcp(why: &str) {
    if !mode::enabled() || identity::is_borrowed() {
        return;
    }
    reason::write_with(|line| write!(line, "all connections of this process: tcp, {why}"));
    enter_for(Reason::ByHand);
}

/// Has every connection fall back to TCP.
pub(crate) fn leave_all(why: Reason) {
    if !mode::enabled() {
        return;
    }
    inheritance::leave_all(&Own, why);
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref() {
            datagram.fall_back_to_udp(DatagramReason::Seccomp);
        }
    }
}

/// Forgets a socket without unread data in memory.
pub(crate) fn release(fd: RawFd) {
    let Some(held) = sockets::find(fd) else { return };
    if let Kind::Stream(stream) = &*held {
        stream.disown_remote();
    }
    match &*held {
        Kind::Stream(stream) if stream.has_unread() => stream.enter_fallback(fd),
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
