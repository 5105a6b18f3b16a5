//! `epoll_ctl(2)` and `epoll_wait(2)` for known instances and sockets.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::all;
use super::carrier::leave;
use super::fallback::{control_unknown, nest};
use super::waiting::{Sleep, Waiting};
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
    if operation == libc::EPOLL_CTL_ADD
        && let Some(socket) = &socket
    {
        let elsewhere = socket.watches().load(Ordering::Relaxed) > 0;
        if instance.is_kernels() || (elsewhere && !instance.lock().has(socket, fd)) {
            leave(socket, fd);
        }
    }
    let result = instance.lock().control(epoll, operation, socket.as_ref(), fd, event);
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
    Some(Waiting::new(&instance, sleep).wait(events, timeout_ns))
}
