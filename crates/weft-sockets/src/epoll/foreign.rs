//! Registrations that another process has made in an instance that is shared since a `fork(2)`.
//!
//! The kernel lists the sockets and their registered events (`proc(5)`, fdinfo). An event of such a
//! socket may be an announcement ([`super::fallback`]). The process that made it recognises it by
//! its data, the others by [`WRITE_NORMAL`].

use std::os::fd::{AsFd as _, RawFd};

use libc::epoll_event;

use super::carrier::{fall_back_to_tcp, holds_something, kernel_control, may_hold_something};
use super::{EDGE, ERR_HUP, IN, MODES, ONESHOT, OUT, RDHUP, Registered, Watches};
use crate::descriptor::Descriptor;
use crate::errno;
use crate::kernel::{Host, Kernel as _};
use crate::sockets::{self, Held};

/// Another name for room, which programs do not register for. It is there whenever room is.
pub(super) const WRITE_NORMAL: u32 = libc::EPOLLWRNORM.cast_unsigned();

/// Another name for readable bytes, which programs do not register one-shots for. It is there
/// whenever bytes or the end of the stream are.
pub(super) const READ_NORMAL: u32 = libc::EPOLLRDNORM.cast_unsigned();

/// Returns the mark of a registration other than the program's own, for a program that waits for
/// these `events`. An event that has the mark is of such a registration, even if a thread reports
/// it only after another thread has given the socket to the kernel: see
/// [`super::Watch::is_of_earlier_registration`].
pub(super) fn mark(events: u32) -> u32 {
    if events & ONESHOT != 0 { READ_NORMAL } else { 0 }
}

/// Marks a registration that announces data in memory. The kernel keeps this bit, and no socket
/// ever raises it.
pub(super) const IS_ANNOUNCED: u32 = 1 << 21;

/// Marks a note that is current: it was written after a fork.
pub(super) const IS_EXACT: u32 = 1 << 22;

/// Marks a registration for less than what the program waits for. The bits from [`FIRST_BIT`] up to
/// this one note what the program waits for.
const IS_CHANGES: u32 = 1 << 20;
const FIRST_BIT: u32 = 14;
const KEPT: [u32; 6] = [IN, libc::EPOLLPRI.cast_unsigned(), OUT, RDHUP, EDGE, ONESHOT];

/// Encodes the events that the program waits for in bits that the kernel keeps and never reports.
pub(super) fn note(events: u32) -> u32 {
    let bits = KEPT.iter().zip(FIRST_BIT..);
    bits.filter(|(kept, _)| events & **kept != 0).fold(IS_CHANGES, |all, (_, bit)| all | 1 << bit)
}

/// A socket in an instance, as the kernel lists it.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its descriptor in the process that has registered it.
    pub(super) fd: RawFd,
    pub(super) events: u32,
    pub(super) data: u64,
    inode: u64,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let fd = line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok()?;
        let value = |name: &str| {
            let after = line.split_once(name)?.1.trim_start();
            u64::from_str_radix(after.split_whitespace().next()?, 16).ok()
        };
        let events = u32::try_from(value("events:")?).ok()?;
        Some(Self { fd, events, data: value("data:")?, inode: value("ino:")? })
    }

    /// Returns the socket, if this process has it under the same number.
    fn socket(&self) -> Option<Held> {
        let held = sockets::find(self.fd)?;
        let inode = Host::inode(Descriptor::of(self.fd).as_fd())?;
        (inode == self.inode).then_some(held)
    }

    /// Returns the events that the program waits for.
    fn asked(&self) -> u32 {
        if self.events & IS_ANNOUNCED != 0 {
            return self.events & !(IS_ANNOUNCED | WRITE_NORMAL);
        }
        if self.events & IS_CHANGES == 0 {
            let is_woken = self.events & WRITE_NORMAL != 0;
            let mark = if is_woken { WRITE_NORMAL | mark(self.events) } else { 0 };
            return self.events & !mark;
        }
        let bits = KEPT.iter().zip(FIRST_BIT..);
        bits.filter(|(_, bit)| self.events >> bit & 1 == 1).fold(0, |all, (kept, _)| all | kept)
    }

    /// Returns whether an event of this entry may be an announcement.
    fn may_be_announced(&self) -> bool {
        // Of a spent one-shot the kernel keeps only the mode bits.
        let is_spent = self.events & ONESHOT != 0 && self.events & !MODES == 0;
        self.events & IS_ANNOUNCED != 0 || is_spent
    }

    /// Returns whether the entry is a one-shot that has not fired and cannot have reported these
    /// events, because it does not ask for all of them.
    fn is_armed_for_others(&self, events: u32) -> bool {
        let is_armed = self.events & ONESHOT != 0 && self.events & !MODES != 0;
        is_armed && events & (WRITE_NORMAL | READ_NORMAL) & !self.events != 0
    }

    /// Returns events of this entry without the mark of another process's registration.
    fn without_mark(&self, events: u32) -> u32 {
        let is_marked = self.events & IS_CHANGES != 0 && events & !READ_NORMAL != 0;
        if is_marked { events & !READ_NORMAL } else { events }
    }

    pub(super) fn register(&self, epoll: RawFd, events: u32) {
        register(epoll, self.fd, events, self.data);
    }
}

