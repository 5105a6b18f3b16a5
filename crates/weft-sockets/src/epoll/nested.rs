//! An instance that is watched itself, by another one or by poll. Who waits for it sleeps in the
//! kernel, which knows nothing of rings: what it watches goes back to the kernel.
//!
//! What waits in memory at that moment is *announced*: the kernel is asked whether the socket has
//! room, too, which it has, and so wakes who waits for the instance. That ends when everything has
//! been read, or has been told to a program that is told once.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::epoll_event;

use super::{
    ALL, EDGE, Epoll, IN, ONESHOT, OUT, Watch, Watches, kernel_change, kernel_control, leave, mark,
};
use crate::errno;
use crate::stream::borrow;
use crate::table::{self, Held, Kind};

impl Epoll {
    /// It is watched itself from here on.
    pub(crate) fn nest(&self, epoll: RawFd) {
        if !self.nested.swap(true, Ordering::AcqRel) {
            let before = errno::get();
            self.watches.lock().nest(epoll);
            errno::set_raw(before);
        }
    }

    pub(super) fn is_nested(&self) -> bool {
        self.nested.load(Ordering::Relaxed)
    }
}

impl Watches {
    fn nest(&mut self, epoll: RawFd) {
        for place in 0..self.places.len() {
            let Some(watch) = &mut self.places[place] else { continue };
            leave(&watch.socket, watch.via);
            if watch.dormant {
                kernel_control(epoll, libc::EPOLL_CTL_DEL, watch.via, None);
                self.remove(place);
            } else {
                watch.give_to_kernel(epoll);
            }
        }
    }

    /// A socket that has been added or changed is the kernel's, too.
    pub(super) fn announce(&mut self, epoll: RawFd, socket: &Held, fd: RawFd) {
        let place = self.find(socket, fd);
        if let Some(watch) = place.and_then(|place| self.places[place].as_mut()) {
            watch.forget_announcement(); // The kernel has been asked for other events.
            watch.give_to_kernel(epoll);
        }
    }

    /// Nothing waits in memory any more.
    fn withdraw(&mut self, epoll: RawFd, socket: &Held) {
        let watches = self.places.iter_mut().flatten();
        watches.filter(|watch| watch.socket.is(socket)).for_each(|watch| watch.withdraw(epoll));
    }
}

impl Watch {
    /// The kernel tells what the program waits for, and what waits in memory.
    fn give_to_kernel(&mut self, epoll: RawFd) {
        if let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.link()
        {
            end.hush(borrow(self.via)); // No bell is to be told for data.
        }
        let announces = self.events & IN != 0 && !self.spent && self.holds_something();
        if announces {
            self.announced = true;
            announcements(&self.socket).inspect(|count| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        if announces || self.converted || self.muted {
            (self.converted, self.muted) = (false, false);
            self.ask(epoll, if announces { self.events | OUT } else { self.events });
        }
    }

    /// Ends an announcement: everything has been read.
    pub(super) fn withdraw(&mut self, epoll: RawFd) {
        if self.forget_announcement() {
            self.ask(epoll, if self.spent { ONESHOT } else { self.events });
        }
    }

    /// Ends an announcement to one that is told once, and has been.
    pub(super) fn withdraw_told(&mut self, epoll: RawFd) {
        if self.announced && self.events & (EDGE | ONESHOT) != 0 {
            self.withdraw(epoll);
        }
    }

    /// The kernel is not asked for an announcement any more. Returns whether it was.
    pub(super) fn forget_announcement(&mut self) -> bool {
        let was = std::mem::take(&mut self.announced);
        if was && let Some(count) = announcements(&self.socket) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }

    pub(super) fn holds_something(&self) -> bool {
        match &*self.socket {
            Kind::Stream(stream) => stream.link().is_some_and(|end| end.seen() > 0),
            Kind::Datagram(datagram) => datagram.known_inbox().is_some_and(|it| !it.is_empty()),
            Kind::Epoll(_) => false,
        }
    }

    fn ask(&self, epoll: RawFd, events: u32) {
        let marked = epoll_event { events, u64: mark(self.place, self.counter) };
        let before = errno::get();
        kernel_change(epoll, self.via, marked);
        errno::set_raw(before);
    }
}

/// How many instances announce a socket.
fn announcements(socket: &Held) -> Option<&AtomicU32> {
    match &**socket {
        Kind::Stream(stream) => Some(stream.announced()),
        Kind::Datagram(datagram) => Some(datagram.announced()),
        Kind::Epoll(_) => None,
    }
}

/// The last of what waited in memory, and was announced, has been read from a socket.
#[cold]
pub(crate) fn read_out(fd: RawFd) {
    let Some(socket) = table::find(fd) else { return };
    // A signal's handler may have interrupted who has a lock: then the next wait withdraws it.
    let Some(all) = ALL.try_lock() else { return };
    for &epoll in all.iter() {
        if let Some(Kind::Epoll(instance)) = table::find(epoll).as_deref()
            && let Some(mut watches) = instance.watches.try_lock()
        {
            watches.withdraw(epoll, &socket);
        }
    }
}
