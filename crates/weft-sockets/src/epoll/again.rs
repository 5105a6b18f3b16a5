//! Suppresses events that the kernel would report twice when an instance's registrations change.
//!
//! After `EPOLL_CTL_MOD` the kernel reports at once whatever is ready. To a program that waits for
//! edges, or for one event, and has seen it, that would be a spurious edge. So the kernel's ready
//! list is emptied before the change and once more after it: events that the program has not seen
//! are put back in the same way, and the others are dropped.

use std::os::fd::{AsFd as _, BorrowedFd, RawFd};

use libc::epoll_event;
use weft_stream::{Carrier, Kernel as _};
use weft_sys::calls::event::PollFlags;

use super::carrier::kernel_control;
use super::foreign::{self, Entry};
use super::{BYTES, EDGE, ERR_HUP, EXCLUSIVE, IN, ONESHOT, OUT, RDHUP, Registered, Watch, Watches};
use crate::descriptor::{Descriptor, events_now, is_ready};
use crate::kernel::{Host, Kernel as _};
use crate::limits::EPOLL_ENTRIES_MAX;
use crate::link::AnyEnd;
use crate::sockets::Kind;
use crate::{errno, identity};

/// How much a socket has received: if it is the same later, nothing has come meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    received: u64,
    ends: u32,
}

impl State {
    /// Returns the state as far as it matters to a program that waits for these `events`. Bytes do
    /// not matter to a program that does not wait for them.
    fn of(fd: BorrowedFd<'_>, events: u32) -> Option<Self> {
        let received = if events & BYTES != 0 { Host::received(fd).ok()? } else { 0 };
        Some(Self { received, ends: ends(fd) })
    }
}

/// Returns the end of a socket's stream as the kernel sees it, in epoll's bits.
pub(super) fn ends(fd: BorrowedFd<'_>) -> u32 {
    u32::from(events_now(fd, PollFlags::RDHUP).bits().cast_unsigned()) & (RDHUP | ERR_HUP)
}

/// A socket of which the program has seen everything.
#[derive(Debug)]
struct Known {
    place: usize,
    fd: RawFd,
    data: u64,
    /// The events that the program waits for.
    events: u32,
    /// `None`: the program waits for nothing (a spent one-shot).
    state: Option<State>,
}

/// An instance whose ready list has been emptied.
#[derive(Debug)]
pub(super) struct Emptied {
    entries: Vec<Entry>,
    /// The events that the program waits for, of Weft's sockets.
    asked: Vec<(RawFd, u32)>,
    /// Data of the entries that still have to be reported.
    due: Vec<u64>,
    known: Vec<Known>,
}

impl Watches {
    /// Empties the kernel's ready list, before registrations change. `None`: nothing would be
    /// reported twice, or not everything could be put back.
    pub(super) fn empty(&mut self, epoll: RawFd) -> Option<Emptied> {
        let may_know = |it: &&Watch| !it.is_detached && (it.seen.is_some() || it.is_disabled);
        let places: Vec<usize> =
            self.places.iter().flatten().filter(may_know).map(|watch| watch.place).collect();
        if places.is_empty() || identity::is_borrowed() {
            return None;
        }
        let entries = foreign::entries(epoll);
        if entries.len() > EPOLL_ENTRIES_MAX
            || !entries.iter().all(|entry| can_put_back(epoll, entry))
        {
            return None;
        }
        let states: Vec<Option<State>> =
            places.iter().map(|&place| self.places[place].as_ref()?.state()).collect();
        let events = take_all(epoll, entries.len());
        for event in &events {
            if let Some(place) = self.names.fd(event.u64).and_then(|fd| self.by_fd.get(&fd)) {
                self.places[*place].iter_mut().for_each(|watch| watch.note_events(event.events));
            }
        }
        let is_seen = |data: u64| events.iter().any(|event| event.u64 == data);
        let known = places.into_iter().zip(states).filter_map(|(place, state)| {
            let watch = self.places[place].as_mut()?;
            let (fd, data, events) = (watch.fd, watch.data, watch.events);
            let known = Known { place, fd, data, events, state };
            if watch.is_disabled {
                return Some(Known { state: None, ..known });
            }
            let is_known_elsewhere =
                watch.reported_elsewhere.take().is_some_and(|it| state == Some(it));
            let is_seen = is_seen(data) && !watch.is_echo() && !is_known_elsewhere;
            let is_edge = is_seen && watch.is_reported_by_tcp();
            (state.is_some() && !is_edge && watch.knows_all(is_seen)).then_some(known)
        });
        let known = known.collect();
        let watches = self.places.iter().flatten();
        let asked = watches.map(|watch| (watch.fd, watch.asked())).collect();
        let due = events.iter().map(|event| event.u64).collect();
        Some(Emptied { entries, asked, due, known })
    }

