//! The clock by which ends wait.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use weft_sys::calls;
use weft_sys::calls::event::{PollFd, PollFlags, poll};
use weft_sys::calls::time::{ClockId, Timespec, clock_gettime};

/// A clock: the kernel's, or that of a simulation.
pub trait Clock: Debug {
    /// Nanoseconds of a clock that is never adjusted.
    fn now(&self) -> u64;

    /// Sleeps for `ns` nanoseconds, less than a second.
    fn sleep(&self, ns: u32);

    /// Waits for an event in `asked` on the socket, for `limit` at most. Returns whether there was
    /// one.
    fn waits_for(&self, socket: BorrowedFd<'_>, asked: PollFlags, limit: &Timespec) -> bool;
}

/// The kernel's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }

    fn sleep(&self, ns: u32) {
        let _ = calls::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: ns.into() });
    }

    fn waits_for(&self, socket: BorrowedFd<'_>, asked: PollFlags, limit: &Timespec) -> bool {
        let mut set = [PollFd::from_borrowed_fd(socket, asked)];
        poll(&mut set, Some(limit)).is_ok_and(|ready| ready > 0)
    }
}
