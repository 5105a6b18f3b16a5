//! An epoll instance: its entries and its ready list, which works like the kernel's
//! (fs/eventpoll.c).

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::os::fd::RawFd;

use libc::{c_int, epoll_event};
use rustix::io::Errno;

const MODES: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

#[derive(Debug, Default)]
pub(super) struct Instance {
    entries: BTreeMap<RawFd, Entry>,
    ready: VecDeque<RawFd>,
}

#[derive(Debug)]
struct Entry {
    events: u32,
    data: u64,
    inode: u64,
}

impl Entry {
    /// Returns the events that the entry reports; none for a spent one-shot.
    fn mask(&self) -> u32 {
        if self.events & !MODES == 0 { 0 } else { self.events & !MODES | ALWAYS }
    }
}

impl Instance {
    /// Executes `epoll_ctl(2)` for an open file that has the events `now`.
    pub(super) fn control(
        &mut self,
        operation: c_int,
        fd: RawFd,
        event: Option<epoll_event>,
        inode: u64,
        now: u32,
    ) -> Result<(), Errno> {
        let is_known = self.entries.contains_key(&fd);
        match operation {
            libc::EPOLL_CTL_ADD if is_known => return Err(Errno::EXIST),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !is_known => return Err(Errno::NOENT),
            libc::EPOLL_CTL_DEL => {
                self.forget(fd);
                return Ok(());
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {}
            _ => return Err(Errno::INVAL),
        }
        let event = event.ok_or(Errno::FAULT)?;
        // An entry without events still reports errors, unless it is a spent one-shot.
        let asks = event.events & !MODES != 0 || event.events & libc::EPOLLONESHOT as u32 == 0;
        let events = if asks { event.events | ALWAYS } else { event.events };
        self.entries.insert(fd, Entry { events, data: event.u64, inode });
        self.note(fd, now, u32::MAX);
        Ok(())
    }

    pub(super) fn forget(&mut self, fd: RawFd) {
        self.entries.remove(&fd);
        self.ready.retain(|&other| other != fd);
    }

    pub(super) fn watches(&self) -> Vec<RawFd> {
        self.entries.keys().copied().collect()
    }

    pub(super) fn registered(&self, fd: RawFd) -> Option<u32> {
        self.entries.get(&fd).map(|entry| entry.events & !ALWAYS)
    }

    /// Records a change of a file that has the events `now`. Returns whether it is news.
    pub(super) fn note(&mut self, fd: RawFd, now: u32, change: u32) -> bool {
        let Some(entry) = self.entries.get(&fd) else { return false };
        let is_new = entry.mask() & now & change != 0 && !self.ready.contains(&fd);
        if is_new {
            self.ready.push_back(fd);
        }
        is_new
    }

    /// Returns whether the instance would report something.
    pub(super) fn is_ready(&self, now: impl Fn(RawFd) -> u32) -> bool {
        let reports = |fd: &RawFd| self.entries.get(fd).is_some_and(|it| it.mask() & now(*fd) != 0);
        self.ready.iter().any(reports)
    }

    /// Reports what is ready, in the order in which it became ready.
    pub(super) fn take(&mut self, events: &mut [epoll_event], now: impl Fn(RawFd) -> u32) -> usize {
        let mut found = 0;
        for _ in 0..self.ready.len() {
            if found == events.len() {
                break;
            }
            let Some(fd) = self.ready.pop_front() else { break };
            let Some(entry) = self.entries.get_mut(&fd) else { continue };
            let ready = entry.mask() & now(fd);
            if ready == 0 {
                continue;
            }
            events[found] = epoll_event { events: ready, u64: entry.data };
            found += 1;
            if entry.events & libc::EPOLLONESHOT as u32 != 0 {
                entry.events &= MODES;
            } else if entry.events & libc::EPOLLET as u32 == 0 {
                self.ready.push_back(fd);
            }
        }
        found
    }

    /// Returns the instance's fdinfo as proc(5) describes it.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (fd, Entry { events, data, inode }) in &self.entries {
            let _ = writeln!(
                text,
                "tfd: {fd:8} events: {events:8x} data: {data:16x}  pos:0 ino:{inode:x} sdev:9"
            );
        }
        text
    }
}
