//! One socket in an instance.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use libc::epoll_event;
use weft_stream::datagram::Inbox;
use weft_stream::{ArrivalMark, Carrier, Kernel as _, ReportedEdge};
use weft_sys::calls::event::PollFlags;
use weft_sys::time_stamp;

use super::again::ends;
use super::carrier;
use super::carrier::kernel_control;
use super::foreign::{self, IS_ANNOUNCED, IS_EXACT, READ_NORMAL, WRITE_NORMAL};
use super::names::Names;
use super::{BYTES, EDGE, ERR_HUP, IN, MODES, ONESHOT, OUT, RDHUP, Registered, Watch};
use crate::descriptor::{Descriptor, events_now, is_ready};
use crate::errno;
use crate::kernel::{End, Host, Kernel as _};
use crate::link::AnyEnd;
use crate::sockets::{Held, Kind};
use crate::stall::STALL_NS;
use crate::stream::Stream;

/// The events that report room.
const ROOM: u32 = OUT | WRITE_NORMAL;
/// How long a writer sleeps if its peer cannot notify.
const SLEEP_NS: u64 = 1_000_000;

/// What a socket has to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventReport {
    pub(super) events: u32,
    /// The state at this check, for edges.
    seen: Option<(u64, u32)>,
    /// Since when it is ready. The smallest values are reported first.
    pub(super) since: u64,
    /// When the oldest unread byte came into memory; 0 if there is none.
    pub(super) came: u64,
}

/// The state of a connection at a check that has found nothing to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    arrival_mark: ArrivalMark,
    /// The end events that the kernel had reported, to the socket and in this instance.
    ended: u32,
    hung: u32,
}

/// What a check of a connection finds.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// How many bytes have come through memory so far.
    come: u64,
    /// The state whose change raises an edge.
    seen: (u64, u32),
    /// Its readiness, and which events of it the rings decide ([`Stream::readiness`]).
    now: u32,
    ours: u32,
    /// When the oldest unread byte came.
    arrived_at: u64,
}

/// Returns whether the kernel's socket has room for more data.
#[cold]
fn is_writable(fd: RawFd) -> bool {
    is_ready(fd, PollFlags::OUT)
}

impl Watch {
    pub(super) fn new(socket: Held, fd: RawFd, place: usize) -> Self {
        Self {
            socket,
            fd,
            place,
            events: 0,
            data: 0,
            registered: Registered::Whole,
            is_kernels: false,
            is_orphan: false,
            is_exposed: false,
            is_woken: false,
            is_detached: true,
            is_disabled: false,
            has_fallen_back: false,
            is_polled: false,
            is_armed: false,
            is_tagged: false,
            idle_sleeps: 0,
            idle_looks: 0,
            wakeup_fd: None,
            hung: 0,
            seen: None,
            was_in_memory: false,
            come: 0,
            quiet: None,
            echo: None,
            reported_elsewhere: None,
            queued_at: 0,
            is_queued: false,
            round: 0,
            pending: 0,
            pending_in: 0,
            can_be_announced: false,
            is_announced_here: false,
            behind: 0,
        }
    }

    /// Sets the events that the program waits for.
    pub(super) fn wait_for(&mut self, event: epoll_event) {
        if let Some(end) = self.end() {
            end.note_edge(None);
        }
        self.follow(event);
    }

    /// Sets them because another process has done so. What that process has reported stays
    /// reported.
    pub(super) fn follow(&mut self, event: epoll_event) {
        if self.is_detached || self.is_disabled || event.events & !self.events & (IN | OUT) != 0 {
            self.queued_at = time_stamp(); // The kernel's list keeps its position, too.
            self.is_queued = false;
        }
        self.events = event.events;
        self.data = event.u64;
        self.is_disabled = false;
        self.is_detached = false;
        self.seen = None;
        self.quiet = None;
        self.echo = None;
        self.pending = 0;
        self.is_announced_here = false;
        self.behind = 0;
    }