    /// Puts back the entries that are still to be reported, after the change. Spent one-shots are
    /// made to fire once more, because only then the kernel stops reporting even their errors.
    pub(super) fn refill(&mut self, epoll: RawFd, emptied: Emptied) {
        let Emptied { entries, asked, mut due, known } = emptied;
        let spent: Vec<&Known> = known.iter().filter(|it| it.state.is_none()).collect();
        // Another thread would take these events for the program's.
        let alone = !self.is_exposed && self.sleep.waiting() == 0;
        for it in spent.iter().filter(|_| alone) {
            foreign::register(epoll, it.fd, IN | OUT | ONESHOT, it.data);
        }
        let events = take_all(epoll, entries.len());
        let reported: Vec<u64> = events.iter().map(|event| event.u64).collect();
        for it in spent.iter().filter(|it| alone && !reported.contains(&it.data)) {
            foreign::register(epoll, it.fd, ONESHOT, it.data);
        }
        due.extend(&reported);
        due.dedup();
        for it in &known {
            let is_same =
                |state| State::of(Descriptor::of(it.fd).as_fd(), it.events) == Some(state);
            if it.state.is_none_or(is_same) {
                due.retain(|&data| data != it.data);
                // A sleeping thread may have taken the event.
                let is_taken = self.sleep.is_anyone_asleep() && !reported.contains(&it.data);
                if let Some(watch) = self.places[it.place].as_mut() {
                    watch.echo = it.state.filter(|_| is_taken && watch.is_ready_by_kernel());
                }
            }
        }
        for entry in entries.iter().filter(|entry| due.contains(&entry.data)) {
            let ours = self.by_fd.get(&entry.fd).and_then(|&place| self.places[place].as_ref());
            let was_ours = asked.iter().find(|(fd, _)| *fd == entry.fd);
            match (ours, was_ours) {
                (Some(watch), _) => watch.register_again(epoll),
                (None, Some(&(_, asked))) => entry.register(epoll, asked),
                (None, None) if entry.events & (EDGE | ONESHOT) != 0 => {
                    entry.register(epoll, entry.events);
                }
                (None, None) => {}
            }
        }
    }
}

/// Returns whether an event of the entry is level-triggered, or can be put back.
fn can_put_back(epoll: RawFd, entry: &Entry) -> bool {
    if entry.events & (EDGE | ONESHOT) == 0 {
        return true;
    }
    if entry.events & EXCLUSIVE != 0 {
        return false; // EPOLLEXCLUSIVE entries cannot be modified.
    }
    let event = epoll_event { events: 0, u64: entry.data };
    if kernel_control(epoll, libc::EPOLL_CTL_ADD, entry.fd, Some(event)) == 0 {
        // The number stands for another file now.
        kernel_control(epoll, libc::EPOLL_CTL_DEL, entry.fd, None);
        return false;
    }
    errno::get() == libc::EEXIST
}

/// Takes all events that the kernel has, at most one of each entry.
fn take_all(epoll: RawFd, entries: usize) -> Vec<epoll_event> {
    let mut events = vec![epoll_event { events: 0, u64: 0 }; entries.max(1)];
    let found = Host::take_events(Descriptor::of(epoll).as_fd(), &mut events).unwrap_or(0);
    events.truncate(found);
    events
}

impl Watch {
    /// Records events that the kernel has reported of a socket.
    fn note_events(&mut self, events: u32) {
        if let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.link()
            && end.carrier_in() == Carrier::Memory
        {
            stream.settle(self.fd, events);
            self.hung |= events & (RDHUP | ERR_HUP);
        }
    }

    /// Returns the state of the events that the program waits for.
    fn state(&self) -> Option<State> {
        State::of(Descriptor::of(self.fd).as_fd(), self.events)
    }

    /// Returns whether memory has, or had before the connection fell back to TCP, an edge that the
    /// program has not seen. The kernel knows nothing of it.
    pub(super) fn owes_edge(&self) -> bool {
        let is_in_memory = matches!(&*self.socket, Kind::Stream(stream)
            if matches!(stream.link(), Some(AnyEnd::Local(end)) if !end.has_fallen_back()));
        let owes = || self.seen.is_some() && !self.is_edge_reported();
        self.events & EDGE != 0 && (is_in_memory && owes() || self.owes_edge_of_memory())
    }

    /// Returns whether the kernel's events are what the program has registered for, and not
    /// wakeups.
    fn is_reported_by_tcp(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let is_by_tcp = match stream.link() {
            None => true,
            Some(AnyEnd::Local(end)) => {
                end.carrier_in() == Carrier::Tcp && (!end.has_fallen_back() || end.is_over())
            }
            Some(AnyEnd::Remote(_)) => false,
        };
        is_by_tcp && self.registered == Registered::Whole && !self.is_woken
    }

