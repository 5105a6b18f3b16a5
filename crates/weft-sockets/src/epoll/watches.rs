//! The sockets that an instance watches: finding them, and collecting what they report.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{Ordering, fence};

use libc::epoll_event;
use smallvec::SmallVec;
use weft_stream::{Carrier, Kernel as _};
use weft_sys::calls::event::PollFlags;
use weft_sys::time_stamp;

use super::carrier::may_hold_something;
use super::foreign::{self, WRITE_NORMAL};
use super::names::Meaning;
use super::watch::EventReport;
use super::{EDGE, ERR_HUP, IN, ONESHOT, OUT, RDHUP, Registered, Watch, Watches};
use crate::descriptor::{Descriptor, is_ready};
use crate::kernel::Host;
use crate::limits::IDLE_LOOKS_MAX;
use crate::link::AnyEnd;
use crate::sleepers::taken;
use crate::sockets::{Held, Kind};

/// Up to so many watches, all are checked for older events than those that are reported.
const FEW: usize = 64;

/// A socket that has something to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    place: usize,
    report: EventReport,
}

impl Watches {
    /// Returns whether a socket is watched, by this descriptor or another.
    pub(super) fn has(&self, socket: &Held, fd: RawFd) -> bool {
        self.find(socket, fd).or_else(|| self.place_of(socket)).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_fd.is_empty()
    }

    /// Returns whether too many sockets are not polled to check all of them each time.
    pub(super) fn are_many_unpolled(&self) -> bool {
        self.by_fd.len() - self.polled.len().min(self.by_fd.len()) > FEW
    }

    pub(super) fn find(&self, socket: &Held, fd: RawFd) -> Option<usize> {
        let place = *self.by_fd.get(&fd)?;
        let watch = self.places.get(place)?.as_ref()?;
        watch.socket.is(socket).then_some(place)
    }

    pub(super) fn place_of(&self, socket: &Held) -> Option<usize> {
        self.places.iter().flatten().find(|watch| watch.socket.is(socket)).map(|watch| watch.place)
    }

