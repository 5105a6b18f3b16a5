//! Puts an instance's waits to sleep on one alarm for all sockets.
//!
//! Consider a server that answers many connections of one client: each peer would notify it before
//! the client has got its core back, and each wakeup is a system call on both sides. With an alarm
//! the first wakeup is the only one: see [`weft_sys::Alarm`]. It comes through a pipe that the
//! instance watches, which is cheaper than a byte over TCP.
//!
//! The kernel reports the pipe to any thread that waits in the instance, and that thread must
//! recognise it. So the pipe is closed before the instance itself is watched, or before another
//! process can have it.
//!
//! The alarm wakes one sleeper, which then checks all tagged sockets. So as soon as a second thread
//! waits in the instance, or another thread checks sockets on the sleeper's behalf, each socket
//! notifies for itself again. Sockets that another thread adds or changes during a sleep join that
//! sleep's alarm.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::atomic::{Ordering, fence};

use libc::epoll_event;
use weft_stream::OwnAlarm;
use weft_sys::Tag;

use super::carrier::kernel_control;
use super::{IN, Visibility, Watch, Watches};
use crate::limits::{IDLE_SLEEPS_MIN, IDLE_SLEEPS_TIMES_POLLED, PIPE_TRIES_MAX};
use crate::link::AnyEnd;
use crate::sockets::Kind;
use crate::{errno, identity, shared_files, sleepers};

/// The state of an instance's sleeping waits.
#[derive(Debug, Default)]
pub(super) struct Sleeps {
    /// Number of threads in a wait.
    waiting: u32,
    /// Number of those that sleep, or are about to.
    asleep: u32,
    alarm: Option<OwnAlarm>,
    /// No alarm was free.
    has_none: bool,
    /// How often the instance has tried to open a pipe for it.
    pipe_tries: u32,
    /// Indices of tagged watches that are polled again after the sleep.
    tagged: Vec<usize>,
    /// The tag of the only sleep, while only the sleeper handles its wakeup.
    current: Option<Tag>,
}

impl Sleeps {
    pub(super) fn is_anyone_asleep(&self) -> bool {
        self.asleep > 0
    }

    /// Returns the number of threads in a wait, which may have taken events from the kernel.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Notes a tagged watch that is not polled until the sleep is over or its peer notifies.
    pub(super) fn note_unpolled(&mut self, watch: &Watch) {
        if watch.is_tagged {
            self.tagged.push(watch.place);
        }
    }
}

/// A sleep that has begun, with its tag.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Begun(Option<Tag>);

impl Watches {
    /// Begins a wait. Returns the wait's number.
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

    /// Begins a sleep, after which the caller checks once more: from here on the peers of all
    /// polled sockets notify.
    pub(super) fn begin_sleep(&mut self, epoll: RawFd) -> Begun {
        self.sleep.asleep += 1;
        sleepers::begin_sleep();
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

    /// Ends a sleep, or one that did not happen after all.
    pub(super) fn end_sleep(&mut self, begun: Begun) {
        self.sleep.asleep = self.sleep.asleep.saturating_sub(1);
        sleepers::end_sleep();
        if let (Some(alarm), Some(tag)) = (&self.sleep.alarm, begun.0) {
            alarm.end(tag);
        }
        self.sleep.current = None;
        self.poll_tagged();
    }

    /// Adds a socket, which another thread has added or changed, to the current sleep: the alarm
    /// wakes the sleeper, which then checks the socket. The caller checks once more.
    pub(super) fn join_sleep(&mut self, epoll: RawFd, place: usize) {
        let Self { polled, places, names, sleep, .. } = self;
        if sleep.current.is_some()
            && let Some(watch) = places[place].as_mut().filter(|watch| watch.is_polled)
        {
            watch.arm(epoll, names);
            watch.tag(sleep.current, idle_sleeps_max(polled.len()));
        }
    }

    /// Polls all sockets again that the alarm stands for.
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

    /// Ends the sharing of one alarm because a thread other than the sleeper may take the wakeup:
    /// from here on each peer notifies for its own socket, and the calling thread checks for what
    /// has come without a wakeup.
    pub(super) fn end_tags(&mut self) {
        self.sleep.current = None;
        self.poll_tagged();
        for &place in &self.polled {
            if let Some(watch) = self.places[place].as_mut() {
                watch.untag();
            }
        }
    }

    /// Returns the tag of the next sleep, if it is the instance's only one and uses a pipe or
    /// stands for several sockets.
    fn next_tag(&mut self, epoll: RawFd) -> Option<Tag> {
        if self.sleep.waiting > 1 || self.polled.is_empty() {
            return None;
        }
        if self.sleep.alarm.is_none() && !self.sleep.has_none {
            let take = |registry| OwnAlarm::take(registry, identity::number());
            self.sleep.alarm = shared_files::registry().and_then(take);
            self.sleep.has_none = self.sleep.alarm.is_none();
        }
        if self.reach == Visibility::Own && !self.is_exposed {
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

    /// Drains the alarm's pipe, after it has woken a thread.
    pub(super) fn drain_alarm(&self) {
        if let Some(alarm) = &self.sleep.alarm {
            alarm.drain_pipe();
        }
    }

    /// Closes the pipe: peers notify for each socket from here on. Events whose wakeup the pipe has
    /// swallowed are looked for on a sleeper's behalf.
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

    /// Frees the alarm, when the instance watches nothing any more.
    pub(super) fn drop_alarm(&mut self) {
        self.names.remove_alarm();
        self.sleep.alarm = None;
    }

    /// Forgets the alarm and the sleepers in a forked child: they are the parent's.
    pub(super) fn forget_alarm(&mut self) {
        std::mem::forget(self.sleep.alarm.take());
        self.sleep = Sleeps::default();
    }
}

/// Returns how many sleeps a socket may stay idle before its peer notifies for it alone, when
/// `polled` sockets are polled.
fn idle_sleeps_max(polled: usize) -> usize {
    (IDLE_SLEEPS_TIMES_POLLED / polled.max(1)).max(IDLE_SLEEPS_MIN)
}

impl Watch {
    /// Tags the watch for this sleep if data has come for it lately, so that one alarm stands for
    /// it.
    fn tag(&mut self, tag: Option<Tag>, idle_sleeps_max: usize) {
        let tag = tag.filter(|_| self.is_armed && (self.idle_sleeps as usize) < idle_sleeps_max);
        if (tag.is_some() || self.is_tagged)
            && let Kind::Stream(stream) = &*self.socket
            && let Some(AnyEnd::Local(end)) = stream.link()
        {
            self.is_tagged = end.tag_sleep(tag) && tag.is_some();
        }
    }

    /// Has the peer notify for this socket alone.
    pub(super) fn untag(&mut self) {
        self.tag(None, 0);
    }
}
