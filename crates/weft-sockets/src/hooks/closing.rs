//! Updates sockets, and the epoll instances that watch them, when a descriptor is closed.

use std::sync::atomic::Ordering;

use libc::c_int;

use crate::sockets::{self, Held, Kind};
use crate::{epoll, errno, identity, mode, open};

/// Prepares for the close of a descriptor.
pub(super) fn closing(fd: c_int) {
    if open::knows(fd) && !identity::is_borrowed() {
        closing_ours(fd);
    }
}

/// Prepares for the close of a known descriptor of this process, and not of a child that borrows
/// its memory.
pub(super) fn closing_ours(fd: c_int) {
    let before = errno::get();
    match sockets::remove(fd) {
        Some(held) => closing_socket(&held, fd),
        None => epoll::closing(fd),
    }
    errno::set_raw(before);
}

fn closing_socket(held: &Held, fd: c_int) {
    let last = held.descriptors() == 0;
    match &**held {
        Kind::Stream(stream) => {
            closing_watched(held, fd);
            if last && !mode::is_in_fallback() {
                stream.closing(fd);
            }
        }
        Kind::Datagram(datagram) => {
            closing_watched(held, fd);
            if last {
                datagram.closing(fd);
            }
        }
    }
}

/// Tells the epoll instances that watch the socket.
fn closing_watched(held: &Held, fd: c_int) {
    if held.watches().load(Ordering::Relaxed) == 0 {
        return;
    }
    if held.descriptors() == 0 {
        epoll::forget(held);
    } else if let Some(other) = another(held) {
        epoll::go_by(held, fd, other);
    }
}

/// Returns another descriptor of the same open file.
fn another(held: &Held) -> Option<c_int> {
    sockets::all().find(|&fd| sockets::find(fd).is_some_and(|other| other.is(held)))
}