    /// Returns its end, if the peer is on this host.
    fn end(&self) -> Option<&End> {
        match &*self.socket {
            Kind::Stream(stream) => stream.end(),
            Kind::Datagram(_) => None,
        }
    }

    /// Notes edges that another process has reported to the program.
    pub(super) fn follow_reported(&mut self, instance: u64) {
        if self.events & EDGE != 0
            && let Some(edge) = self.end().and_then(End::reported_edge)
            && edge.instance == instance
            // The kernel adds errors and hang-ups to each registration.
            && edge.asked & !ERR_HUP == self.events & !ERR_HUP
        {
            self.seen = Some((edge.come, edge.ends));
            self.was_in_memory = edge.was_in_memory;
            self.hung |= edge.ends;
            self.reported_elsewhere = edge.received.map(|received| self.state_reported(received));
        }
    }

    /// Returns the events that the kernel watches while the rings decide the readiness.
    pub(super) fn changes(&self, events: u32) -> u32 {
        // Level-triggered: a child that takes the event first knows nothing of this socket.
        let is_level = self.is_exposed && events & (IN | EDGE | ONESHOT) == IN;
        let edge = if is_level { 0 } else { EDGE };
        let note = if self.is_exposed { foreign::note(events) | IS_EXACT } else { 0 };
        let urgent = events & libc::EPOLLPRI.cast_unsigned();
        IN | RDHUP | edge | note | foreign::mark(events) | urgent
    }

    /// Returns the events that the program waits for now; none for a spent one-shot.
    pub(super) fn asked(&self) -> u32 {
        if self.is_disabled { self.events & MODES } else { self.events }
    }

    /// Returns the events that are registered with the kernel.
    pub(super) fn mask(&self) -> u32 {
        let asked = self.asked();
        // Bytes must not raise an event for a program that waits for room alone.
        let byte_mark = if asked & IN != 0 { foreign::mark(asked) } else { 0 };
        let mask = match self.registered {
            Registered::Whole => asked,
            // The peer's shutdown raises an edge whatever the program waits for.
            Registered::WithoutRoom if asked & EDGE != 0 => {
                asked & !OUT | RDHUP | foreign::note(asked) | byte_mark
            }
            Registered::WithoutRoom => asked & !OUT | foreign::note(asked) | byte_mark,
            Registered::Changes => self.changes(asked) | foreign::note(asked),
            Registered::Announced => asked | WRITE_NORMAL | IS_ANNOUNCED,
        };
        match self.registered {
            _ if !self.is_woken => mask,
            Registered::Changes => mask | WRITE_NORMAL | EDGE,
            _ => mask | WRITE_NORMAL | byte_mark,
        }
    }

    /// Returns whether an event of a one-shot comes from a registration that has been replaced by
    /// one without the mark since a thread took it from the kernel. The kernel reports what is
    /// ready for the new registration, perhaps to another thread, so this event must not be
    /// reported.
    pub(super) fn is_of_earlier_registration(&self, events: u32) -> bool {
        let marks = match self.registered {
            Registered::Whole if !self.can_be_announced => READ_NORMAL | WRITE_NORMAL,
            Registered::Whole | Registered::Announced => READ_NORMAL,
            Registered::WithoutRoom | Registered::Changes => 0,
        };
        self.events & ONESHOT != 0 && !self.is_woken && events & marks & !self.events != 0
    }

    /// Changes the kernel's registration, or repeats it. The kernel then reports anew whatever is
    /// ready.
    pub(super) fn register(&mut self, epoll: RawFd, registered: Registered) {
        self.set_registered(registered);
        self.register_again(epoll);
    }

    pub(super) fn register_again(&self, epoll: RawFd) {
        if self.is_orphan {
            return;
        }
        let event = epoll_event { events: self.mask(), u64: self.data };
        let before = errno::get();
        kernel_control(epoll, libc::EPOLL_CTL_MOD, self.fd, Some(event));
        errno::set_raw(before);
    }

