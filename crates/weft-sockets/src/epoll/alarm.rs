//! Sleeping for several sockets at once, by one alarm.
//!
//! A server that answers many connections of one client would be notified for each of them before
//! the client has got its core back, and every wakeup is a system call on both sides. So the first
//! is to be the only one: see [`weft_sys::Alarm`].
//!
//! That says what one sleeper looks at when it wakes. So as soon as a second thread waits in the
//! instance, or another one looks on the sleeper's behalf, each socket has its own wakeup again.

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use weft_stream::OwnAlarm;
use weft_sys::Tag;

use super::{Watch, Watches, wakeup};
use crate::link::Link;
use crate::table::Kind;
use crate::{process, settings};

/// Sleeps in which nothing came for a socket, after which its peer notifies for it alone: it is not
/// looked at after each of the others.
const IDLE_SLEEPS_MAX: u32 = 3;

/// How an instance's waits sleep.
#[derive(Debug, Default)]
pub(super) struct Sleeps {
    /// Threads that are in a wait.
    waiting: u32,
    /// Those of them that sleep, or are about to.
    asleep: u32,
    alarm: Option<OwnAlarm>,
    /// There was none to be had.
    has_none: bool,
    /// Places of those that are looked at again when the sleep is over.
    tagged: Vec<usize>,
}

impl Sleeps {
    pub(super) fn is_anyone_asleep(&self) -> bool {
        self.asleep > 0
    }

    /// One is not looked at until the sleep is over, or its peer notifies.
    pub(super) fn rests(&mut self, watch: &Watch) {
        if watch.is_tagged {
            self.tagged.push(watch.place);
        }
    }
}

/// A sleep that has begun.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Begun(Option<Tag>);

impl Watches {
    /// A thread begins to wait. Returns the wait's number.
    pub(super) fn begin_wait(&mut self) -> u64 {
        self.sleep.waiting += 1;
        if self.sleep.waiting > 1 {
            self.end_tags();
        }
        self.round += 1;
        self.round
    }

    pub(super) fn end_wait(&mut self) {
        self.sleep.waiting = self.sleep.waiting.saturating_sub(1);
    }

    /// A wait is about to sleep, after one more look: from here on the peers of all polled sockets
    /// notify.
    pub(super) fn begin_sleep(&mut self, epoll: RawFd) -> Begun {
        self.sleep.asleep += 1;
        wakeup::settle_down();
        let tag = self.next_tag();
        let Self { polled, places, names, .. } = self;
        for &place in polled.iter() {
            if let Some(watch) = places[place].as_mut() {
                watch.arm(epoll, names);
                watch.tag(tag);
            }
        }
        match (&self.sleep.alarm, tag) {
            (Some(alarm), Some(tag)) => alarm.begin(tag),
            _ => fence(Ordering::SeqCst),
        }
        Begun(tag)
    }

    /// It sleeps no more, or does not after all.
    pub(super) fn end_sleep(&mut self, begun: Begun) {
        self.sleep.asleep = self.sleep.asleep.saturating_sub(1);
        wakeup::rise();
        if let (Some(alarm), Some(tag)) = (&self.sleep.alarm, begun.0) {
            alarm.end(tag);
        }
        self.poll_tagged();
    }

    /// Whatever the alarm has been rung for is looked at.
    fn poll_tagged(&mut self) {
        while let Some(place) = self.sleep.tagged.pop() {
            if let Some(watch) = self.places[place].as_mut()
                && watch.is_tagged
                && !watch.is_polled
            {
                watch.is_polled = true;
                watch.idle_looks = 0;
                watch.idle_sleeps += 1;
                self.polled.push(place);
            }
        }
    }

    /// Somebody else than the sleeper may take its wakeup: from here on each peer notifies for
    /// itself, and what has come without a wakeup is found by whoever looks now.
    pub(super) fn end_tags(&mut self) {
        self.poll_tagged();
        for &place in &self.polled {
            if let Some(watch) = self.places[place].as_mut() {
                watch.tag(None);
            }
        }
    }

    /// The tag of the only sleep of an instance that sleeps for several sockets.
    fn next_tag(&mut self) -> Option<Tag> {
        if self.sleep.waiting > 1 || self.polled.len() < 2 {
            return None;
        }
        if self.sleep.alarm.is_none() && !self.sleep.has_none {
            let take = |registry| OwnAlarm::take(registry, process::number());
            self.sleep.alarm = settings::registry().and_then(take);
            self.sleep.has_none = self.sleep.alarm.is_none();
        }
        Some(self.sleep.alarm.as_ref()?.next())
    }

    /// Nothing is watched any more.
    pub(super) fn drop_alarm(&mut self) {
        self.sleep.alarm = None;
    }

    /// This is a child just born: the alarm is the parent's, and so are those that sleep.
    pub(super) fn forget_alarm(&mut self) {
        std::mem::forget(self.sleep.alarm.take());
        self.sleep = Sleeps::default();
    }
}

impl Watch {
    /// The alarm is rung for it in the sleep of this tag, if things have come for it lately.
    pub(super) fn tag(&mut self, tag: Option<Tag>) {
        let tag = tag.filter(|_| self.is_armed && self.idle_sleeps < IDLE_SLEEPS_MAX);
        if (tag.is_some() || self.is_tagged)
            && let Kind::Stream(stream) = &*self.socket
            && let Some(Link::Here(end)) = stream.link()
        {
            self.is_tagged = end.tag_sleep(tag) && tag.is_some();
        }
    }
}
