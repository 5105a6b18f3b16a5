//! Sleeping for all sockets of an instance by one alarm.
//!
//! A server that answers many connections of one client would be notified for each of them before
//! the client has got its core back, and every wakeup is a system call on both sides. So the first
//! is to be the only one: see [`weft_sys::Alarm`]. And it comes by a pipe that the instance
//! watches, which costs less than a byte over TCP.
//!
//! The kernel reports the pipe to any thread that waits in the instance, and that must be one that
//! knows it: the pipe is closed before the instance is watched itself, or another process can have
//! it.
//!
//! That says what one sleeper looks at when it wakes. So as soon as a second thread waits in the
//! instance, or another one looks on the sleeper's behalf, each socket has its own wakeup again.
//! What another thread adds or changes while one sleeps joins that sleep.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::atomic::{Ordering, fence};

use libc::epoll_event;
use weft_stream::OwnAlarm;
use weft_sys::Tag;

use super::carrier::kernel_control;
use super::{IN, Reach, Watch, Watches};
use crate::limits::{IDLE_SLEEPS_MIN, IDLE_SLEEPS_TIMES_POLLED, PIPE_TRIES_MAX};
use crate::link::Link;
use crate::sockets::Kind;
use crate::{errno, identity, shared_files, sleepers};

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
    /// How often a pipe has been opened for it, or was to be.
    pipe_tries: u32,
    /// Places of those that are looked at again when the sleep is over.
    tagged: Vec<usize>,
    /// The tag of the only sleep, while nobody but the sleeper takes its wakeup.
    current: Option<Tag>,
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
        sleepers::settle_down();
        let tag = self.next_tag(epoll);
        let Self { polled, places, names, .. } = self;
        let idle_sleeps_max = idle_sleeps_max(polled.len());
        for &place in polled.iter() {
            if let Some(watch) = places[place].as_mut() {
                watch.arm(epoll, names);
                watch.tag(tag, idle_sleeps_max);
            }
        }
        match (&self.sleep.alarm, tag) {
            (Some(alarm), Some(tag)) => alarm.begin(tag),
            _ => fence(Ordering::SeqCst),
        }
        self.sleep.current = tag;
        Begun(tag)
    }

    /// It sleeps no more, or does not after all.
    pub(super) fn end_sleep(&mut self, begun: Begun) {
        self.sleep.asleep = self.sleep.asleep.saturating_sub(1);
        sleepers::rise();
        if let (Some(alarm), Some(tag)) = (&self.sleep.alarm, begun.0) {
            alarm.end(tag);
        }
        self.sleep.current = None;
        self.poll_tagged();
    }

    /// A polled socket has been added or changed while another thread sleeps: the alarm wakes that
    /// one, and it looks at the socket afterwards. The caller looks once more.
    pub(super) fn join_sleep(&mut self, epoll: RawFd, place: usize) {
        let Self { polled, places, names, sleep, .. } = self;
        if sleep.current.is_some()
            && let Some(watch) = places[place].as_mut().filter(|watch| watch.is_polled)
        {
            watch.arm(epoll, names);
            watch.tag(sleep.current, idle_sleeps_max(polled.len()));
        }
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
    /// itself, and what has come without a wakeup is found by the thread that looks now.
    pub(super) fn end_tags(&mut self) {
        self.sleep.current = None;
        self.poll_tagged();
        for &place in &self.polled {
            if let Some(watch) = self.places[place].as_mut() {
                watch.untag();
            }
        }
    }

    /// The tag of the only sleep of an instance that sleeps by a pipe, or for several sockets.
    fn next_tag(&mut self, epoll: RawFd) -> Option<Tag> {
        if self.sleep.waiting > 1 || self.polled.is_empty() {
            return None;
        }
        if self.sleep.alarm.is_none() && !self.sleep.has_none {
            let take = |registry| OwnAlarm::take(registry, identity::number());
            self.sleep.alarm = shared_files::registry().and_then(take);
            self.sleep.has_none = self.sleep.alarm.is_none();
        }
        if self.reach == Reach::Own && !self.is_exposed {
            self.open_pipe(epoll);
        }
        let alarm = self.sleep.alarm.as_ref()?;
        (alarm.has_pipe() || self.polled.len() > 1).then(|| alarm.next())
    }

    fn open_pipe(&mut self, epoll: RawFd) {
        let Self { sleep, names, .. } = self;
        let Some(alarm) = sleep.alarm.as_mut().filter(|alarm| !alarm.has_pipe()) else { return };
        if sleep.pipe_tries == PIPE_TRIES_MAX {
            return;
        }
        sleep.pipe_tries += 1;
        let before = errno::get();
        alarm.open_pipe(|pipe| {
            let event = epoll_event { events: IN, u64: names.add_alarm() };
            let fd = pipe.as_raw_fd();
            let is_watched = kernel_control(epoll, libc::EPOLL_CTL_ADD, fd, Some(event)) == 0;
            if !is_watched {
                names.remove_alarm();
            }
            is_watched
        });
        errno::set_raw(before);
    }

    /// The alarm's pipe has woken somebody.
    pub(super) fn drain_alarm(&self) {
        if let Some(alarm) = &self.sleep.alarm {
            alarm.drain_pipe();
        }
    }

    /// No pipe wakes those who wait for the instance any more: peers notify for each socket, and
    /// what one has brought and rung for by the pipe is looked for on a sleeper's behalf.
    pub(super) fn close_pipe(&mut self, epoll: RawFd) {
        let Some(pipe) = self.sleep.alarm.as_mut().and_then(OwnAlarm::close_pipe) else { return };
        let before = errno::get();
        self.names.remove_alarm();
        kernel_control(epoll, libc::EPOLL_CTL_DEL, pipe.as_fd().as_raw_fd(), None);
        drop(pipe);
        errno::set_raw(before);
        if self.sleep.is_anyone_asleep() {
            self.end_tags();
            self.start_polling_all();
            self.pass_on(epoll);
        }
    }

    /// Nothing is watched any more.
    pub(super) fn drop_alarm(&mut self) {
        self.names.remove_alarm();
        self.sleep.alarm = None;
    }

    /// This is a child just born: the alarm is the parent's, and so are those that sleep.
    pub(super) fn forget_alarm(&mut self) {
        std::mem::forget(self.sleep.alarm.take());
        self.sleep = Sleeps::default();
    }
}

/// After how many sleeps without anything for a socket its peer notifies for it alone, where so
/// many are polled.
fn idle_sleeps_max(polled: usize) -> usize {
    (IDLE_SLEEPS_TIMES_POLLED / polled.max(1)).max(IDLE_SLEEPS_MIN)
}

impl Watch {
    /// The alarm is rung for it in the sleep of this tag, if things have come for it lately.
    fn tag(&mut self, tag: Option<Tag>, idle_sleeps_max: usize) {
        let tag = tag.filter(|_| self.is_armed && (self.idle_sleeps as usize) < idle_sleeps_max);
        if (tag.is_some() || self.is_tagged)
            && let Kind::Stream(stream) = &*self.socket
            && let Some(Link::Local(end)) = stream.link()
        {
            self.is_tagged = end.tag_sleep(tag) && tag.is_some();
        }
    }

    /// The peer notifies for it alone.
    pub(super) fn untag(&mut self) {
        self.tag(None, 0);
    }
}