    /// Records the kernel's registration.
    pub(super) fn set_registered(&mut self, registered: Registered) {
        let announced = |it| u32::from(it == Registered::Announced);
        let count = self.socket.announced();
        match announced(registered).cmp(&announced(self.registered)) {
            std::cmp::Ordering::Less => drop(count.fetch_sub(1, Ordering::Relaxed)),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => drop(count.fetch_add(1, Ordering::Relaxed)),
        }
        self.registered = registered;
    }

    /// Keeps events that the kernel has reported in a wait for the next check.
    pub(super) fn keep_pending(&mut self, events: u32, round: u64) {
        (self.pending, self.pending_in) = (self.pending | events, round);
    }

    /// Returns which of the program's events the kernel has now.
    pub(super) fn has_now(&self) -> u32 {
        let descriptor = Descriptor::of(self.fd);
        let fd = descriptor.as_fd();
        if let Kind::Stream(stream) = &*self.socket
            && let Some(link) = stream.link()
        {
            link.drain_wakeups_if_left(fd); // A wakeup byte must not be reported as data.
        }
        let asked = PollFlags::from_bits_truncate(self.events as i16);
        u32::from(events_now(fd, asked).bits().cast_unsigned())
    }

    /// Adds the end of the stream to reported events. While TCP still carries one direction the
    /// kernel watches only what the program asks for, and may report the end as readable bytes
    /// only.
    pub(super) fn with_end(&self, reported: u32) -> u32 {
        if self.registered == Registered::Changes || reported & IN == 0 {
            return reported;
        }
        reported | ends(Descriptor::of(self.fd).as_fd())
    }

    /// Returns whether a change that the kernel reports is new to the program. Arriving bytes raise
    /// no edge for a program that waits for room alone.
    pub(super) fn is_new(&self, events: u32) -> bool {
        if !matches!(&*self.socket, Kind::Stream(_)) {
            return true;
        }
        let ends = events & (RDHUP | ERR_HUP) & !self.ends_reported();
        self.events & EDGE == 0
            || self.seen.is_none()
            || self.is_out_of_room()
            || (events & self.events & !MODES != 0 && !self.is_known(events))
            || ends != 0
    }

    /// Returns whether the kernel, which watches changes alone, reports only an end, or returned
    /// bytes, that the program knows, of a connection that has fallen back to TCP.
    fn is_known(&self, events: u32) -> bool {
        const INCOMING: u32 = libc::EPOLLRDNORM.cast_unsigned() | IN | RDHUP;
        let Kind::Stream(stream) = &*self.socket else { return false };
        let is_behind_end = || self.ends_reported() & RDHUP != 0 && self.has_nothing_new();
        self.registered == Registered::Changes
            && events & self.events & !(MODES | INCOMING) == 0
            && stream.end().is_some_and(End::has_fallen_back)
            && (self.knows_all_bytes(stream) || is_behind_end())
    }

    /// Returns whether the program knows of all bytes: memory has got none since the last edge, and
    /// TCP, to which the connection has moved, has got only bytes that had been in memory.
    pub(super) fn knows_all_bytes(&self, stream: &Stream) -> bool {
        let Some(end) = stream.end().filter(|end| end.has_fallen_back()) else { return false };
        if stream.is_dry() || !self.was_in_memory {
            return false; // They may have come after the program had read everything.
        }
        let (come, _) = self.edge_state(stream, end.progress().0);
        let received = || Host::received(Descriptor::of(self.fd).as_fd());
        self.seen.is_some_and(|(seen, _)| seen == come)
            && received().is_ok_and(|received| end.come_behind(received) == 0)
    }

    /// Returns whether there is an unread byte in memory or in the kernel.
    fn has_bytes(&self, stream: &Stream) -> bool {
        let descriptor = Descriptor::of(self.fd);
        let fd = descriptor.as_fd();
        let by_kernel = || Host::unread(fd).is_ok_and(|bytes| bytes > 0);
        let all = |link: AnyEnd<'_>| link.all_unread(fd).map_or_else(by_kernel, |bytes| bytes > 0);
        stream.link().is_some_and(all)
    }