/// Changes the events of an entry of an instance in the kernel.
pub(super) fn register(epoll: RawFd, fd: RawFd, events: u32, data: u64) {
    let event = epoll_event { events, u64: data };
    kernel_control(epoll, libc::EPOLL_CTL_MOD, fd, Some(event));
}

/// Lists the kernel's entries of an instance; empty if the kernel does not say.
pub(super) fn entries(epoll: RawFd) -> Vec<Entry> {
    Host::registrations(epoll).lines().filter_map(Entry::parse).collect()
}

impl Watches {
    /// Takes over changes and deletions that another process has made.
    pub(super) fn follow_others(&mut self, epoll: RawFd) {
        let before = errno::get();
        let entries = entries(epoll);
        for place in 0..self.places.len() {
            let Some(watch) = self.places[place].as_mut() else { continue };
            if entries.is_empty() || watch.is_orphan {
                continue;
            }
            let (fd, data, mask) = (watch.fd, watch.data, watch.mask());
            let entry = entries.iter().find(|it| it.fd == fd);
            // Notes from before a fork are not updated with each change.
            let is_old = |it: &Entry| it.events & (IS_CHANGES | IS_EXACT) == IS_CHANGES;
            let Some(entry) = entry else {
                self.remove(place);
                self.names.remove(fd);
                continue;
            };
            if entry.data != data {
                watch.data = entry.data;
                self.names.add(fd, entry.data);
            }
            let is_own = is_old(entry) && mask & IS_CHANGES != 0;
            let has_changed = (entry.events ^ mask) & !(ERR_HUP | WRITE_NORMAL) != 0 && !is_own;
            if has_changed && let Some(watch) = self.places[place].as_mut() {
                let asked = entry.asked();
                // A registration for the same events means that the process has only given it to
                // the kernel.
                let seen = watch.seen.filter(|_| asked & !ERR_HUP == watch.events & !ERR_HUP);
                watch.follow(epoll_event { events: asked, u64: entry.data });
                watch.seen = seen;
                watch.is_disabled = asked & ONESHOT != 0 && asked & !MODES == 0;
                watch.set_registered(Registered::Whole);
                // The socket has to be registered again.
                watch.is_woken = entry.asked() != entry.events;
            }
            if let Some(watch) = self.places[place].as_mut() {
                watch.follow_reported(self.instance);
                // That process has also given the kernel an edge that memory owed.
                watch.was_in_memory &= !has_changed;
            }
        }
        errno::set_raw(before);
    }

    /// Starts to use an inherited instance: sockets that the parent has added since the fork fall
    /// back to TCP, and the kernel has them as the program has registered them.
    pub(super) fn take_over(&self, epoll: RawFd) {
        let before = errno::get();
        for entry in entries(epoll) {
            if self.by_fd.contains_key(&entry.fd) {
                continue;
            }
            let Some(socket) = entry.socket().filter(may_hold_something) else { continue };
            fall_back_to_tcp(&socket, entry.fd);
            let asked = entry.asked();
            let announces = asked & IN != 0 && holds_something(&socket);
            let mark = if announces { IS_ANNOUNCED | WRITE_NORMAL } else { 0 };
            if asked | mark != entry.events {
                entry.register(epoll, asked | mark);
            }
        }
        errno::set_raw(before);
    }

    /// Translates an event of a socket that this process does not watch. `None`: it announces data
    /// that has been read, or the entry has been registered anew since, and reports again what is
    /// ready.
    pub(super) fn translate_foreign(
        &self,
        epoll: RawFd,
        event: epoll_event,
    ) -> Option<epoll_event> {
        if !self.is_shared() || event.events & (WRITE_NORMAL | READ_NORMAL) == 0 {
            return Some(event);
        }
        let before = errno::get();
        let has_data = |it: &Entry| it.data == event.u64;
        let entries: Vec<Entry> = entries(epoll).into_iter().filter(has_data).collect();
        let entry = entries.iter().find(|it| it.may_be_announced()).or_else(|| entries.first());
        let reported = match entry {
            None => Some(event.events),
            Some(_) if entries.iter().all(|it| it.is_armed_for_others(event.events)) => None,
            Some(it) if event.events & WRITE_NORMAL == 0 => Some(it.without_mark(event.events)),
            Some(it) if !it.may_be_announced() => Some(event.events),
            // Only a process that has the socket can tell whether memory holds data for it.
            Some(it) if it.socket().is_none_or(|socket| holds_something(&socket)) => {
                Some(event.events & !WRITE_NORMAL | IN)
            }
            Some(it) if it.events & IS_ANNOUNCED == 0 => {
                let rest = event.events & !WRITE_NORMAL;
                if rest == 0 {
                    // Only a registration for bytes is announced.
                    it.register(epoll, it.events | IN);
                }
                (rest != 0).then_some(rest)
            }
            Some(it) => {
                it.register(epoll, it.asked()); // The kernel then reports the other events again.
                None
            }
        };
        errno::set_raw(before);
        reported.map(|events| epoll_event { events, ..event })
    }
}
