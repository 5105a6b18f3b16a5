//! Waking those who sleep in an instance, on behalf of the kernel, which knows nothing of rings.
//!
//! A change of the instance, or a thread that reads, may make ready what a sleeper waits for, with
//! no peer to notify. Then the kernel is asked for room of that socket, too, of which there always
//! is some: its event wakes one sleeper, as the kernel wakes one, and the sleeper finds by
//! [`Watches::translate`] and [`Watches::collect`] what there really is.

use std::os::fd::RawFd;

use super::{Registered, Watch, Watches};

impl Watches {
    /// A socket has been added or changed while others may sleep.
    pub(super) fn wake_if_ready(&mut self, epoll: RawFd, place: Option<usize>) {
        let Some(place) = place.filter(|_| self.sleep.is_anyone_asleep()) else { return };
        self.join_sleep(epoll, place);
        if let Some(watch) = self.places[place].as_mut()
            && watch.look(epoll, &mut self.names, true).events != 0
        {
            watch.wake_sleeper(epoll);
        }
    }

    /// A wait is over, and others sleep: wakes one of them if something is ready, be it what this
    /// one was reported, as the kernel does.
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

    /// Somebody has taken what sleepers may wait for, or has read what was announced.
    pub(super) fn recheck(&mut self, epoll: RawFd) {
        let is_anyone_asleep = self.sleep.is_anyone_asleep();
        for place in 0..self.places.len() {
            if let Some(watch) = self.places[place].as_mut()
                && watch.registered == Registered::Announced
                && !watch.holds_something()
            {
                watch.end_announcement(epoll, is_anyone_asleep);
                self.forget_if_over(place);
            }
        }
        if self.sleep.is_anyone_asleep() {
            self.end_tags();
            self.start_polling_all();
            self.pass_on(epoll);
            // Who sleeps for room sleeps not for ever.
            let wants = |it: &&mut Watch| it.is_polled && !it.is_woken && it.wants_room();
            if let Some(watch) = self.places.iter_mut().flatten().find(wants) {
                watch.wake_sleeper(epoll);
            }
        }
    }
}

impl Watch {
    /// What waits in memory is announced no longer. The mark for one who sleeps stays as long as
    /// anybody does: it would reach the program in a later wait.
    pub(super) fn end_announcement(&mut self, epoll: RawFd, is_anyone_asleep: bool) {
        self.is_woken &= is_anyone_asleep;
        self.register(epoll, Registered::Whole);
    }

    /// Has the kernel wake one who sleeps.
    fn wake_sleeper(&mut self, epoll: RawFd) {
        self.is_woken = true;
        self.register_again(epoll);
    }
}