    /// Notes how much TCP has behind the bytes in memory: the edge that is being reported covers
    /// it. Returns whether memory carries what comes in.
    fn note_behind(&mut self) -> bool {
        if self.events & EDGE != 0
            && let Kind::Stream(stream) = &*self.socket
            && let Some(link) = stream.link()
            && link.carrier_in() == Carrier::Memory
        {
            self.behind = link.unread_behind(Descriptor::of(self.fd).as_fd());
            return true;
        }
        false
    }

    /// Returns whether a kernel event is an edge for bytes on TCP, behind those in memory, that the
    /// program does not know yet. Marks them as known.
    pub(super) fn note_new_behind(&mut self, events: u32) -> bool {
        let before = self.behind;
        if events & IN != 0 {
            self.note_behind();
        }
        self.behind > before
    }

    /// Forgets events that the kernel has reported in an earlier wait. The kernel repeats them,
    /// unless they are edges or one-shots.
    pub(super) fn forget_pending(&mut self, round: u64) {
        if self.events & (EDGE | ONESHOT) == 0 && self.pending_in != round {
            self.pending = 0;
        }
    }

    /// Marks the news as reported by the `instance`.
    pub(super) fn report(&mut self, report: &EventReport, instance: u64) {
        if let Kind::Stream(stream) = &*self.socket {
            stream.forget_dry();
        }
        Host::moment();
        if report.events & OUT != 0
            && self.events & EDGE != 0
            && let Kind::Stream(stream) = &*self.socket
        {
            stream.take_full();
        }
        self.seen =
            report.seen.map(|(come, ends)| (come, ends & self.ends_reported_by(report.events)));
        self.was_in_memory = self.note_behind();
        if self.events & EDGE != 0
            && let (Some(end), Some((come, ends))) = (self.end(), self.seen)
        {
            // A writer without room still has to be notified when there is room.
            let is_all = !self.is_out_of_room();
            let received = self.echo_received();
            let (asked, was_in_memory) = (self.events, self.was_in_memory);
            let edge = ReportedEdge { instance, asked, come, ends, was_in_memory, received };
            end.note_edge(is_all.then_some(edge));
        }
        self.quiet = None;
        self.pending = 0;
        self.is_announced_here = false;
        self.is_disabled = self.events & ONESHOT != 0;
        self.queued_at = time_stamp();
        self.is_queued = self.events & (EDGE | ONESHOT) == 0;
    }

    /// Returns whether the kernel alone decides which process reports data in memory: it wakes one
    /// of them, once.
    pub(super) fn waits_for_kernel(&self) -> bool {
        self.registered == Registered::Announced
            && self.events & (EDGE | ONESHOT) != 0
            && !self.is_announced_here
    }

    /// Checks what there is to report, without taking it. While a thread is `asleep` this also arms
    /// the socket.
    pub(super) fn look(&mut self, epoll: RawFd, names: &mut Names, asleep: bool) -> EventReport {
        if (self.is_armed || !asleep) && self.is_unchanged() {
            return self.nothing();
        }
        Host::moment();
        let quiet = self.before_quiet();
        Host::moment();
        self.advance_connection();
        Host::moment();
        let mut found = self.find();
        if self.wants_room()
            && let Kind::Stream(stream) = &*self.socket
            && stream.fall_back_if_stalled(self.fd)
        {
            found = self.find();
        }
        if let Some(Found { come, ours, .. }) = found {
            self.come = come;
            Host::moment();
            self.follow_carrier(epoll, ours);
            Host::moment();
        }
        if asleep && !self.is_armed {
            self.arm(epoll, names);
            Host::moment();
            found = self.find(); // Data may have come before the socket was armed.
        }
        if self.is_disabled || self.is_detached {
            return self.nothing();
        }
        let report = self.event_report(found);
        let ours = found.map_or(0, |found| found.ours);
        self.quiet = quiet.filter(|_| report.events == 0 && ours & IN != 0 && ours & OUT != 0);
        report
    }

