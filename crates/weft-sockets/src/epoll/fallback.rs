//! Instances that the kernel alone serves: instances that are watched themselves, by another
//! instance or by poll, because their waiters sleep in the kernel, which knows nothing of rings;
//! and instances that another process may have. Their sockets fall back to TCP, and the kernel has
//! them as the program has registered them.
//!
//! Data that waits in memory at that moment is *announced*: the kernel is also asked whether the
//! socket has room, which it has, and so wakes the instance's waiters. The bit is
//! [`super::foreign::WRITE_NORMAL`], which programs do not register for. The announcement ends when
//! everything has been read, or has been reported to a program that gets each edge once.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::carrier::{fall_back_to_tcp, fall_back_unread, kernel_control, may_hold_something};
use super::{Epoll, IN, Registered, Visibility, Watches, all};
use crate::descriptor::stays_open;
use crate::errno;
use crate::sockets::{Held, Kind};

/// Gives the sockets of an instance to the kernel, before the instance is passed to another process
/// (`SCM_RIGHTS`), which may wait in it.
pub(crate) fn hand_on(fd: RawFd) {
    if let Some(instance) = all::find(fd) {
        instance.become_kernels(Visibility::Shared);
    }
}

/// Gives the sockets of an instance to the kernel, because another instance or poll watches it.
pub(crate) fn nest(fd: RawFd) {
    if let Some(instance) = all::find(fd) {
        instance.become_kernels(Visibility::Nested);
    }
}

/// Gives the sockets of all instances to the kernel that a new program gets: those that stay open
/// across an exec, or all if it `may_copy` others.
pub(crate) fn hand_on_all(may_copy: bool) {
    for fd in all::within(0, u32::MAX) {
        if let Some(instance) = all::find(fd)
            && (may_copy || stays_open(fd))
        {
            // A child acts here for its parent, too, from which it has inherited the instance.
            instance.notice_sharing();
            instance.become_kernels(Visibility::Shared);
        }
    }
}

/// Executes `epoll_ctl(2)` for a known socket in an unknown instance, whose waiters are unknown,
/// too.
pub(super) fn control_unknown(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    socket: &Held,
    event: Option<epoll_event>,
) -> Option<c_int> {
    if event.is_none() || operation == libc::EPOLL_CTL_DEL || !may_hold_something(socket) {
        return None;
    }
    if !may_be_instance(epoll) {
        return None; // The kernel refuses the call.
    }
    let before = errno::get();
    fall_back_to_tcp(socket, fd);
    errno::set_raw(before);
    let has_unread = match &**socket {
        Kind::Stream(stream) => stream.link().is_some() && may_hold_something(socket),
        Kind::Datagram(_) => may_hold_something(socket),
    };
    if !has_unread || !is_instance(epoll) {
        return None;
    }
    // Data left in memory is reported to the threads that wait with this descriptor.
    let instance = all::take_over(epoll)?;
    instance.become_kernels(Visibility::Shared);
    Some(instance.lock().control(epoll, operation, Some(socket), fd, event))
}

/// Returns whether a descriptor may be an epoll instance. The kernel refuses this call, which
/// changes nothing, with different errors for an instance and for most other files.
fn may_be_instance(epoll: RawFd) -> bool {
    let before = errno::get();
    let failed = kernel_control(epoll, libc::EPOLL_CTL_DEL, epoll, None) != 0;
    let is_self = errno::get() == libc::EINVAL || errno::get() == libc::ENOENT;
    errno::set_raw(before);
    failed && is_self
}

/// Returns whether a possible instance is one.
fn is_instance(epoll: RawFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{epoll}"));
    link.is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
}

impl Epoll {
    pub(super) fn is_kernels(&self) -> bool {
        self.kernels.load(Ordering::Acquire)
    }

    /// Checks, before this process uses the instance, whether a child or the parent uses it, too.
    #[inline]
    pub(super) fn notice_sharing(&self) {
        if self.sharing.is_shared() {
            self.become_kernels(Visibility::Shared);
        }
    }

    fn become_kernels(&self, reach: Visibility) {
        if self.is_kernels() && (reach == Visibility::Nested || self.lock().reach == reach) {
            return;
        }
        let before = errno::get();
        let mut watches = self.lock();
        if self.sharing.is_used_by_others() {
            watches.follow_others(self.fd());
        }
        watches.fall_back(self.fd(), reach);
        if self.sharing.is_inherited() {
            watches.take_over(self.fd());
        }
        self.kernels.store(true, Ordering::Release);
        drop(watches);
        errno::set_raw(before);
    }
}

impl Watches {
    /// Returns whether another process may have the instance.
    pub(super) fn is_shared(&self) -> bool {
        self.reach == Visibility::Shared
    }

    /// Returns whether an event that the kernel has reported has been registered anew, so that it
    /// is reported once more, here or in another process. Resets the flag.
    pub(super) fn is_to_ask_again(&mut self) -> bool {
        std::mem::take(&mut self.is_reported_again) || self.is_shared()
    }

    /// Gives all watched sockets to the kernel.
    pub(super) fn fall_back(&mut self, epoll: RawFd, reach: Visibility) {
        self.reach = reach;
        self.close_pipe(epoll);
        let emptied = self.empty(epoll);
        for place in 0..self.places.len() {
            let Some(watch) = &mut self.places[place] else { continue };
            if watch.is_detached {
                self.delete_detached(epoll, place);
                continue;
            }
            let owes_edge = watch.owes_edge();
            if watch.is_edge_reported() {
                // Moved to the kernel it would be reported twice.
                fall_back_unread(&watch.socket, watch.fd);
            }
            if watch.is_disabled && watch.registered != Registered::Whole {
                // Otherwise the kernel would report bytes that are put back.
                watch.register(epoll, Registered::Whole);
            }
            fall_back_to_tcp(&watch.socket, watch.fd);
            if reach == Visibility::Shared {
                watch.remove_wakeup_fd(epoll, &mut self.names);
            }
            if emptied.is_none() && watch.is_edge_reported() {
                watch.register_if_known(epoll, Registered::Whole);
            }
            if owes_edge && watch.registered == Registered::Whole {
                // Otherwise the kernel would not report what was in memory.
                watch.register_again(epoll);
            }
            self.give_to_kernel(epoll, place);
        }
        if let Some(emptied) = emptied {
            self.refill(epoll, emptied);
        }
    }

    /// Has the kernel report a socket that has fallen back to TCP, and announce what still waits
    /// there.
    pub(super) fn give_to_kernel(&mut self, epoll: RawFd, place: usize) {
        let Some(watch) = &mut self.places[place] else { return };
        watch.is_kernels = true;
        watch.can_be_announced =
            self.reach == Visibility::Shared && may_hold_something(&watch.socket);
        let holds_something = watch.holds_something() && !watch.is_edge_reported();
        let announces = self.reach != Visibility::Own
            && watch.events & IN != 0
            && !watch.is_disabled
            && holds_something;
        let registered = if announces { Registered::Announced } else { Registered::Whole };
        if registered != watch.registered || watch.is_woken {
            watch.is_woken = false;
            watch.register(epoll, registered);
        }
        if holds_something && self.reach == Visibility::Own {
            self.wake_if_ready(epoll, Some(place));
        }
        self.forget_if_over(place, 0);
    }

    /// Does the same for an orphan, which the kernel does not change any more: another event wakes
    /// the sleepers.
    pub(super) fn pass_on_orphan(&mut self, epoll: RawFd, place: usize) {
        let Some(watch) = &self.places[place] else { return };
        if watch.holds_something() {
            self.start_polling(place);
            self.pass_on(epoll);
        }
    }
}
