//! Instances that are the kernel's alone: those that are watched themselves, by another instance or
//! by poll, for who waits for them sleeps in the kernel, which knows nothing of rings; and those
//! that another process may have. What they watch falls back to TCP, and the kernel has it as the
//! program has registered it.
//!
//! What waits in memory at that moment is *announced*: the kernel is asked whether the socket has
//! room, too, which it has, and so wakes who waits for the instance; by
//! [`super::foreign::WRITE_NORMAL`], which no program takes for what it asked for. That ends when
//! everything has been read, or has been reported to a program that gets each edge once.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::carrier::{kernel_control, leave, leave_unread, may_hold_something};
use super::{Epoll, IN, Reach, Registered, Watches, all};
use crate::descriptor::stays_open;
use crate::errno;
use crate::sockets::{Held, Kind};

/// An instance is about to be given to another process (`SCM_RIGHTS`), which may wait in it: all
/// that it watches is on TCP before.
pub(crate) fn hand_on(fd: RawFd) {
    if let Some(instance) = all::find(fd) {
        instance.become_kernels(Reach::Shared);
    }
}

/// An instance is watched itself from here on, by another one or by poll.
pub(crate) fn nest(fd: RawFd) {
    if let Some(instance) = all::find(fd) {
        instance.become_kernels(Reach::Nested);
    }
}

/// The same for all that a program gets which this process becomes, or starts: those that stay
/// open, or, if it may get copies of others, any.
pub(crate) fn hand_on_all(may_copy: bool) {
    for fd in all::within(0, u32::MAX) {
        if let Some(instance) = all::find(fd)
            && (may_copy || stays_open(fd))
        {
            // A child that inherited it does so on behalf of its parent, too.
            instance.notice_sharing();
            instance.become_kernels(Reach::Shared);
        }
    }
}

/// `epoll_ctl(2)` for a socket of ours in an instance that is not known: who waits in it is not
/// known either.
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
        return None; // The kernel refuses the call, and nothing changes.
    }
    let before = errno::get();
    leave(socket, fd);
    errno::set_raw(before);
    let has_rest = match &**socket {
        Kind::Stream(stream) => stream.link().is_some() && may_hold_something(socket),
        Kind::Datagram(_) => may_hold_something(socket),
    };
    if !has_rest || !is_instance(epoll) {
        return None;
    }
    // What is left in memory is reported to those who wait by this descriptor.
    let instance = all::take_over(epoll)?;
    instance.become_kernels(Reach::Shared);
    Some(instance.lock().control(epoll, operation, Some(socket), fd, event))
}

/// Whether a descriptor may be an epoll instance: for many others the kernel refuses a call that
/// changes nothing with an error that it has for none.
fn may_be_instance(epoll: RawFd) -> bool {
    let before = errno::get();
    let failed = kernel_control(epoll, libc::EPOLL_CTL_DEL, epoll, None) != 0;
    let is_self = errno::get() == libc::EINVAL || errno::get() == libc::ENOENT;
    errno::set_raw(before);
    failed && is_self
}

/// Whether one that may be an instance is one.
fn is_instance(epoll: RawFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{epoll}"));
    link.is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
}

impl Epoll {
    pub(super) fn is_kernels(&self) -> bool {
        self.kernels.load(Ordering::Acquire)
    }

    /// This process is about to use it, which it may share with a child or with its parent.
    #[inline]
    pub(super) fn notice_sharing(&self) {
        if self.sharing.is_shared() {
            self.become_kernels(Reach::Shared);
        }
    }

    fn become_kernels(&self, reach: Reach) {
        if self.is_kernels() && (reach == Reach::Nested || self.lock().reach == reach) {
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
    /// Another process may have the instance.
    pub(super) fn is_shared(&self) -> bool {
        self.reach == Reach::Shared
    }

    /// Whether something that the kernel has reported has been registered otherwise, so that it is
    /// reported once more, here or by another process.
    pub(super) fn is_to_ask_again(&mut self) -> bool {
        std::mem::take(&mut self.is_reported_again) || self.is_shared()
    }

    /// All that is watched is the kernel's.
    pub(super) fn fall_back(&mut self, epoll: RawFd, reach: Reach) {
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
                leave_unread(&watch.socket, watch.fd); // It would be reported once more.
            }
            leave(&watch.socket, watch.fd);
            if reach == Reach::Shared {
                watch.remove_wakeup_fd(epoll, &mut self.names);
            }
            if emptied.is_none() && watch.is_edge_reported() {
                watch.register_if_known(epoll, Registered::Whole);
            }
            if owes_edge && watch.registered == Registered::Whole {
                watch.register_again(epoll); // Else it would tell of nothing that memory has had.
            }
            self.give_to_kernel(epoll, place);
        }
        if let Some(emptied) = emptied {
            self.refill(epoll, emptied);
        }
    }

    /// The kernel tells what the program waits for of a socket that has left memory, and what waits
    /// there still.
    pub(super) fn give_to_kernel(&mut self, epoll: RawFd, place: usize) {
        let Some(watch) = &mut self.places[place] else { return };
        watch.is_kernels = true;
        let holds_something = watch.holds_something() && !watch.is_edge_reported();
        let announces = self.reach != Reach::Own
            && watch.events & IN != 0
            && !watch.is_disabled
            && holds_something;
        let registered = if announces { Registered::Announced } else { Registered::Whole };
        if registered != watch.registered || watch.is_woken {
            watch.is_woken = false;
            watch.register(epoll, registered);
        }
        if holds_something && self.reach == Reach::Own {
            self.wake_if_ready(epoll, Some(place));
        }
        self.forget_if_over(place);
    }

    /// The same for one that the kernel changes no more: who sleeps is woken by another.
    pub(super) fn pass_on_orphan(&mut self, epoll: RawFd, place: usize) {
        let Some(watch) = &self.places[place] else { return };
        if watch.holds_something() {
            self.start_polling(place);
            self.pass_on(epoll);
        }
    }
}