    /// Returns whether nothing has changed since a check that has found nothing. This is cheaper
    /// than a new check.
    #[inline]
    fn is_unchanged(&self) -> bool {
        let (Some(quiet), Kind::Stream(stream)) = (&self.quiet, &*self.socket) else {
            return false;
        };
        self.pending == 0
            && self.hung == quiet.hung
            && self.registered == Registered::Changes
            && quiet.arrival_mark.is_the_same()
            && stream.is_unchanged_since(quiet.ended)
    }

    /// Returns the state to remember if the check that begins now finds nothing. `None` where the
    /// state does not cover everything that could be news. It covers room only for edge-triggered
    /// programs that have found some.
    fn before_quiet(&self) -> Option<Quiet> {
        let Kind::Stream(stream) = &*self.socket else { return None };
        let AnyEnd::Local(end) = stream.link()? else { return None };
        if self.events & (OUT | WRITE_NORMAL) != 0 && self.events & EDGE == 0 {
            return None;
        }
        let (ended, hung) = (stream.ended(), self.hung);
        Some(Quiet { arrival_mark: end.arrival_mark()?, ended, hung })
            .filter(|quiet| stream.is_unchanged_since(quiet.ended))
    }

    fn nothing(&self) -> EventReport {
        EventReport { events: 0, seen: self.seen, since: self.queued_at, came: 0 }
    }

    /// Lets the connection make progress.
    fn advance_connection(&self) {
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(end) = stream.link() else { return };
        end.advance(Descriptor::of(self.fd).as_fd());
        if let AnyEnd::Local(end) = end {
            stream.is_looked_at(end);
        }
    }

    /// Watches changes alone once the rings carry the connection, and everything when they no
    /// longer do. `ours` holds the events that the rings decide.
    fn follow_carrier(&mut self, epoll: RawFd, ours: u32) {
        if self.is_kernels || self.is_orphan {
            return;
        }
        let (comes_in, goes_out) = (ours & IN != 0, ours & OUT != 0);
        match self.registered {
            Registered::Changes if self.is_detached => {}
            // The kernel alone knows the room of a connection that has fallen back to TCP, although
            // bytes may be unread there.
            Registered::Changes if comes_in && (goes_out || self.events & ROOM == 0) => {}
            Registered::Changes => {
                // It has fallen back to TCP. Earlier kernel events of it were taken for wakeups.
                let all = if goes_out { Registered::WithoutRoom } else { Registered::Whole };
                self.is_woken = false;
                self.register_if_known(epoll, all);
                self.take_after_fallback();
            }
            Registered::WithoutRoom if !goes_out => {
                // The kernel decides room again, and has already been asked in this wait.
                self.register_if_known(epoll, Registered::Whole);
                if self.events & EDGE == 0 && is_writable(self.fd) {
                    self.pending |= OUT;
                }
            }
            _ if comes_in && goes_out => {
                self.is_woken = false;
                self.register(epoll, Registered::Changes);
            }
            _ if self.end().is_some_and(|end| end.unread_of_two_phases().is_some()) => {
                self.take_what_the_kernel_has();
            }
            _ if self.end().is_some_and(End::has_fallen_back) => self.take_after_fallback(),
            _ => {} // TCP still carries everything, and the kernel reports it.
        }
        if self.registered == Registered::Whole
            && let Kind::Stream(stream) = &*self.socket
            && stream.link().is_some_and(|end| end.has_fallen_back())
        {
            stream.kernel_watches_room();
        }
    }

    /// Takes what the kernel has for a connection that has fallen back to TCP since the last check.
    fn take_after_fallback(&mut self) {
        if !std::mem::replace(&mut self.has_fallen_back, true) {
            self.take_what_the_kernel_has();
        }
    }

    /// Takes what the kernel has for a connection whose bytes may have moved from memory to TCP
    /// after the kernel was asked in this wait.
    fn take_what_the_kernel_has(&mut self) {
        if self.events & (EDGE | ONESHOT) == 0 {
            self.pending |= self.has_now();
        }
    }

