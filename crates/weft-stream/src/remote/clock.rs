//! The time that waits take. The simulation has its own.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds that no one adjusts.
pub(super) fn now() -> u64 {
    #[cfg(test)]
    if let Some(now) = simulated::now() {
        return now;
    }
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sleeps for so many nanoseconds, below a second.
pub(super) fn nap(ns: u32) {
    #[cfg(test)]
    if simulated::pass(ns.into()) {
        return;
    }
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: ns.into() });
}

/// Waits for `limit` at most. Whether the kernel says any of this of the socket.
pub(super) fn waits_for(socket: BorrowedFd<'_>, asked: PollFlags, limit: &Timespec) -> bool {
    let mut set = [PollFd::from_borrowed_fd(socket, asked)];
    #[cfg(test)]
    if simulated::now().is_some() {
        return simulated::poll_until(&mut set, limit);
    }
    poll(&mut set, Some(limit)).is_ok_and(|ready| ready > 0)
}

/// The clock of a simulation that runs on this thread.
#[cfg(test)]
pub(super) mod simulated {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::{PollFd, Timespec, poll};

    pub(in super::super) trait Time {
        fn now(&self) -> u64;
        /// Somebody waits for so many nanoseconds.
        fn pass(&self, ns: u64);
    }

    thread_local! {
        static TIME: RefCell<Option<Rc<dyn Time>>> = const { RefCell::new(None) };
    }

    pub(in super::super) fn set(time: Option<Rc<dyn Time>>) {
        TIME.with(|place| place.replace(time));
    }

    fn time() -> Option<Rc<dyn Time>> {
        TIME.with(|time| time.borrow().clone())
    }

    pub(super) fn now() -> Option<u64> {
        Some(time()?.now())
    }

    pub(super) fn pass(ns: u64) -> bool {
        time().map(|time| time.pass(ns)).is_some()
    }

    fn is_ready(set: &mut [PollFd<'_>]) -> bool {
        poll(set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    pub(super) fn poll_until(set: &mut [PollFd<'_>], limit: &Timespec) -> bool {
        const STEP: u64 = 1_000_000;
        let limit = limit.tv_sec.cast_unsigned() * 1_000_000_000 + limit.tv_nsec.cast_unsigned();
        let until = now().unwrap_or(0) + limit;
        loop {
            if is_ready(set) {
                return true;
            }
            let now = now().unwrap_or(until);
            if now >= until {
                return false;
            }
            pass(STEP.min(until - now));
        }
    }
}
