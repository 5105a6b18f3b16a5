//! Wakes threads that sleep in an instance, where the kernel cannot know that it should.
//!
//! A change of the instance, or a thread that reads, may make a socket ready for a sleeper although
//! no peer notifies. Then the kernel is also asked for room of that socket, which it always has.
//! The event wakes one sleeper, as the kernel would, and the sleeper finds the true events by
//! [`Watches::translate`] and [`Watches::collect`].

use std::os::fd::RawFd;

use super::{Registered, Watch, Watches};

impl Watches {
    /// Wakes a sleeper if a socket that has just been added or changed is ready.
    pub(super) fn wake_if_ready(&mut self, epoll: RawFd, place: Option<usize>) {
        let Some(place) = place.filter(|_| self.sleep.is_anyone_asleep()) else { return };
        self.join_sleep(epoll, place);
        if let Some(watch) = self.places[place].as_mut()
            && watch.look(epoll, &mut self.names, true).events != 0
        {
            watch.wake_sleeper(epoll);
        }
    }

    /// Wakes another sleeper at the end of a wait if a socket is ready, even one that this wait has
    /// reported. The kernel does the same.
    pub(super) fn pass_on(&mut self, epoll: RawFd) {
        if !self.sleep.is_anyone_asleep() {
            return;
        }
        let Self { polled, places, names, .. } = self;
        for &place in polled.iter() {
            if let Some(watch) = places[place].as_mut()
                && watch.look(epoll, names, true).events != 0
            {
                watch.wake_sleeper(epoll);
                return;
            }
        }
    }

    /// Checks all sockets after a thread has taken an event that sleepers may wait for, or has read
    /// announced data.
    pub(super) fn recheck(&mut self, epoll: RawFd) {
        let is_anyone_asleep = self.sleep.is_anyone_asleep();
        for place in 0..self.places.len() {
            if let Some(watch) = self.places[place].as_mut()
                && watch.registered == Registered::Announced
                && !watch.holds_something()
            {
                watch.end_announcement(epoll, is_anyone_asleep);
                self.forget_if_over(place, 0);
            }
        }
        if self.sleep.is_anyone_asleep() {
            self.end_tags();
            self.start_polling_all();
            self.pass_on(epoll);
            // Writers that sleep without room must not sleep for ever.
            let wants = |it: &&mut Watch| it.is_polled && !it.is_woken && it.wants_room();
            if let Some(watch) = self.places.iter_mut().flatten().find(wants) {
                watch.wake_sleeper(epoll);
            }
        }
    }
}

impl Watch {
    /// Ends the announcement of data in memory. The wakeup mark stays while any thread sleeps,
    /// because its event would otherwise reach the program in a later wait.
    pub(super) fn end_announcement(&mut self, epoll: RawFd, is_anyone_asleep: bool) {
        self.is_woken &= is_anyone_asleep;
        self.register(epoll, Registered::Whole);
    }

    /// Has the kernel wake one sleeper.
    fn wake_sleeper(&mut self, epoll: RawFd) {
        self.is_woken = true;
        self.register_again(epoll);
    }
}
