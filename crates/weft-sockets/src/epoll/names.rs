//! The data by which the kernel reports the descriptors of an instance.
//!
//! Programs choose the data, and may give the same to two descriptors: then no event tells which of
//! them it is for, and neither may be carried by memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd as _, RawFd};

use super::Watches;
use super::carrier::leave;
use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::limits::RETIRED_NAMES_MAX;

/// Where our own data begin; the program may have the same, and then ours is another.
const FIRST_OWN: u64 = 0xA5C3_0000_0000_0000;

/// What the kernel has in an instance, by descriptor and by data.
#[derive(Debug, Default)]
pub(super) struct Names {
    of: HashMap<RawFd, u64>,
    all: HashMap<u64, Name>,
    /// Data of our own, and for which socket's connection to another host.
    wakeup_fds: HashMap<u64, usize>,
    /// The same, of the alarm.
    alarm: Option<u64>,
    own: u64,
    retired: HashSet<u64>,
    retirements: VecDeque<u64>,
    /// Counts what is added.
    added: u64,
}

/// What an event is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// One descriptor, and whether that was added only after the wait had begun, so that it may be
    /// for another one that had the data before.
    Of(RawFd, bool),
    /// What is not a socket of ours alone, or has been added by ways that we do not see.
    Program,
    /// Nothing that is there any more.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    /// The only descriptor that has it; negative: several have had it.
    fd: RawFd,
    count: u32,
    /// [`Names::added`] then.
    added: u64,
}

impl Names {
    /// The descriptor that has the data. `None`: none or several.
    pub(super) fn fd(&self, data: u64) -> Option<RawFd> {
        self.all.get(&data).map(|name| name.fd).filter(|&fd| fd >= 0)
    }

    /// What an event is for that the kernel has reported in a wait, which began when so many had
    /// been added.
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

    /// Whether no event can be for a socket of ours, or has been for one.
    pub(super) fn are_the_programs(&self) -> bool {
        self.retired.is_empty() && self.alarm.is_none()
    }

    /// How many have been added so far.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// A socket of ours had the data, and the kernel has it no more.
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

    /// Whether another descriptor than this one has the data.
    fn has_other(&self, data: u64, fd: RawFd) -> bool {
        self.all.get(&data).is_some_and(|name| name.fd != fd)
    }

    /// The kernel has the descriptor with this data from here on.
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

    /// The kernel has the descriptor no more.
    pub(super) fn remove(&mut self, fd: RawFd) {
        let Some(data) = self.of.remove(&fd) else { return };
        if let Some(name) = self.all.get_mut(&data) {
            name.count -= 1;
            if name.count == 0 {
                self.all.remove(&data);
            }
        }
    }

    /// Data for the instance's alarm.
    pub(super) fn add_alarm(&mut self) -> u64 {
        let data = self.free_data();
        self.alarm = Some(data);
        data
    }

    /// Whether an event of this data is the alarm.
    pub(super) fn is_alarm(&self, data: u64) -> bool {
        self.alarm == Some(data)
    }

    pub(super) fn remove_alarm(&mut self) {
        if let Some(data) = self.alarm.take() {
            self.retire(data);
        }
    }

    /// Data for what wakes for the socket at this place.
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

    /// The socket for which an event of this data is a wakeup.
    pub(super) fn wakeup_fd(&self, data: u64) -> Option<usize> {
        self.wakeup_fds.get(&data).copied()
    }

    pub(super) fn remove_wakeup_fd(&mut self, data: u64) -> Option<usize> {
        self.retire(data);
        self.wakeup_fds.remove(&data)
    }
}

impl Watches {
    /// The program is about to give this data to a descriptor. Returns whether another one has it,
    /// in which case no socket that has it is carried by memory any more.
    pub(super) fn is_ambiguous(&mut self, epoll: RawFd, fd: RawFd, data: u64) -> bool {
        if let Some(place) = self.names.remove_wakeup_fd(data)
            && let Some(watch) = self.places[place].as_mut()
        {
            watch.wakeup_fd = None;
            watch.add_wakeup_fd(epoll, &mut self.names);
        }
        if self.names.is_alarm(data) {
            self.close_pipe(epoll); // Another one is opened for the next sleep.
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
        // It may have been closed, of which the kernel says nothing.
        if Host::is_open(Descriptor::of(other).as_fd()) {
            return true;
        }
        self.names.remove(other);
        false
    }

    /// A socket that cannot be distinguished from others any more is the kernel's.
    fn evict(&mut self, epoll: RawFd, place: usize) {
        if let Some(watch) = self.places[place].as_mut()
            && !watch.is_kernels
        {
            leave(&watch.socket, watch.fd);
            self.give_to_kernel(epoll, place);
        }
    }
}
