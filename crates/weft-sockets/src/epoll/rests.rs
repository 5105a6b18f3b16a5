//! Instances of a process that is confined ([`crate::confine`]): the kernel tells everything, but
//! for bytes that are still to be read from memory.

use std::os::fd::RawFd;

use libc::{c_int, epoll_event};

use super::{EDGE, EXCLUSIVE, IN, ONESHOT, Watch, Watches, kernel_control};
use crate::stream::Stream;
use crate::table::{Held, Kind};

impl Watch {
    fn has_rest(&self) -> bool {
        matches!(&*self.socket, Kind::Stream(stream) if Stream::has_rest(stream))
    }
}

impl Watches {
    /// Gives the kernel what the program has asked for. What has a rest stays.
    pub(super) fn surrender(&mut self, epoll: RawFd) {
        for place in 0..self.places.len() {
            let Some(watch) = &self.places[place] else { continue };
            let events = if watch.spent { ONESHOT } else { watch.events };
            let theirs = Some(epoll_event { events, u64: watch.data });
            if watch.dormant || watch.events & EXCLUSIVE != 0 {
                kernel_control(epoll, libc::EPOLL_CTL_DEL, watch.via, None);
            }
            if watch.events & EXCLUSIVE != 0 && !watch.dormant {
                kernel_control(epoll, libc::EPOLL_CTL_ADD, watch.via, theirs);
            } else if !watch.dormant {
                kernel_control(epoll, libc::EPOLL_CTL_MOD, watch.via, theirs);
            }
            if watch.dormant || !watch.has_rest() {
                self.remove(place);
            }
        }
    }

    /// The program waits for something else of a socket, or for nothing.
    pub(super) fn change_rest(&mut self, socket: &Held, fd: RawFd, event: Option<epoll_event>) {
        match (self.find(socket, fd), event) {
            (Some(place), None) => self.remove(place),
            (Some(place), Some(event)) => {
                self.places[place].iter_mut().for_each(|watch| watch.wait_for(event));
            }
            (None, _) => {}
        }
    }

    /// What there is to read from memory. `None`: nothing; the kernel is to be asked.
    pub(super) fn tell_rests(&mut self, events: &mut [epoll_event]) -> Option<c_int> {
        let wanted =
            |watch: &&mut Watch| watch.events & IN != 0 && !watch.spent && watch.has_rest();
        let mut found = 0;
        for (watch, event) in self.places.iter_mut().flatten().filter(wanted).zip(events) {
            *event = epoll_event { events: IN, u64: watch.data };
            watch.spent = watch.events & (EDGE | ONESHOT) != 0; // Until it is asked for again.
            found += 1;
        }
        (found > 0).then_some(found)
    }
}
