//! One socket in an instance.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering;

use libc::epoll_event;
use weft_stream::Carrier;
use weft_stream::datagram::Inbox;
use weft_stream::remote::Doorbell;

use super::{
    DOORBELL, EDGE, ERR_HUP, EXCLUSIVE, IN, MODES, ONESHOT, OUT, RDHUP, Watch, changes,
    kernel_control, mark,
};
use crate::errno;
use crate::link::Link;
use crate::stream::{Stream, borrow};
use crate::table::Kind;

/// What there is to tell of a socket.
struct News {
    events: u32,
    /// What was there then, for edges.
    seen: Option<(u64, u32)>,
    /// Only that there is room again.
    of_room: bool,
}

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

    /// What there is to tell now. Telling it uses it up.
    pub(super) fn ready(&mut self, epoll: RawFd) -> u32 {
        self.take_part(epoll);
        if self.spent {
            return 0;
        }
        let news = self.news();
        if news.of_room
            && let Kind::Stream(stream) = &*self.socket
        {
            stream.take_full();
        }
        self.seen = news.seen;
        self.withheld = 0;
        self.spent = news.events != 0 && self.events & ONESHOT != 0;
        news.events
    }

    /// Moves on with the connection, and asks the kernel for changes alone once the rings carry it.
    fn take_part(&mut self, epoll: RawFd) {
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(end) = stream.link() else { return };
        end.advance(borrow(self.via));
        if let Link::Here(end) = end {
            stream.is_looked_at(end);
        }
        if self.converted {
            return;
        }
        // If TCP still carries everything the kernel tells.
        let (_, ours) = stream.readiness(end);
        if ours & IN != 0 && ours & OUT != 0 {
            self.converted = true;
            convert(epoll, self, changes(self.events));
        }
    }

    /// Looks what there is to tell, and takes nothing.
    fn news(&self) -> News {
        match &*self.socket {
            Kind::Stream(stream) => stream.link().map(|end| self.news_of(stream, end)),
            Kind::Datagram(datagram) => {
                datagram.inbox(self.via).map(|inbox| self.news_of_datagrams(inbox))
            }
            Kind::Epoll(_) => None,
        }
        .unwrap_or(News { events: 0, seen: self.seen, of_room: false })
    }

    fn news_of(&self, stream: &Stream, end: Link<'_>) -> News {
        let asked = self.events & !MODES | ERR_HUP;
        // What comes between the two is told twice rather than never.
        let seen = Some((end.progress().0, stream.ended()));
        let (now, ours) = stream.readiness(end);
        let mut news = News { events: 0, seen: self.seen, of_room: false };
        if ours != 0 {
            news.events = now & asked & (ours | ERR_HUP | RDHUP);
        }
        if self.events & EDGE != 0 && news.events != 0 {
            news.seen = seen;
            if news.seen == self.seen {
                // Room alone is news only for one who has found none.
                news.of_room = stream.is_full();
                news.events &= if news.of_room { OUT | ERR_HUP } else { 0 };
            }
        }
        news.events |= self.withheld & asked;
        news
    }

    /// The same for a UDP socket. The kernel tells what has come by the kernel.
    fn news_of_datagrams(&self, inbox: &Inbox) -> News {
        const READABLE: u32 = (libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32 | IN | OUT;
        let mut news = News { events: self.withheld, seen: self.seen, of_room: false };
        let put = inbox.put_so_far();
        let is_news = self.events & EDGE == 0 || self.seen.is_none_or(|(seen, _)| seen != put);
        if !inbox.is_empty() && self.events & IN != 0 && is_news {
            news.events |= READABLE;
            news.seen = Some((put, 0));
        }
        news.events &= self.events & !MODES | ERR_HUP;
        news
    }

    /// Has the peer ring.
    pub(super) fn arm(&mut self, epoll: RawFd) {
        if let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
            && !self.armed
        {
            datagram.tell_received(self.via);
            inbox.begin_sleep();
            self.armed = true;
        }
        let Kind::Stream(stream) = &*self.socket else { return };
        let Some(end) = stream.link() else { return };
        if let Some(bell) = end.doorbell().filter(|_| !self.has_doorbell) {
            self.has_doorbell = true;
            add_doorbell(epoll, bell, mark(self.place, self.counter));
        }
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

    /// Whether there is nothing to tell. Takes nothing of it.
    pub(super) fn is_quiet(&mut self, epoll: RawFd) -> bool {
        self.take_part(epoll);
        self.spent || self.news().events == 0
    }

    /// Whether the program waits for room of a peer that cannot ring when it has made some.
    pub(super) fn waits_unheard(&self) -> bool {
        let Kind::Stream(stream) = &*self.socket else { return false };
        let Some(end) = stream.link() else { return false };
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

    pub(super) fn disarm(&mut self) {
        self.tag(None);
        if self.armed
            && let Kind::Datagram(datagram) = &*self.socket
            && let Some(inbox) = datagram.known_inbox()
        {
            inbox.end_sleep();
        }
        if self.armed
            && let Kind::Stream(stream) = &*self.socket
            && let Some(end) = stream.link()
        {
            end.end_sleep();
            stream.armed().fetch_sub(1, Ordering::Relaxed);
        }
        self.armed = false;
    }
}

/// The kernel tells from here on when it rings. It may have it from an earlier watch.
fn add_doorbell(epoll: RawFd, bell: &Doorbell, mark: u64) {
    let event = epoll_event { events: IN | EDGE, u64: mark | DOORBELL };
    let fd = bell.as_fd().as_raw_fd();
    let before = errno::get();
    if kernel_control(epoll, libc::EPOLL_CTL_ADD, fd, Some(event)) != 0 {
        kernel_control(epoll, libc::EPOLL_CTL_MOD, fd, Some(event));
    }
    errno::set_raw(before);
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
