//! The data by which the kernel reports an instance's descriptors.
//!
//! Programs choose the data, and may give the same data to two descriptors. Then an event does not
//! tell which of them it is for, and neither may be carried by memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd as _, RawFd};

use super::Watches;
use super::carrier::fall_back_to_tcp;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::limits::RETIRED_NAMES_MAX;

/// The first of Weft's own data values. If the program uses one of them, Weft takes another.
const FIRST_OWN: u64 = 0xA5C3_0000_0000_0000;

/// The kernel's entries in an instance, by descriptor and by data.
#[derive(Debug, Default)]
pub(super) struct Names {
    of: HashMap<RawFd, u64>,
    all: HashMap<u64, Name>,
    /// Data of Weft's own wakeup entries, each with the index of its watch.
    wakeup_fds: HashMap<u64, usize>,
    /// Data of the alarm's entry.
    alarm: Option<u64>,
    own: u64,
    retired: HashSet<u64>,
    retirements: VecDeque<u64>,
    /// Number of additions so far.
    added: u64,
}

/// The meaning of an event's data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// A single descriptor. The flag says that it was added only after the wait had begun, so that
    /// the event may be for an earlier owner of the data.
    Of(RawFd, bool),
    /// Something other than a single socket of Weft's, or something that was added unseen.
    Program,
    /// Something that has been removed.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    /// The only descriptor with this data; negative if there have been several.
    fd: RawFd,
    count: u32,
    /// The value of [`Names::added`] when it was added.
    added: u64,
}

impl Names {
    /// Returns the descriptor with this data. `None`: there are none or several.
    pub(super) fn fd(&self, data: u64) -> Option<RawFd> {
        self.all.get(&data).map(|name| name.fd).filter(|&fd| fd >= 0)
    }

    /// Returns the meaning of an event that the kernel has reported in a wait, which began when
    /// [`Names::added`] was `added`.
    pub(super) fn meaning(&self, data: u64, added: u64) -> Meaning {
        match self.all.get(&data) {
            Some(name) if name.fd >= 0 => {
                let is_late = name.added > added && self.retired.contains(&data);
                Meaning::Of(name.fd, is_late)
            }
            Some(_) => Meaning::Program,
            None if self.retired.contains(&data) => Meaning::Gone,
            None => Meaning::Program,
        }
    }

    /// Returns whether no event can be, or can have been, for a socket of Weft's.
    pub(super) fn are_the_programs(&self) -> bool {
        self.retired.is_empty() && self.alarm.is_none()
    }

    /// Returns the number of additions so far.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Records that the kernel does not have this data of a socket of Weft's any more.
    pub(super) fn retire(&mut self, data: u64) {
        if !self.retired.insert(data) {
            return;
        }
        self.retirements.push_back(data);
        if self.retirements.len() > RETIRED_NAMES_MAX
            && let Some(oldest) = self.retirements.pop_front()
        {
            self.retired.remove(&oldest);
        }
    }

    /// Returns whether another descriptor has the data.
    fn has_other(&self, data: u64, fd: RawFd) -> bool {
        self.all.get(&data).is_some_and(|name| name.fd != fd)
    }

    /// Records that the kernel has the descriptor with this data.
    pub(super) fn add(&mut self, fd: RawFd, data: u64) {
        self.remove(fd);
        self.of.insert(fd, data);
        self.added += 1;
        let name = self.all.entry(data).or_insert(Name { fd, count: 0, added: self.added });
        name.count += 1;
        if name.fd != fd {
            name.fd = -1;
        }
    }

    /// Records that the kernel does not have the descriptor any more.
    pub(super) fn remove(&mut self, fd: RawFd) {
        let Some(data) = self.of.remove(&fd) else { return };
        if let Some(name) = self.all.get_mut(&data) {
            name.count -= 1;
            if name.count == 0 {
                self.all.remove(&data);
            }
        }
    }

    /// Reserves data for the instance's alarm.
    pub(super) fn add_alarm(&mut self) -> u64 {
        let data = self.free_data();
        self.alarm = Some(data);
        data
    }

    /// Returns whether an event with this data is the alarm.
    pub(super) fn is_alarm(&self, data: u64) -> bool {
        self.alarm == Some(data)
    }

    pub(super) fn remove_alarm(&mut self) {
        if let Some(data) = self.alarm.take() {
            self.retire(data);
        }
    }

    /// Reserves data for the wakeup entry of the socket at index `place`.
    pub(super) fn add_wakeup_fd(&mut self, place: usize) -> u64 {
        let data = self.free_data();
        self.wakeup_fds.insert(data, place);
        data
    }

    fn free_data(&mut self) -> u64 {
        loop {
            let data = FIRST_OWN | self.own;
            self.own += 1;
            if !self.all.contains_key(&data) {
                return data;
            }
        }
    }

    /// Returns the index of the socket for which an event with this data is a wakeup.
    pub(super) fn wakeup_fd(&self, data: u64) -> Option<usize> {
        self.wakeup_fds.get(&data).copied()
    }

    pub(super) fn remove_wakeup_fd(&mut self, data: u64) -> Option<usize> {
        self.retire(data);
        self.wakeup_fds.remove(&data)
    }
}

impl Watches {
    /// Prepares for data that the program is about to give to a descriptor. Returns whether another
    /// descriptor has the same data; then no socket with that data is carried by memory any more.
    pub(super) fn is_ambiguous(&mut self, epoll: RawFd, fd: RawFd, data: u64) -> bool {
        if let Some(place) = self.names.remove_wakeup_fd(data)
            && let Some(watch) = self.places[place].as_mut()
        {
            watch.wakeup_fd = None;
            watch.add_wakeup_fd(epoll, &mut self.names);
        }
        if self.names.is_alarm(data) {
            self.close_pipe(epoll); // The next sleep opens another one.
        }
        if !self.names.has_other(data, fd) {
            return false;
        }
        let Some(other) = self.names.fd(data) else { return true };
        let place = self.by_fd.get(&other).copied();
        if let Some(place) = place {
            if self.is_detached(place) {
                self.delete_detached(epoll, place);
                return false;
            }
            self.evict(epoll, place);
            return true;
        }
        // The other descriptor may have been closed, which the kernel does not report.
        if Host::is_open(Descriptor::of(other).as_fd()) {
            return true;
        }
        self.names.remove(other);
        false
    }

    /// Gives a socket to the kernel that cannot be distinguished from others any more.
    fn evict(&mut self, epoll: RawFd, place: usize) {
        if let Some(watch) = self.places[place].as_mut()
            && !watch.is_kernels
        {
            fall_back_to_tcp(&watch.socket, watch.fd);
            self.give_to_kernel(epoll, place);
        }
    }
}
