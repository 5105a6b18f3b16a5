//! One socket in an instance.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::epoll_event;
use weft_stream::{Carrier, End};

use super::{
    EDGE, ERR_HUP, EXCLUSIVE, IN, MODES, ONESHOT, OUT, RDHUP, Watch, changes, kernel_control, mark,
};
use crate::errno;
use crate::stream::{Stream, borrow};
use crate::table::Kind;

impl Watch {
    /// The program waits for this from here on.
    pub(super) fn wait_for(&mut self, event: epoll_event) {
        self.events = event.events;
        self.data = event.u64;
        self.spent = false;
        self.dormant = false;
        self.seen = None;
        self.withheld = 0;
    }

    /// The kernel has told of this in a wait: the program is told at the next look.
    pub(super) fn withhold(&mut self, events: u32, round: u64) {
        (self.withheld, self.withheld_in) = (self.withheld | events, round);
    }

    /// What the kernel has told in an earlier wait than this it tells again, unless it was asked
    /// for what is told once.
    pub(super) fn forget_withheld(&mut self, round: u64) {
        if self.events & (EDGE | ONESHOT) == 0 && self.withheld_in != round {
            self.withheld = 0;
        }
    }

    /// What there is to tell now.
    pub(super) fn ready(&mut self, epoll: RawFd) -> u32 {
        if let Kind::Datagram(_) = &*self.socket {
            return self.ready_of_datagrams();
        }
        let Kind::Stream(stream) = &*self.socket else { return 0 };
        let Some(end) = stream.end() else { return 0 };
        end.advance(borrow(self.via));
        stream.is_looked_at(end);
        let (now, ours) = stream.readiness(end);
        // If TCP still carries everything the kernel tells.
        if !self.converted && ours & IN != 0 && ours & OUT != 0 {
            self.converted = true;
            convert(epoll, self, changes(self.events));
        }
        if self.spent {
            return 0;
        }
        let asked = self.events & !MODES | ERR_HUP;
        let mut ready = if ours == 0 { 0 } else { now & asked & (ours | ERR_HUP | RDHUP) };
        if self.events & EDGE != 0 && ready != 0 {
            ready = news(&mut self.seen, stream, end, ready);
        }
        ready |= std::mem::take(&mut self.withheld) & asked;
        self.spent = ready != 0 && self.events & ONESHOT != 0;
        ready
    }

    /// The same for a UDP socket. The kernel tells what has come by the kernel.
    fn ready_of_datagrams(&mut self) -> u32 {
        const READABLE: u32 = (libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32 | IN | OUT;
        let Kind::Datagram(datagram) = &*self.socket else { return 0 };
        let Some(inbox) = datagram.inbox(self.via).filter(|_| !self.spent) else { return 0 };
        let mut ready = std::mem::take(&mut self.withheld);
        let put = inbox.put_so_far();
        let is_news = self.events & EDGE == 0 || self.seen.is_none_or(|(seen, _)| seen != put);
        if !inbox.is_empty() && self.events & IN != 0 && is_news {
            ready |= READABLE;
            self.seen = Some((put, 0));
        }
        ready &= self.events & !MODES | ERR_HUP;
        self.spent = ready != 0 && self.events & ONESHOT != 0;
        ready
    }

    /// Has the peer ring.
    pub(super) fn arm(&mut self) {
        if let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
            && !self.armed
        {
            inbox.begin_sleep();
            self.armed = true;
        }
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(end) = stream.end() else { return };
        end.acknowledge(borrow(self.via));
        if !self.armed {
            end.begin_sleep();
            stream.armed().fetch_add(1, Ordering::Relaxed);
            self.armed = true;
        }
        if self.events & OUT != 0 && end.carrier_out() == Carrier::Memory {
            end.want_room();
        }
    }

    /// Whether there is nothing to tell, as [`Watch::ready`] would, which it leaves as it was.
    pub(super) fn is_quiet(&mut self, epoll: RawFd) -> bool {
        let before = (self.seen, self.spent, self.withheld);
        let full = matches!(&*self.socket, Kind::Stream(stream) if stream.is_full());
        let quiet = self.ready(epoll) == 0;
        if full && let Kind::Stream(stream) = &*self.socket {
            stream.be_full();
        }
        (self.seen, self.spent, self.withheld) = before;
        quiet
    }

    /// Whether the program waits for room of a peer that cannot ring when it has made some.
    pub(super) fn waits_unheard(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let Some(end) = stream.end() else { return false };
        self.events & OUT != 0
            && !self.spent
            && end.carrier_out() == Carrier::Memory
            && !end.can_be_rung()
            && !end.is_writable()
    }

    /// Is not looked at any more until the peer rings. `false` for one that has no peer who would.
    pub(super) fn cool(&mut self) -> bool {
        self.is_hot = !self.armed;
        self.armed
    }

    pub(super) fn disarm(&self) {
        if self.armed
            && let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.end_sleep();
        }
        if self.armed
            && let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.end()
        {
            end.end_sleep();
            stream.armed().fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What of `ready` has not been told yet, to one that is told of changes.
fn news(told: &mut Option<(u64, u32)>, stream: &Stream, end: &End, ready: u32) -> u32 {
    let seen = Some((end.progress().0, stream.ended()));
    if std::mem::replace(told, seen) != seen {
        return ready;
    }
    // Room alone is news only for one who has found none.
    if stream.take_full() { ready & (OUT | ERR_HUP) } else { 0 }
}

/// The kernel is asked for other events from here on.
pub(super) fn convert(epoll: RawFd, watch: &Watch, events: u32) {
    if watch.events & EXCLUSIVE != 0 {
        return; // It cannot be changed; only its data is ours.
    }
    let marked = epoll_event { events, u64: mark(watch.place, watch.counter) };
    let before = errno::get();
    kernel_control(epoll, libc::EPOLL_CTL_MOD, watch.via, Some(marked));
    errno::set_raw(before);
}
