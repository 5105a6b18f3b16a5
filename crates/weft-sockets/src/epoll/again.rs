//! What the kernel would tell again when an instance becomes its own.
//!
//! Of a socket that is registered otherwise the kernel tells at once what there is. To a program
//! that waits for edges, or for one event, and knows of it, that would be an edge that never was.
//! So the kernel's list of what is ready is emptied before the change, and once more behind it:
//! what the program does not know is put back, in the same way, and the rest is not.

use std::os::fd::{AsFd as _, BorrowedFd, RawFd};

use libc::epoll_event;
use rustix::event::PollFlags;
use weft_stream::{Carrier, Kernel as _};

use super::carrier::kernel_control;
use super::foreign::{self, Entry};
use super::{BYTES, EDGE, ERR_HUP, EXCLUSIVE, IN, ONESHOT, OUT, RDHUP, Registered, Watch, Watches};
use crate::descriptor::{Descriptor, events_now, is_ready};
use crate::kernel::{Host, Kernel as _};
use crate::limits::EPOLL_ENTRIES_MAX;
use crate::link::Link;
use crate::sockets::Kind;
use crate::{errno, identity};

/// What has come to a socket: if it is the same later nothing has come between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    received: u64,
    ends: u32,
}

impl State {
    /// The state of a socket, as it matters to a program that waits for these `events`: bytes that
    /// come are nothing to one that does not wait for them.
    fn of(fd: BorrowedFd<'_>, events: u32) -> Option<Self> {
        let received = if events & BYTES != 0 { Host::received(fd).ok()? } else { 0 };
        Some(Self { received, ends: ends(fd) })
    }
}

/// What the kernel says of a socket's end, as bits of epoll's.
pub(super) fn ends(fd: BorrowedFd<'_>) -> u32 {
    u32::from(events_now(fd, PollFlags::RDHUP).bits()) & (RDHUP | ERR_HUP)
}

/// A socket of which the program knows all that there is.
#[derive(Debug)]
struct Known {
    place: usize,
    fd: RawFd,
    data: u64,
    /// What the program waits for.
    events: u32,
    /// `None`: it waits for nothing any more.
    state: Option<State>,
}

/// An instance whose list the kernel has emptied.
#[derive(Debug)]
pub(super) struct Emptied {
    entries: Vec<Entry>,
    /// What the program waits for of sockets of ours.
    asked: Vec<(RawFd, u32)>,
    /// Data of what is to be reported.
    due: Vec<u64>,
    known: Vec<Known>,
}

impl Watches {
    /// Empties the kernel's list, before what it is asked for changes. `None`: nothing would be
    /// reported again, or not everything could be put back.
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

