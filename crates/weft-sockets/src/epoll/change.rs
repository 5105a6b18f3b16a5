//! `epoll_ctl(2)`: adds, changes and deletes watches.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use weft_sys::calls::io::Errno;

use super::carrier::{fall_back_to_tcp, kernel_control, may_hold_something};
use super::foreign;
use super::{EXCLUSIVE, Registered, Visibility, Watch, Watches};
use crate::errno;
use crate::sockets::Held;

/// Returns whether only the kernel can serve a watch for these events: a one-shot for
/// `EPOLLRDNORM`, too, by which Weft marks its own registrations ([`foreign::mark`]).
fn is_for_kernel(events: u32) -> bool {
    events & EXCLUSIVE != 0 || events & foreign::mark(events) != 0
}

impl Watches {
    /// Executes `epoll_ctl(2)`, in this table and in the kernel. `socket` is the descriptor's
    /// socket, if it is known.
    pub(super) fn control(
        &mut self,
        epoll: RawFd,
        operation: c_int,
        socket: Option<&Held>,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> c_int {
        let known = socket.and_then(|socket| self.find(socket, fd));
        if let Some(result) = self.control_here(operation, event, known) {
            if result == 0 && operation != libc::EPOLL_CTL_DEL {
                self.wake_if_ready(epoll, known);
            }
            return result;
        }
        let result = match (operation, event) {
            (libc::EPOLL_CTL_ADD, Some(event)) => self.add(epoll, socket, fd, event, known),
            (libc::EPOLL_CTL_MOD, Some(event)) => self.modify(epoll, fd, event, known),
            (libc::EPOLL_CTL_DEL, _) => self.delete(epoll, fd, event, known),
            _ => return kernel_control(epoll, operation, fd, event),
        };
        if result == 0 && operation != libc::EPOLL_CTL_DEL && self.sleep.is_anyone_asleep() {
            let place = socket.and_then(|socket| self.find(socket, fd));
            self.wake_if_ready(epoll, place);
        }
        result
    }

    /// Executes a change without a system call, if the kernel watches the socket for changes alone,
    /// which does not depend on what the program waits for.
    fn control_here(
        &mut self,
        operation: c_int,
        event: Option<epoll_event>,
        known: Option<usize>,
    ) -> Option<c_int> {
        let place = known?;
        let watch = self.places[place].as_mut()?;
        if watch.registered != Registered::Changes || watch.is_kernels || watch.is_orphan {
            return None;
        }
        watch.is_exposed = self.is_exposed; // A child does not see this change.
        match operation {
            libc::EPOLL_CTL_ADD if !watch.is_detached => Some(errno::fail(Errno::EXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if watch.is_detached => {
                Some(errno::fail(Errno::NOENT))
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = event?;
                if is_for_kernel(event.events)
                    || event.u64 != watch.data
                    || watch.changes(event.events) != watch.changes(watch.asked())
                {
                    return None;
                }
                watch.wait_for(event);
                self.start_polling(place);
                Some(0)
            }
            // The kernel would go on to report errors and the end to a child.
            libc::EPOLL_CTL_DEL if watch.is_exposed => None,
            libc::EPOLL_CTL_DEL => {
                self.detach(place);
                Some(0)
            }
            _ => None,
        }
    }

    fn add(
        &mut self,
        epoll: RawFd,
        socket: Option<&Held>,
        fd: RawFd,
        event: epoll_event,
        known: Option<usize>,
    ) -> c_int {
        if let Some(place) = known
            && self.is_detached(place)
        {
            if let Some(result) = self.attach(epoll, place, event) {
                return result;
            }
            self.delete_detached(epoll, place); // The new registration differs from the kept one.
        }
        let is_ambiguous = known.is_none_or(|place| self.places[place].is_none())
            && self.is_ambiguous(epoll, fd, event.u64);
        let is_kernels =
            is_ambiguous || is_for_kernel(event.events) || self.reach != Visibility::Own;
        if let Some(socket) = socket
            && is_kernels
        {
            fall_back_to_tcp(socket, fd);
        }
        let result = kernel_control(epoll, libc::EPOLL_CTL_ADD, fd, Some(event));
        if result != 0 {
            return result;
        }
        known.into_iter().for_each(|place| self.remove(place)); // The entry was deleted unseen.
        self.names.add(fd, event.u64);
        if let Some(socket) = socket
            && may_hold_something(socket)
        {
            let place = self.place();
            socket.watches().fetch_add(1, Ordering::Relaxed);
            let mut watch = Watch::new(socket.again(), fd, place);
            watch.is_exposed = self.is_exposed;
            watch.wait_for(event);
            watch.is_kernels = is_kernels;
            self.places[place] = Some(watch);
            self.by_fd.insert(fd, place);
            self.start_polling(place);
            if is_kernels {
                self.give_to_kernel(epoll, place);
            }
        }
        result
    }

    /// Adds again a watch that the program has deleted and the kernel still has, perhaps with other
    /// data. `None`: not possible.
    fn attach(&mut self, epoll: RawFd, place: usize, event: epoll_event) -> Option<c_int> {
        let watch = self.places[place].as_ref()?;
        let (fd, old) = (watch.fd, watch.data);
        let stays = watch.registered == Registered::Changes
            && !is_for_kernel(event.events)
            && self.reach == Visibility::Own;
        if !stays || (event.u64 != old && self.is_ambiguous(epoll, fd, event.u64)) {
            return None;
        }
        let watch = self.places[place].as_mut()?;
        watch.wait_for(event);
        let before = errno::get();
        watch.register_again(epoll);
        errno::set_raw(before);
        if event.u64 != old {
            self.names.add(fd, event.u64);
            self.names.retire(old);
        }
        self.start_polling(place);
        Some(0)
    }

    fn modify(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        event: epoll_event,
        known: Option<usize>,
    ) -> c_int {
        let is_other = self.names.fd(event.u64) != Some(fd);
        let is_ambiguous = is_other && self.is_ambiguous(epoll, fd, event.u64);
        let result = kernel_control(epoll, libc::EPOLL_CTL_MOD, fd, Some(event));
        if result != 0 {
            return result;
        }
        if is_other {
            self.names.add(fd, event.u64);
        }
        let Some(place) = known else { return result };
        if is_other && let Some(watch) = &self.places[place] {
            self.names.retire(watch.data);
        }
        if let Some(watch) = self.places[place].as_mut() {
            watch.set_registered(Registered::Whole);
            watch.is_woken = false;
            watch.wait_for(event);
            if is_ambiguous || is_for_kernel(event.events) {
                fall_back_to_tcp(&watch.socket, fd);
                watch.is_kernels = true;
            }
            let is_kernels = watch.is_kernels;
            self.start_polling(place);
            if is_kernels {
                self.give_to_kernel(epoll, place);
            }
        }
        result
    }

    fn delete(
        &mut self,
        epoll: RawFd,
        fd: RawFd,
        event: Option<epoll_event>,
        known: Option<usize>,
    ) -> c_int {
        let result = kernel_control(epoll, libc::EPOLL_CTL_DEL, fd, event);
        if result == 0 {
            known.into_iter().for_each(|place| self.remove(place));
            self.names.remove(fd);
        }
        result
    }

    /// Deletes a watch that the kernel keeps.
    fn detach(&mut self, place: usize) {
        let Some(watch) = self.places[place].as_mut() else { return };
        watch.disarm();
        watch.is_detached = true;
        self.stop_polling(place);
    }

    pub(super) fn is_detached(&self, place: usize) -> bool {
        self.places[place].as_ref().is_some_and(|watch| watch.is_detached)
    }

    /// Deletes all detached watches in the kernel, because a child may get the instance; from here
    /// on the kernel deletes at once.
    pub(super) fn delete_all_detached(&mut self, epoll: RawFd) {
        for place in 0..self.places.len() {
            if self.is_detached(place) {
                self.delete_detached(epoll, place);
            }
        }
    }

    /// Deletes a detached watch in the kernel, too.
    pub(super) fn delete_detached(&mut self, epoll: RawFd, place: usize) {
        let Some(watch) = &self.places[place] else { return };
        let fd = watch.fd;
        let before = errno::get();
        kernel_control(epoll, libc::EPOLL_CTL_DEL, fd, None);
        errno::set_raw(before);
        self.remove(place);
        self.names.remove(fd);
    }
}