    /// Returns whether bytes may have come into memory since the last check.
    pub(super) fn may_have_more(&self) -> bool {
        if let Some(quiet) = &self.quiet {
            return !quiet.arrival_mark.is_the_same();
        }
        let Kind::Stream(stream) = &*self.socket else { return false };
        stream.link().is_some_and(|end| end.progress().0 != self.come && end.seen() > 0)
    }

    fn find(&self) -> Option<Found> {
        let Kind::Stream(stream) = &*self.socket else { return None };
        let end = stream.link()?;
        if self.events & EDGE == 0 {
            stream.follow_error(self.fd);
        }
        // Progress is read first: bytes that come now may be reported twice, but are never missed.
        let come = end.progress().0;
        Host::moment();
        let seen = self.edge_state(stream, come);
        Host::moment();
        let (now, ours) = stream.readiness(end);
        Host::moment();
        Some(Found { come, seen, now, ours, arrived_at: end.arrived_at() })
    }

    fn event_report(&self, found: Option<Found>) -> EventReport {
        match (&*self.socket, found) {
            (Kind::Stream(stream), Some(found)) => Some(self.stream_report(stream, &found)),
            (Kind::Datagram(datagram), _) => {
                datagram.inbox(self.fd).map(|inbox| self.datagram_report(inbox))
            }
            _ => None,
        }
        .unwrap_or_else(|| self.nothing())
    }

    fn stream_report(&self, stream: &Stream, found: &Found) -> EventReport {
        let asked = self.events & !MODES | ERR_HUP;
        let Found { now, ours, .. } = *found;
        let seen = Some(found.seen);
        let mut report = self.nothing();
        if ours != 0 {
            report.events = now & asked & (ours | ERR_HUP | RDHUP);
        }
        if (report.events | self.pending & asked) & IN != 0 {
            report.came = found.arrived_at;
            if !self.is_queued {
                report.since = report.since.max(found.arrived_at);
            }
        }
        if self.events & EDGE != 0 && report.events != 0 {
            report.events |= self.events_of_ends(stream);
            report.seen = seen;
            if report.seen == self.seen {
                // Room alone is news only for a writer that has found none.
                report.events &= if stream.is_full() { OUT | ERR_HUP } else { 0 };
            }
        }
        // With an edge the kernel reports everything that is ready, even while it carries one
        // direction only.
        let lacks_room = self.events & EDGE != 0 && asked & !ours & OUT != 0;
        if lacks_room && report.events & IN != 0 && is_writable(self.fd) {
            report.events |= OUT;
        }
        let comes_behind = |(come, _): (u64, u32)| Some(come) != seen.map(|(come, _)| come);
        if self.events & EDGE != 0
            && asked & !ours & IN != 0
            && self.seen.is_some_and(comes_behind)
            && self.has_bytes(stream)
        {
            // The kernel has reported only bytes of TCP that stand before those in memory.
            report.events |= IN | (now & asked & ours) | self.events_of_ends(stream);
            report.seen = seen;
        }
        report.events |= self.pending & asked;
        if self.events & EDGE != 0 && self.pending & asked != 0 {
            report.seen = seen;
            // The kernel reports everything that is ready.
            report.events |= now & asked & ours | self.events_of_ends(stream);
        }
        report
    }

    /// Returns the state whose change raises an edge. As in the kernel, arriving bytes (of which so
    /// many have `come`) raise an edge only for a program that waits for bytes; the peer's shutdown
    /// raises one for every program.
    fn edge_state(&self, stream: &Stream, come: u64) -> (u64, u32) {
        let come = if self.events & BYTES != 0 { come } else { 0 };
        (come, self.ends_seen(stream))
    }

    /// Returns the known end events. After an EOF the peer counts as shut down, requested or not.
    pub(super) fn ends_seen(&self, stream: &Stream) -> u32 {
        let ended = stream.ended() | self.hung;
        let shut = if ended & (IN | RDHUP) != 0 { IN | RDHUP } else { 0 };
        ended | shut
    }

