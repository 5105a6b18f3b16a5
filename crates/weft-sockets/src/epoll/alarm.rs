//! Sleeping for several sockets at once, by one alarm.
//!
//! A server that answers many connections of one client would ring for each of them before the
//! client has got its core back, and every bell is a system call on both sides. So the first bell
//! is to be the only one: see [`weft_sys::Alarm`].

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use weft_stream::OwnAlarm;
use weft_sys::Tag;

use super::{Watch, Watches};
use crate::link::Link;
use crate::table::Kind;
use crate::{process, settings};

/// Sleeps in which nothing came for a socket, after which its peer rings for it alone: it is not
/// looked at after each of the others.
const IDLE_SLEEPS_MAX: u32 = 3;

/// How an instance's waits sleep.
#[derive(Debug, Default)]
pub(super) struct Nap {
    /// Waits that sleep, or are about to.
    sleepers: u32,
    alarm: Option<OwnAlarm>,
    /// There was none to be had.
    has_none: bool,
    /// Places of those that are looked at again when the sleep is over.
    warm: Vec<usize>,
}

impl Nap {
    /// One is not looked at until the sleep is over, or the peer rings for it.
    pub(super) fn cooled(&mut self, watch: &Watch) {
        if watch.tagged {
            self.warm.push(watch.place);
        }
    }
}

/// A sleep that has begun.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Begun(Option<Tag>);

impl Watches {
    /// A wait is about to sleep, after one more look: from here on the peers of all hot sockets
    /// ring.
    pub(super) fn begin_sleep(&mut self, epoll: RawFd) -> Begun {
        self.nap.sleepers += 1;
        if self.nap.sleepers > 1 {
            // One alarm would wake one of the sleepers, where each socket is to wake one.
            self.warm_up();
        }
        let tag = self.next_tag();
        for &place in &self.hot {
            if let Some(watch) = self.places[place].as_mut() {
                watch.arm(epoll);
                watch.tag(tag);
            }
        }
        match (&self.nap.alarm, tag) {
            (Some(alarm), Some(tag)) => alarm.begin(tag),
            _ => fence(Ordering::SeqCst),
        }
        Begun(tag)
    }

    /// It sleeps no more, or does not after all.
    pub(super) fn end_sleep(&mut self, begun: Begun) {
        self.nap.sleepers = self.nap.sleepers.saturating_sub(1);
        if let (Some(alarm), Some(tag)) = (&self.nap.alarm, begun.0) {
            alarm.end(tag);
        }
        self.warm_up();
    }

    /// Whatever the alarm has been rung for is looked at.
    fn warm_up(&mut self) {
        while let Some(place) = self.nap.warm.pop() {
            if let Some(watch) = self.places[place].as_mut()
                && watch.tagged
                && !watch.is_hot
            {
                watch.is_hot = true;
                watch.idle_looks = 0;
                watch.idle_sleeps += 1;
                self.hot.push(place);
            }
        }
    }

    /// The tag of the only sleep of an instance that sleeps for several sockets.
    fn next_tag(&mut self) -> Option<Tag> {
        if self.nap.sleepers > 1 || self.hot.len() < 2 {
            return None;
        }
        if self.nap.alarm.is_none() && !self.nap.has_none {
            let take = |registry| OwnAlarm::take(registry, process::number());
            self.nap.alarm = settings::registry().and_then(take);
            self.nap.has_none = self.nap.alarm.is_none();
        }
        Some(self.nap.alarm.as_ref()?.next())
    }

    /// Nothing is watched any more.
    pub(super) fn drop_alarm(&mut self) {
        self.nap.alarm = None;
    }

    /// This is a child just born: the alarm is the parent's, and so are those that sleep.
    pub(super) fn forget_alarm(&mut self) {
        std::mem::forget(self.nap.alarm.take());
        self.nap = Nap::default();
    }
}

impl Watch {
    /// The alarm is rung for it in the sleep of this tag, if things have come for it lately.
    pub(super) fn tag(&mut self, tag: Option<Tag>) {
        let tag = tag.filter(|_| self.armed && self.idle_sleeps < IDLE_SLEEPS_MAX);
        if (tag.is_some() || self.tagged)
            && let Kind::Stream(stream) = &*self.socket
            && let Some(Link::Here(end)) = stream.link()
        {
            self.tagged = end.tag_sleep(tag) && tag.is_some();
        }
    }
}