    /// Returns whether the program has seen everything. If `is_seen`, the kernel has reported
    /// something, which was a mere wakeup if nothing is left to see.
    fn knows_all(&self, is_seen: bool) -> bool {
        matches!(&*self.socket, Kind::Stream(_))
            && self.is_edge_reported()
            && !self.is_out_of_room()
            && (!is_seen || self.has_nothing_new())
    }

    /// Returns whether the kernel has neither bytes nor an end of the stream that the program has
    /// not seen.
    pub(super) fn has_nothing_new(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let unread = Host::unread(Descriptor::of(self.fd).as_fd());
        (unread == Ok(0) || self.knows_all_bytes(stream))
            && ends(Descriptor::of(self.fd).as_fd()) & !self.ends_reported() == 0
    }

    /// Returns whether the kernel's socket has bytes for a program that waits for edges. Wakeup
    /// bytes have been drained.
    pub(super) fn has_bytes_behind(&self) -> bool {
        self.events & EDGE != 0
            && Host::unread(Descriptor::of(self.fd).as_fd()).is_ok_and(|unread| unread > 0)
    }

    /// Returns the state, if the program waits for edges.
    pub(super) fn state_for_edges(&self) -> Option<State> {
        if self.events & EDGE != 0 { self.state() } else { None }
    }

    /// Changes what the kernel watches. The program has seen everything up to this `state`, at the
    /// latest with the event that is being reported, so that is not to be reported twice. `None`:
    /// it has not, or does not wait for edges.
    pub(super) fn register_known(
        &mut self,
        epoll: RawFd,
        registered: Registered,
        state: Option<State>,
    ) {
        self.register(epoll, registered);
        self.echo = state.filter(|_| self.is_ready_by_kernel());
    }

    /// Does the same, with the state of this moment, if the program has seen everything.
    pub(super) fn register_if_known(&mut self, epoll: RawFd, registered: Registered) {
        let is_reported = self.events & EDGE != 0 && self.seen.is_some();
        let state = if is_reported { self.state() } else { None };
        let is_known = state.is_some() && self.knows_all(true);
        self.register_known(epoll, registered, state.filter(|_| is_known));
    }

    /// Notes the end of the stream, if it is there, when a kernel event is about to be reported to
    /// the program: the end is reported with it.
    pub(super) fn note_ends(&mut self) {
        let Kind::Stream(stream) = &*self.socket else { return };
        let may_end = |end: AnyEnd<'_>| end.carrier_in() == Carrier::Tcp && end.is_ending();
        if self.events & EDGE != 0 && stream.link().is_none_or(may_end) {
            self.hung |= ends(Descriptor::of(self.fd).as_fd());
        }
    }

    /// Notes the end of the stream, if the kernel has it and a program that waits for edges does
    /// not know it yet. Returns whether that is so.
    pub(super) fn note_new_ends(&mut self) -> bool {
        let new = || ends(Descriptor::of(self.fd).as_fd()) & !self.ends_reported();
        let new = if self.events & EDGE != 0 { new() } else { 0 };
        self.hung |= new;
        new != 0
    }

    /// Notes the ends of a state: what is reported next is reported with them.
    pub(super) fn note_ends_of(&mut self, state: Option<State>) {
        self.hung |= state.map_or(0, |state| state.ends);
    }

    /// Returns whether the kernel has an event for the current registration.
    fn is_ready_by_kernel(&self) -> bool {
        is_ready(self.fd, PollFlags::from_bits_truncate(self.mask() as i16))
    }

    /// Returns whether an event is only a repetition, caused by a change of the registration.
    pub(super) fn is_echo(&mut self) -> bool {
        let is_same = |it: &Self, state| it.state() == Some(state);
        // A writer that has run out of room since then still has to be notified.
        self.echo.take().is_some_and(|state| is_same(self, state)) && !self.is_out_of_room()
    }

    /// Returns how much the socket had received when the kernel was made to repeat its event.
    pub(super) fn echo_received(&self) -> Option<u64> {
        self.echo.map(|state| state.received)
    }

    /// Returns the state when the socket had received so much, and the noted end had been reported.
    pub(super) fn state_reported(&self, received: u64) -> State {
        let known = ends(Descriptor::of(self.fd).as_fd()) & self.hung;
        State { received, ends: known }
    }

    /// Returns whether the kernel is about to repeat an event that the program has seen.
    pub(super) fn has_echo(&self) -> bool {
        self.echo.is_some()
    }
}