    /// Records that the kernel itself has reported to the program, while memory did not carry the
    /// connection.
    pub(super) fn reported_by_kernel(&mut self, round: u64) {
        self.is_disabled = self.events & ONESHOT != 0;
        self.round = round;
        self.quiet = None;
        self.was_in_memory = false;
        if self.events & EDGE != 0 {
            self.seen = Some(match &*self.socket {
                Kind::Stream(stream) => (0, self.ends_seen(stream)),
                Kind::Datagram(_) => (0, 0),
            });
        }
    }

    /// Returns whether an edge has been reported to the program, and nothing has come since.
    pub(super) fn is_edge_reported(&self) -> bool {
        self.events & EDGE != 0
            && self.seen.is_some()
            && self.has_reported_ends()
            && self.event_report(self.find()).events == 0
            && !self.owes_edge_of_memory()
    }

    /// Returns whether bytes came by memory after the last edge, and then the connection fell back
    /// to TCP. The kernel raises an edge when bytes come, even if they are read before a wait.
    pub(super) fn owes_edge_of_memory(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let Some(end) = stream.end().filter(|end| end.has_fallen_back()) else { return false };
        let (come, _) = self.edge_state(stream, end.progress().0);
        self.was_in_memory && self.seen.is_some_and(|(seen, _)| seen != come)
    }

    /// Returns the end events that have been reported to a program that waits for edges.
    pub(super) fn ends_reported(&self) -> u32 {
        self.seen.map_or(0, |(_, ends)| ends)
    }

    /// Returns the events that the known end of the stream raises.
    fn events_of_ends(&self, stream: &Stream) -> u32 {
        let is_ended = self.ends_seen(stream) & RDHUP != 0;
        if is_ended { (IN | RDHUP) & self.events } else { 0 }
    }

    /// Returns which ends a program that waits for edges knows once it gets these events. A program
    /// that does not wait for the peer's shutdown learns of it by reading, and one that waits for
    /// room alone need not know.
    fn ends_reported_by(&self, events: u32) -> u32 {
        let is_reported = match self.events & (IN | RDHUP) {
            0 => true,
            IN => events & IN != 0,
            _ => events & RDHUP != 0,
        };
        let shut = if is_reported { IN | RDHUP } else { 0 };
        self.ends_reported() | shut | events & ERR_HUP
    }

    /// Returns whether all known ends have been reported. One that was found by the way has not, if
    /// TCP carries the connection again, so that the rings do not report it.
    pub(super) fn has_reported_ends(&self) -> bool {
        match &*self.socket {
            Kind::Stream(stream) => self.ends_seen(stream) & !self.ends_reported() == 0,
            Kind::Datagram(_) => true,
        }
    }

