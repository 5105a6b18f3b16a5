//! The sockets that an instance watches.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use rustix::io::Errno;
use weft_stream::Carrier;

use super::watch::convert;
use super::{
    BELLS_TAKEN, DOORBELL, ERR_HUP, EXCLUSIVE, IDLE_LOOKS_MAX, IN, ONESHOT, OUT, PLACE_BITS, RDHUP,
    Watches, changes, watch_count,
};
use crate::errno;
use crate::stream::borrow;
use crate::table::{Held, Kind};

impl Watches {
    /// Whether a socket is among those watched, by whichever descriptor.
    pub(super) fn has(&self, socket: &Held) -> bool {
        self.place_of(socket).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_fd.is_empty()
    }

    /// What needs no system call: the kernel has the socket for changes alone, whatever the program
    /// waits for.
    pub(super) fn control_here(
        &mut self,
        operation: c_int,
        event: Option<epoll_event>,
        known: Option<usize>,
    ) -> Option<c_int> {
        let place = known?;
        let watch = self.places[place].as_mut().filter(|watch| watch.converted)?;
        let exclusive = |events: u32| events & EXCLUSIVE != 0;
        match operation {
            libc::EPOLL_CTL_ADD if !watch.dormant => Some(errno::fail(Errno::EXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if watch.dormant => {
                Some(errno::fail(Errno::NOENT))
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = event?;
                if exclusive(event.events)
                    || exclusive(watch.events)
                    || changes(event.events) != changes(watch.events)
                {
                    return None;
                }
                watch.wait_for(event);
                self.heat(place);
                Some(0)
            }
            libc::EPOLL_CTL_DEL if !exclusive(watch.events) => {
                watch.disarm();
                watch.dormant = true;
                watch.is_hot = false;
                self.hot.retain(|&hot| hot != place);
                Some(0)
            }
            _ => None,
        }
    }

    pub(super) fn find(&self, socket: &Held, fd: RawFd) -> Option<usize> {
        let place = *self.by_fd.get(&fd)?;
        let watch = self.places.get(place)?.as_ref()?;
        watch.socket.is(socket).then_some(place)
    }

    pub(super) fn is_dormant(&self, place: usize) -> bool {
        self.places[place].as_ref().is_some_and(|watch| watch.dormant)
    }

    pub(super) fn place_of(&self, socket: &Held) -> Option<usize> {
        self.places.iter().flatten().find(|watch| watch.socket.is(socket)).map(|watch| watch.place)
    }

    /// A free place.
    pub(super) fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        })
    }

    pub(super) fn remove(&mut self, place: usize) {
        let Some(mut watch) = self.places.get_mut(place).and_then(Option::take) else { return };
        watch.disarm();
        watch.forget_announcement();
        if let Some(count) = watch_count(&watch.socket) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if self.by_fd.get(&watch.fd) == Some(&place) {
            self.by_fd.remove(&watch.fd);
        }
        self.free.push(place);
        self.hot.retain(|&hot| hot != place);
    }

    /// Makes a socket one that is looked at.
    pub(super) fn heat(&mut self, place: usize) {
        let Some(watch) = self.places[place].as_mut() else { return };
        watch.disarm();
        watch.idle_looks = 0;
        watch.idle_sleeps = 0;
        if !watch.is_hot {
            watch.is_hot = true;
            self.hot.push(place);
        }
    }

    pub(super) fn heat_all(&mut self) {
        for place in 0..self.places.len() {
            if self.places[place].as_ref().is_some_and(|watch| !watch.is_hot && !watch.dormant) {
                self.heat(place);
            }
        }
    }

    /// An event of the kernel's for a socket of ours, as the program is to see it; `None` if it is
    /// not to be told of, or together with what the rings have: by [`Watches::collect`].
    pub(super) fn told(
        &mut self,
        epoll: RawFd,
        event: epoll_event,
        round: u64,
    ) -> Option<epoll_event> {
        let place = usize::try_from(event.u64 & (DOORBELL - 1)).ok()?;
        let counter = (event.u64 >> PLACE_BITS & u64::from(u16::MAX)) as u16;
        let watch = self.places.get_mut(place)?.as_mut().filter(|w| w.counter == counter)?;
        if watch.announced && !watch.holds_something() {
            watch.withdraw(epoll); // Another process has read it. The rest is told again.
            return None;
        }
        if let Kind::Datagram(_) = &*watch.socket {
            return self.told_of_datagrams(place, event, round);
        }
        if event.u64 & DOORBELL != 0 {
            if !watch.dormant {
                self.heat(place);
            }
            return None;
        }
        let Kind::Stream(stream) = &*watch.socket else { return None };
        if stream.link().is_none() {
            let _ = stream.by(watch.via); // The connection may just have been made.
        }
        let Some(end) = stream.link() else {
            return Some(epoll_event { events: event.events, u64: watch.data });
        };
        end.advance(borrow(watch.via));
        if watch.dormant {
            stream.settle(watch.via, event.events);
            return None;
        }
        let mut ours = 0;
        if end.carrier_in() == Carrier::Memory {
            stream.settle(watch.via, event.events);
            ours |= IN | RDHUP;
        }
        if end.carrier_out() == Carrier::Memory {
            ours |= OUT;
        }
        if ours == 0 {
            if watch.converted || watch.muted {
                // The connection has gone back to TCP: the kernel tells again what is asked.
                (watch.converted, watch.muted) = (false, false);
                convert(epoll, watch, watch.events);
                return None;
            }
            // What the program reads now may be the last that comes over TCP, and a bell with it.
            watch.withhold(event.events, round);
            self.heat(place);
            return None;
        }
        // The rest is told by looking at the rings.
        let rest = event.events & !ours & !ERR_HUP & watch.events;
        if !watch.converted && !watch.muted && !watch.spent && event.events & ours & OUT != 0 {
            watch.muted = true;
            convert(epoll, watch, watch.events & !OUT);
        }
        if !watch.converted {
            watch.withhold(rest, round);
        }
        self.heat(place);
        None
    }

    /// The kernel has an event of a UDP socket: there is a datagram that has not come by memory.
    fn told_of_datagrams(
        &mut self,
        place: usize,
        event: epoll_event,
        round: u64,
    ) -> Option<epoll_event> {
        self.heat(place);
        let watch = self.places.get_mut(place)?.as_mut()?;
        let events = event.events & (watch.events | ERR_HUP);
        if watch.spent || events == 0 {
            return None;
        }
        if watch.round == round {
            watch.withhold(events, round);
            return None;
        }
        watch.round = round;
        watch.spent = watch.events & ONESHOT != 0;
        Some(epoll_event { events, u64: watch.data })
    }

    /// The kernel has nothing to tell: inboxes are open.
    pub(super) fn open_inboxes(&mut self) {
        for &place in &self.hot {
            if let Some(Kind::Datagram(datagram)) =
                self.places[place].as_ref().map(|watch| &*watch.socket)
                && let Some(inbox) = datagram.known_inbox()
            {
                datagram.kernel_is_empty(inbox);
            }
        }
    }

    /// Fills in what there is to tell of hot sockets in a wait, of each once.
    pub(super) fn collect(
        &mut self,
        epoll: RawFd,
        events: &mut [epoll_event],
        round: u64,
    ) -> usize {
        let taken = BELLS_TAKEN.load(Ordering::Acquire);
        if taken != self.bells_taken {
            self.bells_taken = taken;
            self.heat_all();
        }
        let count = self.hot.len();
        let mut found = 0;
        let mut idle = false;
        for step in 0..count {
            if found == events.len() {
                break;
            }
            let place = self.hot[(self.next + step) % count];
            let Some(watch) = self.places[place].as_mut() else { continue };
            if watch.round == round {
                continue;
            }
            watch.forget_withheld(round);
            let ready = watch.ready(epoll);
            if ready == 0 {
                watch.idle_looks += 1;
                idle |= watch.idle_looks > IDLE_LOOKS_MAX;
                continue;
            }
            watch.idle_looks = 0;
            watch.idle_sleeps = 0;
            if !watch.tagged {
                watch.disarm(); // Else the peer does not ring, for nobody sleeps.
            }
            watch.round = round;
            watch.withdraw_told(epoll);
            events[found] = epoll_event { events: ready, u64: watch.data };
            found += 1;
        }
        if found > 0 {
            self.next = self.next.wrapping_add(found) % count;
            if idle {
                self.cool_idle(epoll);
            }
        }
        found
    }

    /// Whether there is nothing to tell, for what it costs less to look at than to ask the kernel.
    pub(super) fn are_quiet(&mut self, epoll: RawFd) -> bool {
        const MANY: usize = 4;
        let places = &mut self.places;
        let mut hot = self.hot.iter();
        self.hot.len() < MANY
            && hot.all(|&place| places[place].as_mut().is_none_or(|watch| watch.is_quiet(epoll)))
    }

    /// Nothing has come before the peers of hot sockets could know that they are to ring. Returns
    /// whether they can: those that cannot are looked at again and again.
    pub(super) fn cool_all(&mut self) -> bool {
        let mut all_ring = true;
        let Self { hot, places, nap, .. } = self;
        hot.retain(|&place| {
            let Some(watch) = places[place].as_mut() else { return false };
            if watch.waits_unheard() {
                all_ring = false;
                return true;
            }
            let is_cool = watch.cool();
            if is_cool {
                nap.cooled(watch);
            }
            !is_cool
        });
        all_ring
    }

    /// The same for those for which nothing has come for long.
    fn cool_idle(&mut self, epoll: RawFd) {
        let places = &mut self.places;
        self.hot.retain(|&place| {
            let Some(watch) = places[place].as_mut() else { return false };
            if watch.idle_looks <= IDLE_LOOKS_MAX {
                return true;
            }
            watch.arm(epoll);
            watch.tag(None);
            watch.waits_unheard() || !(watch.is_quiet(epoll) && watch.cool())
        });
    }
}
