//! `epoll_ctl(2)` and `epoll_wait(2)` for known instances and sockets.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::all;
use super::carrier::fall_back_to_tcp;
use super::fallback::{control_unknown, nest};
use super::waiting::{self, Sleep};
use crate::{mode, sockets};

/// Executes `epoll_ctl(2)` for a known instance or socket. `None`: the kernel is to do it.
pub(crate) fn control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Option<c_int> {
    let socket = sockets::find(fd);
    if !mode::is_in_fallback() {
        nest(fd);
    }
    let Some(instance) = all::find(epoll) else {
        return control_unknown(epoll, operation, fd, &socket?, event);
    };
    if mode::is_in_fallback() {
        instance.lock().update_unread(&socket?, fd, event);
        return None;
    }
    instance.notice_sharing();
    let mut watches = instance.lock();
    if operation == libc::EPOLL_CTL_ADD
        && let Some(socket) = &socket
    {
        let elsewhere = socket.watches().load(Ordering::Relaxed) > 0;
        if instance.is_kernels() || (elsewhere && !watches.has(socket, fd)) {
            drop(watches);
            fall_back_to_tcp(socket, fd);
            watches = instance.lock();
        }
    }
    let result = watches.control(epoll, operation, socket.as_ref(), fd, event);
    drop(watches);
    instance.notice_sharing(); // A child may have begun to use the instance meanwhile.
    Some(result)
}

/// Executes `epoll_wait(2)`. `None`: the instance is unknown, and the kernel is to do it. `sleep`
/// is the kernel's wait with a timeout in milliseconds.
pub(crate) fn wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    sleep: &mut Sleep<'_>,
) -> Option<c_int> {
    let instance = all::find(epoll)?;
    if events.is_empty() {
        return None;
    }
    if mode::is_in_fallback() {
        return instance.lock().report_unread(events);
    }
    instance.notice_sharing();
    Some(waiting::wait(&instance, events, timeout_ns, sleep))
}
