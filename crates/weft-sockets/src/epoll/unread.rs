//! Instances of a process that has given up system calls ([`crate::seccomp_fallback`]). The kernel
//! reports everything except bytes that are still unread in memory.

use std::os::fd::RawFd;

use libc::{c_int, epoll_event};

use super::{EDGE, IN, ONESHOT, Registered, Watch, Watches};
use crate::sockets::{Held, Kind};
use crate::stream::Stream;

impl Watch {
    fn has_unread(&self) -> bool {
        matches!(&*self.socket, Kind::Stream(stream) if Stream::has_unread(stream))
    }
}

impl Watches {
    /// Gives all sockets to the kernel as the program has registered them. Those with unread data
    /// stay, and those of which a waiting thread may have an event.
    pub(super) fn enter_fallback(&mut self, epoll: RawFd) {
        self.close_pipe(epoll);
        for place in 0..self.places.len() {
            let Some(watch) = &mut self.places[place] else { continue };
            if watch.is_detached {
                self.delete_detached(epoll, place);
                continue;
            }
            watch.is_woken = false;
            watch.register(epoll, Registered::Whole);
            if !watch.has_unread() && self.sleep.waiting() == 0 {
                self.remove(place);
            }
        }
    }

    /// Changes the events that the program waits for, or deletes the socket.
    pub(super) fn update_unread(&mut self, socket: &Held, fd: RawFd, event: Option<epoll_event>) {
        match (self.find(socket, fd), event) {
            (Some(place), None) => self.remove(place),
            (Some(place), Some(event)) => {
                self.places[place].iter_mut().for_each(|watch| watch.wait_for(event));
            }
            (None, _) => {}
        }
    }

    /// Reports unread data in memory. `None`: there is none, and the kernel is to be asked.
    pub(super) fn report_unread(&mut self, events: &mut [epoll_event]) -> Option<c_int> {
        let wanted =
            |watch: &&mut Watch| watch.events & IN != 0 && !watch.is_disabled && watch.has_unread();
        let mut found = 0;
        for (watch, event) in self.places.iter_mut().flatten().filter(wanted).zip(events) {
            *event = epoll_event { events: IN, u64: watch.data };
            // Until the program arms it again.
            watch.is_disabled = watch.events & (EDGE | ONESHOT) != 0;
            found += 1;
        }
        (found > 0).then_some(found)
    }
}