    /// Puts back what is to be reported, after the change. One-shots that have been reported are
    /// had reported once more: only so the kernel asks for nothing more of them, not even for
    /// errors.
    pub(super) fn refill(&mut self, epoll: RawFd, emptied: Emptied) {
        let Emptied { entries, asked, mut due, known } = emptied;
        let spent: Vec<&Known> = known.iter().filter(|it| it.state.is_none()).collect();
        let alone = !self.is_exposed && !self.sleep.is_anyone_asleep();
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
                // A thread that sleeps may have taken it.
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

/// Whether what the kernel reports of an entry is reported again anyhow, or can be put back.
fn can_put_back(epoll: RawFd, entry: &Entry) -> bool {
    if entry.events & (EDGE | ONESHOT) == 0 {
        return true;
    }
    if entry.events & EXCLUSIVE != 0 {
        return false; // It cannot be changed.
    }
    let event = epoll_event { events: 0, u64: entry.data };
    if kernel_control(epoll, libc::EPOLL_CTL_ADD, entry.fd, Some(event)) == 0 {
        // It is another file.
        kernel_control(epoll, libc::EPOLL_CTL_DEL, entry.fd, None);
        return false;
    }
    errno::get() == libc::EEXIST
}

/// All that the kernel has to tell, of each entry once.
fn take_all(epoll: RawFd, entries: usize) -> Vec<epoll_event> {
    let mut events = vec![epoll_event { events: 0, u64: 0 }; entries.max(1)];
    let found = Host::take_events(Descriptor::of(epoll).as_fd(), &mut events).unwrap_or(0);
    events.truncate(found);
    events
}

impl Watch {
    /// The kernel has reported these events of a socket.
    fn note_events(&mut self, events: u32) {
        if let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.link()
            && end.carrier_in() == Carrier::Memory
        {
            stream.settle(self.fd, events);
            self.hung |= events & (RDHUP | ERR_HUP);
        }
    }

    /// What has come of that which the program waits for.
    fn state(&self) -> Option<State> {
        State::of(Descriptor::of(self.fd).as_fd(), self.events)
    }

    /// Whether the program is still to get an edge that memory has: the kernel knows nothing of it.
    pub(super) fn owes_edge(&self) -> bool {
        let is_in_memory = matches!(&*self.socket, Kind::Stream(stream)
            if matches!(stream.link(), Some(Link::Local(end)) if !end.has_left()));
        is_in_memory && self.events & EDGE != 0 && self.seen.is_some() && !self.is_edge_reported()
    }

    /// Whether what the kernel reports is what the program asked it for, and no wakeup.
    fn is_reported_by_tcp(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let is_by_tcp = match stream.link() {
            None => true,
            Some(Link::Local(end)) => {
                end.carrier_in() == Carrier::Tcp && (!end.has_left() || end.is_over())
            }
            Some(Link::Remote(_)) => false,
        };
        is_by_tcp && self.registered == Registered::Whole && !self.is_woken
    }

    /// Whether all that there is has been reported to the program. The kernel may have reported
    /// something: a wakeup, if nothing is left of it.
    fn knows_all(&self, is_seen: bool) -> bool {
        matches!(&*self.socket, Kind::Stream(_))
            && self.is_edge_reported()
            && !self.is_out_of_room()
            && (!is_seen || self.has_nothing_new())
    }

    /// Whether the kernel has no bytes for the program, and no end, that it does not know.
    pub(super) fn has_nothing_new(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let unread = Host::unread(Descriptor::of(self.fd).as_fd());
        (unread == Ok(0) || self.knows_all_bytes(stream))
            && ends(Descriptor::of(self.fd).as_fd()) & !self.ends_seen(stream) == 0
    }

    /// Whether bytes have come to the kernel's socket for a program that waits for edges. Wakeups
    /// have been taken.
    pub(super) fn has_bytes_behind(&self) -> bool {
        self.events & EDGE != 0
            && Host::unread(Descriptor::of(self.fd).as_fd()).is_ok_and(|unread| unread > 0)
    }

    /// Asks the kernel for something else. The program knows what there is, at the latest when it
    /// gets what the kernel has just reported, which is not to be reported again.
    pub(super) fn register_known(&mut self, epoll: RawFd, registered: Registered) {
        let state = if self.events & EDGE != 0 { self.state() } else { None };
        self.register(epoll, registered);
        self.echo = state.filter(|_| self.is_ready_by_kernel());
    }

    /// The same, if all that there is has been reported to the program.
    pub(super) fn register_if_known(&mut self, epoll: RawFd, registered: Registered) {
        let is_reported = self.events & EDGE != 0 && self.seen.is_some();
        let state = if is_reported { self.state() } else { None };
        let is_known = state.is_some() && self.knows_all(true);
        self.register(epoll, registered);
        self.echo = state.filter(|_| is_known && self.is_ready_by_kernel());
    }

    /// What the kernel has reported is about to be reported to the program: an end that is there by
    /// then is reported with it.
    pub(super) fn note_ends(&mut self) {
        let Kind::Stream(stream) = &*self.socket else { return };
        let may_end = |end: Link<'_>| end.carrier_in() == Carrier::Tcp && end.is_ending();
        if self.events & EDGE != 0 && stream.link().is_none_or(may_end) {
            self.hung |= ends(Descriptor::of(self.fd).as_fd());
        }
    }

    /// Whether the kernel has something to tell, as it has been asked.
    fn is_ready_by_kernel(&self) -> bool {
        is_ready(self.fd, PollFlags::from_bits_truncate(self.mask() as u16))
    }

    /// Whether an event is only what a change of the registration has had the kernel tell again.
    pub(super) fn is_echo(&mut self) -> bool {
        let is_same = |it: &Self, state| it.state() == Some(state);
        // A writer that has found no room since is notified when there is some.
        self.echo.take().is_some_and(|state| is_same(self, state)) && !self.is_out_of_room()
    }

    /// How much the socket had received when the kernel was made to report it once more.
    pub(super) fn echo_received(&self) -> Option<u64> {
        self.echo.map(|state| state.received)
    }

    /// The socket as it was when it had received this, and all of its end that is noted was
    /// reported.
    pub(super) fn state_reported(&self, received: u64) -> State {
        let known = ends(Descriptor::of(self.fd).as_fd()) & self.hung;
        State { received, ends: known }
    }

    /// Whether the kernel is about to report what the program knows.
    pub(super) fn has_echo(&self) -> bool {
        self.echo.is_some()
    }
}