    /// Returns the index of a free slot.
    pub(super) fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        })
    }

    /// Forgets a socket. Its entry in the kernel stays.
    pub(super) fn remove(&mut self, place: usize) {
        let Some(mut watch) = self.places.get_mut(place).and_then(Option::take) else { return };
        watch.disarm();
        watch.set_registered(Registered::Whole);
        self.names.retire(watch.data);
        if let Some(data) = watch.wakeup_fd {
            self.names.remove_wakeup_fd(data);
        }
        watch.socket.watches().fetch_sub(1, Ordering::Relaxed);
        if self.by_fd.get(&watch.fd) == Some(&place) {
            self.by_fd.remove(&watch.fd);
        }
        self.free.push(place);
        self.polled.retain(|&polled| polled != place);
    }

    /// Starts to poll a socket. While other threads sleep its peer still notifies.
    pub(super) fn start_polling(&mut self, place: usize) {
        let asleep = self.sleep.is_anyone_asleep();
        let Some(watch) = self.places[place].as_mut() else { return };
        if asleep {
            watch.untag();
        } else {
            watch.disarm();
        }
        watch.idle_looks = 0;
        watch.idle_sleeps = 0;
        if !watch.is_polled {
            watch.is_polled = true;
            self.polled.push(place);
        }
    }

    pub(super) fn stop_polling(&mut self, place: usize) {
        if let Some(watch) = self.places[place].as_mut() {
            watch.is_polled = false;
        }
        if let Some(at) = self.polled.iter().position(|&polled| polled == place) {
            self.polled.remove(at);
        }
    }

    pub(super) fn start_polling_all(&mut self) {
        for place in 0..self.places.len() {
            let is_unpolled = |it: &Watch| !it.is_polled && !it.is_detached;
            if self.places[place].as_ref().is_some_and(is_unpolled) {
                self.start_polling(place);
            }
        }
    }

    /// Translates a kernel event for the program. `None`: it is not to be reported, or
    /// [`Watches::collect`] reports it together with the rings' events. The kernel was asked when
    /// [`names::Names::added`] was `added`.
    pub(super) fn translate(
        &mut self,
        epoll: RawFd,
        event: epoll_event,
        round: u64,
        added: u64,
    ) -> Option<epoll_event> {
        if self.names.is_alarm(event.u64) {
            self.drain_alarm();
            return None;
        }
        if let Some(place) = self.names.wakeup_fd(event.u64) {
            if !self.is_detached(place) {
                self.start_polling(place);
            }
            return None;
        }
        match self.names.meaning(event.u64, added) {
            Meaning::Of(fd, is_late) => match self.by_fd.get(&fd).copied() {
                Some(place) => self.translate_ours(epoll, place, event, round, is_late),
                None if is_late && !is_ready(fd, polled(event.events)) => None,
                None if self.is_of_earlier_registration_of_orphan(event) => None,
                None => self.translate_foreign(epoll, event),
            },
            Meaning::Gone if !self.is_shared() => None,
            Meaning::Program | Meaning::Gone => self.translate_foreign(epoll, event),
        }
    }

    /// Returns whether an event belongs to a socket whose registered descriptor is closed, and to
    /// a registration that was replaced before the close.
    fn is_of_earlier_registration_of_orphan(&self, event: epoll_event) -> bool {
        self.places.iter().flatten().any(|watch| {
            watch.is_orphan
                && watch.data == event.u64
                && watch.is_of_earlier_registration(event.events)
        })
    }

    fn translate_ours(
        &mut self,
        epoll: RawFd,
        place: usize,
        event: epoll_event,
        round: u64,
        is_late: bool,
    ) -> Option<epoll_event> {
        let Some(watch) = self.places[place].as_mut() else { return Some(event) };
        if watch.is_of_earlier_registration(event.events) {
            self.is_reported_again = true;
            return None;
        }
        let mark = foreign::mark(watch.events) & !watch.events;
        let event = epoll_event { events: event.events & !mark, ..event };
        if is_late && watch.registered != Registered::Changes {
            watch.register_again(epoll); // If the event is for this watch the kernel repeats it.
            self.is_reported_again = true;
            self.start_polling(place);
            return None;
        }
        if watch.is_kernels {
            return self.translate_kernels(epoll, place, event, round);
        }
        let is_echo = watch.is_echo() && !watch.is_detached && !watch.is_woken;
        Host::moment();
        let mut is_new = watch.is_new(event.events);
        Host::moment();
        watch.note_ends();
        Host::moment();
        is_new |= !watch.has_reported_ends();
        Host::moment();
        let Kind::Stream(stream) = &*watch.socket else {
            return self.translate_of_datagrams(epoll, place, event, round);
        };
        if stream.link().is_none() {
            let _ = stream.by(watch.fd); // The connection may just have been established.
        }
        let is_memory = |it: Carrier| it == Carrier::Memory;
        let carriers = stream.link().map(|end| {
            end.advance(Descriptor::of(watch.fd).as_fd());
            (is_memory(end.carrier_in()), is_memory(end.carrier_out()))
        });
        Host::moment();
        if watch.is_detached {
            stream.settle(watch.fd, event.events);
            return None;
        }
        let (by_memory, by_memory_out) = carriers.unwrap_or((false, false));
        if is_echo && !by_memory {
            // A wakeup may be among what the program knows, and is looked for.
            self.start_polling(place);
            return None;
        }
        let is_kernels = !by_memory && !by_memory_out;
        if is_kernels {
            // A call that found the connection in memory records what it lacked, and looks again:
            // either it sees the fallback, too, or its record is seen below.
            fence(Ordering::SeqCst);
            Host::moment();
        }
        if is_kernels && (watch.is_woken || watch.registered != Registered::Whole) {
            // The kernel watches something other than what the program asks for, and is asked anew.
            watch.is_woken = false;
            if watch.events & ONESHOT == 0 {
                // Other events that it has are reported in this wait, too. What comes after this
                // state was taken is repeated by the kernel.
                let state = watch.state_for_edges();
                watch.note_ends_of(state);
                let now = watch.has_now();
                is_new |= watch.is_new((event.events | now) & !OUT) || !watch.has_reported_ends();
                watch.register_known(epoll, Registered::Whole, state);
                watch.keep_pending(if is_new { now } else { 0 }, round);
            } else {
                watch.register(epoll, Registered::Whole);
                self.is_reported_again = true;
            }
            self.start_polling(place);
            return None;
        }
        if carriers.is_none() {
            watch.reported_by_kernel(round);
            return Some(event);
        }
        if is_kernels {
            // The program may now read the last bytes of TCP together with a wakeup, or the kernel
            // reports a wakeup that was left there.
            let has_fallen_back =
                |end| matches!(end, AnyEnd::Local(end) if end.has_fallen_back() && !end.is_over());
            let may_be_wakeup = stream.link().is_some_and(has_fallen_back);
            let is_wakeup = may_be_wakeup && watch.has_now() & IN == 0;
            watch.keep_pending(event.events & if is_wakeup { !IN } else { u32::MAX }, round);
            self.start_polling(place);
            return None;
        }
        let mut ours = 0;
        let reported = watch.with_end(event.events);
        if by_memory {
            stream.settle(watch.fd, reported);
            ours |= IN | RDHUP;
        }
        if by_memory_out {
            ours |= OUT;
        }
        watch.hung |= reported & (RDHUP | ERR_HUP);
        Host::moment();
        if by_memory && watch.note_new_behind(event.events) {
            watch.keep_pending(IN, round);
        }
        // The check of the rings finds the other events.
        let rest = event.events & !ours & !ERR_HUP & watch.events;
        let was_woken = std::mem::take(&mut watch.is_woken);
        if watch.registered != Registered::Changes {
            let is_room = !watch.is_disabled && event.events & ours & OUT != 0;
            if watch.registered == Registered::Whole && is_room {
                Host::moment();
                let state = watch.state_for_edges();
                // The program gets this event alone.
                let is_all = watch.has_now() & !(event.events | OUT) == 0;
                watch.register_known(epoll, Registered::WithoutRoom, state.filter(|_| is_all));
            } else if was_woken {
                watch.register_again(epoll);
            }
            watch.keep_pending(rest, round);
        } else if was_woken && watch.is_exposed {
            watch.register_again(epoll);
        }
        Host::moment();
        self.start_polling(place);
        None
    }

    /// Translates an event of a socket that has fallen back to TCP, where unread data may be left.
    fn translate_kernels(
        &mut self,
        epoll: RawFd,
        place: usize,
        event: epoll_event,
        round: u64,
    ) -> Option<epoll_event> {
        let is_shared = self.is_shared();
        let watch = self.places[place].as_mut()?;
        let is_announcement = event.events & WRITE_NORMAL & !watch.events != 0;
        let is_ours = watch.is_woken || watch.registered == Registered::Announced;
        if is_shared && is_announcement && !is_ours {
            watch.echo = None;
            return self.translate_foreign(epoll, event); // Announced by another process.
        }
        if let Kind::Stream(stream) = &*watch.socket
            && let Some(end) = stream.link()
        {
            end.drain_wakeups(Descriptor::of(watch.fd).as_fd());
        }
        if watch.is_echo() || (watch.is_disabled && !is_shared) {
            self.forget_if_over(place, 1);
            return None;
        }
        if watch.holds_something() && !watch.has_unread_behind_edge(event.events) {
            // The rings report their own data; bytes behind it in the kernel, and the end, raise an
            // edge of their own.
            let is_behind = watch.has_bytes_behind() || watch.note_new_ends();
            let kept = if is_behind { u32::MAX } else { !IN };
            let rest = event.events & (watch.events | ERR_HUP) & kept;
            watch.is_announced_here = true;
            watch.keep_pending(rest, round);
            self.start_polling(place);
            return None;
        }
        if watch.registered == Registered::Announced || watch.is_woken || is_announcement {
            // Another process has read the data. The kernel repeats its other events.
            watch.is_woken = false;
            watch.register(epoll, Registered::Whole);
            self.is_reported_again = true;
            self.forget_if_over(place, 1);
            return None;
        }
        watch.is_disabled = watch.events & ONESHOT != 0;
        watch.round = round;
        // Another process may have changed the registration.
        let asked = if is_shared { u32::MAX } else { watch.events | ERR_HUP };
        let reported = epoll_event { events: event.events & asked, ..event };
        self.forget_if_over(place, 1);
        (reported.events != 0).then_some(reported)
    }

    /// Leaves a socket to the kernel that has fallen back to TCP and has no unread data there,
    /// unless another thread may have, or be about to get, an event of it. The calling thread is in
    /// `own_waits` waits of the instance.
    pub(super) fn forget_if_over(&mut self, place: usize, own_waits: u32) {
        if self.sleep.waiting() > own_waits {
            return;
        }
        let is_over = |it: &Watch| {
            let has_link = match &*it.socket {
                Kind::Stream(stream) => stream.link().is_some(),
                Kind::Datagram(_) => true,
            };
            let is_on_its_way = it.is_woken || it.has_echo();
            it.is_kernels && !is_on_its_way && !(has_link && may_hold_something(&it.socket))
        };
        if self.places[place].as_ref().is_some_and(is_over) {
            self.remove(place);
        }
    }

    /// Translates a kernel event of a UDP socket: a datagram has come by the kernel.
    fn translate_of_datagrams(
        &mut self,
        epoll: RawFd,
        place: usize,
        event: epoll_event,
        round: u64,
    ) -> Option<epoll_event> {
        self.start_polling(place);
        let watch = self.places.get_mut(place)?.as_mut()?;
        let events = event.events & (watch.events | ERR_HUP);
        if watch.is_woken {
            watch.is_woken = false;
            watch.register_again(epoll);
            return None;
        }
        if watch.is_disabled || events == 0 {
            return None;
        }
        if watch.round == round {
            watch.keep_pending(events, round);
            return None;
        }
        watch.round = round;
        watch.is_disabled = watch.events & ONESHOT != 0;
        Some(epoll_event { events, u64: watch.data })
    }

    /// Opens the inboxes, because the kernel has no datagram.
    pub(super) fn open_inboxes(&mut self) {
        for &place in &self.polled {
            if let Some(Kind::Datagram(datagram)) =
                self.places[place].as_ref().map(|watch| &*watch.socket)
                && let Some(inbox) = datagram.known_inbox()
            {
                datagram.kernel_is_empty(inbox);
            }
        }
    }

    /// Collects the events of polled sockets in a wait, one for each socket, in order of arrival.
    pub(super) fn collect(
        &mut self,
        epoll: RawFd,
        events: &mut [epoll_event],
        round: u64,
    ) -> usize {
        let taken = taken();
        if taken != self.wakeups_taken {
            self.wakeups_taken = taken;
            self.start_polling_all();
        }
        let asleep = self.sleep.is_anyone_asleep();
        let is_shared = self.is_shared();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut is_any_idle = false;
        let mut gone = SmallVec::<[usize; 8]>::new();
        let began = if self.by_fd.len() > 1 { time_stamp() } else { 0 }; // See below.
        for &place in &self.polled {
            let Some(watch) = self.places[place].as_mut() else { continue };
            if watch.round == round || (is_shared && watch.waits_for_kernel()) {
                continue;
            }
            watch.forget_pending(round);
            let report = watch.look(epoll, &mut self.names, asleep);
            if report.events == 0 {
                if watch.is_queued {
                    gone.push(place);
                }
                watch.idle_looks += 1;
                is_any_idle |= watch.idle_looks > IDLE_LOOKS_MAX;
                continue;
            }
            watch.round = round;
            ready.push(Ready { place, report });
        }
        if !ready.is_empty() && ready.len() < self.by_fd.len() {
            self.look_for_earlier(epoll, round, began, &mut ready);
        }
        if ready.len() > 1 {
            ready.sort_unstable_by_key(|ready| ready.report.since);
        }
        let found = ready.len().min(events.len());
        let is_full = found == events.len();
        for (&Ready { place, report }, event) in ready.iter().zip(events) {
            let Some(watch) = self.places[place].as_mut() else { continue };
            watch.idle_looks = 0;
            watch.idle_sleeps = 0;
            if !watch.is_tagged && !asleep {
                watch.disarm(); // No thread sleeps: the next sleep arms it anew.
            }
            watch.report(&report, self.instance);
            let is_once = watch.events & (EDGE | ONESHOT) != 0;
            if watch.registered == Registered::Announced && is_once {
                watch.end_announcement(epoll, asleep);
            } else if self.is_exposed && watch.is_disabled && !watch.is_kernels {
                watch.is_exposed = true; // A child must not get the event again.
                watch.register_again(epoll);
            }
            *event = epoll_event { events: report.events, u64: watch.data };
        }
        // Like the kernel, stop where the list is full.
        let last = ready.get(found.wrapping_sub(1)).filter(|_| is_full);
        let last = last.map_or(u64::MAX, |ready| ready.report.since);
        for place in gone {
            if let Some(watch) = self.places[place].as_mut() {
                watch.is_queued &= watch.round == round || watch.queued_at > last;
            }
        }
        for Ready { place, .. } in ready.drain(..).skip(found) {
            if let Some(watch) = self.places[place].as_mut() {
                watch.round = 0; // It has not been reported after all.
            }
        }
        self.ready = ready;
        if found > 0 && is_any_idle {
            self.stop_polling_idle(epoll);
        }
        found
    }

    /// Makes sure that no older event is left behind a reported one: data that came to a socket
    /// already checked in the scan that `began` then, and data of sockets that are not polled and
    /// whose wakeups the kernel has not been asked for.
    fn look_for_earlier(&mut self, epoll: RawFd, round: u64, began: u64, ready: &mut Vec<Ready>) {
        let at_rest = self.by_fd.len().saturating_sub(self.polled.len());
        let mut until = began;
        // How many of the first are reported in any case.
        let mut sure = 0;
        if ready.iter().all(|ready| ready.report.came > began) {
            (until, sure) = (time_stamp(), ready.len());
            let polled = std::mem::take(&mut self.polled);
            for &place in &polled {
                self.look_again(epoll, round, place, ready);
            }
            self.polled = polled;
        }
        if (1..=FEW).contains(&at_rest) {
            for place in 0..self.places.len() {
                let is_unpolled = |it: &Watch| !it.is_polled && !it.is_detached;
                if self.places[place].as_ref().is_some_and(is_unpolled)
                    && self.look_again(epoll, round, place, ready)
                {
                    self.start_polling(place);
                }
            }
        }
        // Data that came even later is left to the next wait, as if it had come after this one.
        let places = &mut self.places;
        let mut looked_at = 0;
        ready.retain(|&Ready { place, report }| {
            let stays = looked_at < sure || report.came <= until;
            looked_at += 1;
            if !stays && let Some(watch) = places[place].as_mut() {
                watch.round = 0; // It has not been reported after all.
            }
            stays
        });
    }

    /// Checks a socket again that had nothing to report, if bytes may have come since. Returns
    /// whether it has something now.
    fn look_again(
        &mut self,
        epoll: RawFd,
        round: u64,
        place: usize,
        ready: &mut Vec<Ready>,
    ) -> bool {
        let (asleep, is_shared) = (self.sleep.is_anyone_asleep(), self.is_shared());
        let Some(watch) = self.places[place].as_mut() else { return false };
        if watch.round == round || watch.is_detached || !watch.may_have_more() {
            return false;
        }
        if is_shared && watch.waits_for_kernel() {
            return false;
        }
        let report = watch.look(epoll, &mut self.names, asleep);
        if report.events != 0 {
            watch.round = round;
            ready.push(Ready { place, report });
        }
        report.events != 0
    }

    /// Returns whether nothing is to be reported, if that is cheaper to check than to ask the
    /// kernel.
    pub(super) fn are_quiet(&mut self, epoll: RawFd) -> bool {
        const MANY: usize = 4;
        let asleep = self.sleep.is_anyone_asleep();
        let Self { places, polled, names, .. } = self;
        let mut all = polled.iter();
        polled.len() < MANY
            && all.all(|&place| {
                places[place].as_mut().is_none_or(|it| it.look(epoll, names, asleep).events == 0)
            })
    }

    /// Stops polling all sockets before a sleep. Nothing has come before they were armed. Returns
    /// the longest time to sleep: sockets without room are checked periodically.
    pub(super) fn stop_polling_all(&mut self) -> Option<u64> {
        let mut longest = None;
        let Self { polled, places, sleep, .. } = self;
        polled.retain(|&place| {
            let Some(watch) = places[place].as_mut() else { return false };
            if let Some(most) = watch.longest_sleep() {
                longest = Some(longest.map_or(most, |longest: u64| longest.min(most)));
                return true;
            }
            watch.is_polled = !watch.is_armed;
            if watch.is_armed {
                sleep.note_unpolled(watch);
            }
            watch.is_polled
        });
        longest
    }

    /// Stops polling sockets that have been idle for long.
    fn stop_polling_idle(&mut self, epoll: RawFd) {
        let Self { polled, places, names, .. } = self;
        polled.retain(|&place| {
            let Some(watch) = places[place].as_mut() else { return false };
            if watch.idle_looks <= IDLE_LOOKS_MAX {
                return true;
            }
            watch.arm(epoll, names);
            watch.untag();
            let stays = watch.longest_sleep().is_some()
                || watch.look(epoll, names, false).events != 0
                || !watch.is_armed;
            watch.is_polled = stays;
            stays
        });
    }
}

/// Converts epoll's events to poll's.
fn polled(events: u32) -> PollFlags {
    PollFlags::from_bits_truncate(events as i16)
}