    /// Returns whether kernel events report bytes behind those in memory, all of which have been
    /// reported.
    pub(super) fn has_unread_behind_edge(&self, events: u32) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let behind = |link: AnyEnd<'_>| link.unread_behind(Descriptor::of(self.fd).as_fd()) > 0;
        events & IN != 0 && self.is_edge_reported() && stream.link().is_some_and(behind)
    }

    /// Returns the news of a UDP socket. The kernel reports the datagrams that it carries.
    fn datagram_report(&self, inbox: &Inbox) -> EventReport {
        const READABLE: u32 = (libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32 | IN | OUT;
        let mut report = EventReport { events: self.pending, ..self.nothing() };
        let put = inbox.put_until_now();
        let is_new = self.events & EDGE == 0 || self.seen.is_none_or(|(seen, _)| seen != put);
        if !inbox.is_empty() && self.events & IN != 0 && is_new {
            report.events |= READABLE;
            report.seen = Some((put, 0));
        }
        report.events &= self.events & !MODES | ERR_HUP;
        report
    }

    /// Arms the socket: the peer notifies. The caller checks once more.
    pub(super) fn arm(&mut self, epoll: RawFd, names: &mut Names) {
        if let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
            && !self.is_armed
        {
            datagram.log_received(self.fd);
            inbox.begin_sleep();
            self.is_armed = true;
        }
        let is_remote = matches!(&*self.socket, Kind::Stream(stream) if stream.is_remote());
        if is_remote && self.wakeup_fd.is_none() {
            self.add_wakeup_fd(epoll, names);
        }
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(end) = stream.link() else { return };
        end.acknowledge(Descriptor::of(self.fd).as_fd());
        if !self.is_armed {
            end.begin_sleep();
            let own = stream.armed().fetch_add(1, Ordering::SeqCst) + 1;
            self.is_armed = true;
            if matches!(end, AnyEnd::Local(end) if end.has_left_wakeups(own)) {
                stream.settle(self.fd, 0);
            }
        }
        if self.events & OUT != 0 && end.carrier_out() == Carrier::Memory {
            end.want_room();
        }
    }

    /// Returns whether the program waits for room; with edges, only if a writer has found none.
    pub(super) fn wants_room(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        self.lacks_room(stream) && (self.events & EDGE == 0 || self.is_out_of_room())
    }

    /// Returns whether the program waits for room and a writer has found none, so that new room
    /// raises an edge.
    pub(super) fn is_out_of_room(&self) -> bool {
        let is_full = || matches!(&*self.socket, Kind::Stream(stream) if stream.is_full());
        self.events & OUT != 0 && is_full()
    }

    fn lacks_room(&self, stream: &Stream) -> bool {
        self.events & OUT != 0 && !self.is_disabled && !self.is_detached && stream.lacks_room()
    }

    /// Returns the longest sleep if there is no room: a peer that cannot notify is asked often, and
    /// one that can may have stopped reading.
    pub(super) fn longest_sleep(&self) -> Option<u64> {
        let Kind::Stream(stream) = &*self.socket else { return None };
        let end = stream.link().filter(|_| self.lacks_room(stream))?;
        if end.can_be_woken() { self.wants_room().then_some(STALL_NS) } else { Some(SLEEP_NS) }
    }

    pub(super) fn disarm(&mut self) {
        self.untag();
        if self.is_armed
            && let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.end_sleep();
        }
        if self.is_armed
            && let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.link()
        {
            // Decremented first, so that it is never taken for another watch's: see
            // `Stream::settle`.
            stream.armed().fetch_sub(1, Ordering::Relaxed);
            fence(Ordering::Release);
            end.end_sleep();
        }
        self.is_armed = false;
    }

    /// Returns whether data waits in memory now.
    pub(super) fn holds_something(&self) -> bool {
        carrier::holds_something(&self.socket)
    }

    /// Has the kernel report the wakeups of a peer on another host.
    pub(super) fn add_wakeup_fd(&mut self, epoll: RawFd, names: &mut Names) {
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(wakeup) = stream.link().and_then(AnyEnd::wakeup_fd) else { return };
        let data = names.add_wakeup_fd(self.place);
        self.wakeup_fd = Some(data);
        let event = epoll_event { events: IN | EDGE, u64: data };
        let fd = wakeup.as_fd().as_raw_fd();
        let before = errno::get();
        // The kernel may have the entry from an earlier watch.
        if kernel_control(epoll, libc::EPOLL_CTL_ADD, fd, Some(event)) != 0 {
            kernel_control(epoll, libc::EPOLL_CTL_MOD, fd, Some(event));
        }
        errno::set_raw(before);
    }

    /// Removes the wakeup entry, because another process may get the instance's events.
    pub(super) fn remove_wakeup_fd(&mut self, epoll: RawFd, names: &mut Names) {
        let Some(data) = self.wakeup_fd.take() else { return };
        names.remove_wakeup_fd(data);
        if let Kind::Stream(stream) = &*self.socket
            && let Some(wakeup) = stream.link().and_then(AnyEnd::wakeup_fd)
        {
            let before = errno::get();
            kernel_control(epoll, libc::EPOLL_CTL_DEL, wakeup.as_fd().as_raw_fd(), None);
            errno::set_raw(before);
        }
    }
}
