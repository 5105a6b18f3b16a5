//! Waiting for descriptors.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

pub use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

pub use super::data::poll;
use super::raw::open_by;

/// Makes an eventfd whose counter has the value `count`.
///
/// # Errors
/// Those of `eventfd(2)`.
pub fn eventfd(count: u32, flags: EventfdFlags) -> Result<OwnedFd, Errno> {
    let arguments = [count as usize, flags.bits() as usize, 0, 0, 0, 0];
    // SAFETY: the call accesses no memory, and returns a new descriptor.
    unsafe { open_by(libc::SYS_eventfd2, arguments) }
}

/// Instances of epoll.
pub mod epoll {
    use std::os::fd::{AsFd, OwnedFd};

    pub use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::io::Errno;

    use crate::calls::raw::{call, int, number, open_by};

    /// Makes an instance.
    ///
    /// # Errors
    /// Those of `epoll_create1(2)`.
    pub fn create(flags: CreateFlags) -> Result<OwnedFd, Errno> {
        // SAFETY: the call accesses no memory, and returns a new descriptor.
        unsafe { open_by(libc::SYS_epoll_create1, [flags.bits() as usize, 0, 0, 0, 0, 0]) }
    }

    /// Adds a descriptor to an instance.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn add(
        epoll: impl AsFd,
        fd: impl AsFd,
        data: EventData,
        flags: EventFlags,
    ) -> Result<(), Errno> {
        let event = libc::epoll_event { events: flags.bits(), u64: data.u64() };
        let place = &raw const event as usize;
        let arguments = [number(&epoll), int(libc::EPOLL_CTL_ADD), number(&fd), place, 0, 0];
        // SAFETY: the event is a local variable.
        unsafe { call(libc::SYS_epoll_ctl, arguments) }.map(drop)
    }

    /// Removes a descriptor from an instance.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn delete(epoll: impl AsFd, fd: impl AsFd) -> Result<(), Errno> {
        let arguments = [number(&epoll), int(libc::EPOLL_CTL_DEL), number(&fd), 0, 0, 0];
        // SAFETY: the call accesses no memory.
        unsafe { call(libc::SYS_epoll_ctl, arguments) }.map(drop)
    }
}
