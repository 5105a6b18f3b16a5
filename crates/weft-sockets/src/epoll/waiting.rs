//! One call of `epoll_wait(2)`.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::{Epoll, MARK};
use crate::remote;
use crate::wait::{self, Wait};

/// Nanoseconds for which waits that find something in the rings do not ask the kernel what else it
/// watches: connections to be accepted and timers must not wait for ever. A question costs about a
/// hundredth of this.
const RINGS_ALONE_NS: u64 = 10_000;
/// How long a writer sleeps whose peer cannot ring.
const NAP_NS: u64 = 1_000_000;
/// Nanoseconds between two questions to the kernel while looking.
const ASK_NS: u64 = 5_000;
const SPIN_MAX_NS: u64 = 2_000_000;

/// The kernel's wait with a timeout in nanoseconds.
pub(super) type Sleep<'a> = dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int + 'a;

/// A thread's wait for an instance's events.
pub(super) struct Waiting<'a, 'b> {
    instance: &'a Epoll,
    epoll: RawFd,
    sleep: &'a mut Sleep<'b>,
    /// Its number.
    round: u64,
}

impl<'a, 'b> Waiting<'a, 'b> {
    pub(super) fn new(instance: &'a Epoll, epoll: RawFd, sleep: &'a mut Sleep<'b>) -> Self {
        let mut watches = instance.watches.lock();
        watches.round += 1;
        Self { instance, epoll, sleep, round: watches.round }
    }

    /// As `epoll_wait(2)`: how many events there are, or negative.
    pub(super) fn wait(&mut self, events: &mut [epoll_event], timeout_ns: Option<u64>) -> c_int {
        // Who does not wait may ask for what it has just done itself, to an eventfd(2) say.
        let is_due = timeout_ns == Some(0) || self.is_asked_before(RINGS_ALONE_NS);
        // The kernel must not fill a short list each time.
        if !is_due || self.instance.crowded.swap(false, Ordering::Relaxed) {
            let found = self.collect(events);
            if found > 0 {
                return number(found);
            }
        }
        // Who finds nothing goes to sleep, and is told then what the kernel has.
        if timeout_ns == Some(0) || !self.instance.watches.lock().are_quiet(self.epoll) {
            let asked = self.ask_and_collect(events);
            if asked != 0 || timeout_ns == Some(0) {
                return asked;
            }
        }
        let wait = Wait::begin(&self.instance.spin);
        let began = wait::now();
        let deadline = timeout_ns.map(|timeout| began.saturating_add(timeout));
        loop {
            if let Some(result) = self.look(&wait, events, deadline) {
                wait.end();
                return result;
            }
            let (begun, is_any) = {
                let mut watches = self.instance.watches.lock();
                (watches.begin_sleep(self.epoll), !watches.hot.is_empty())
            };
            let found = if is_any { self.collect(events) } else { 0 };
            if found > 0 {
                self.instance.watches.lock().end_sleep(begun);
                wait.end();
                return number(found);
            }
            let all_ring = self.instance.watches.lock().cool_all();
            let left = deadline.map(|deadline| deadline.saturating_sub(wait::now()));
            let nap = if all_ring { left } else { Some(left.map_or(NAP_NS, |l| l.min(NAP_NS))) };
            let slept = (self.sleep)(events, nap);
            self.instance.watches.lock().end_sleep(begun);
            if slept < 0 {
                return slept;
            }
            let told = self.translate(events, slept);
            let total = told + self.collect(&mut events[told..]);
            if total > 0 {
                wait.end();
                return number(total);
            }
            if deadline.is_some_and(|deadline| wait::now() >= deadline) {
                return 0;
            }
        }
    }

    /// Looks at the rings, and now and then at the kernel, for as long as that has paid.
    fn look(
        &mut self,
        wait: &Wait<'_>,
        events: &mut [epoll_event],
        deadline: Option<u64>,
    ) -> Option<c_int> {
        let most = deadline
            .map_or(SPIN_MAX_NS, |deadline| deadline.saturating_sub(wait::now()).min(SPIN_MAX_NS));
        if !wait.would_look() || self.instance.watches.lock().hot.is_empty() {
            return None;
        }
        let mut result = None;
        wait.look(most, || {
            let found = self.collect(events);
            if found > 0 {
                result = Some(number(found));
            } else if self.is_asked_before(ASK_NS) {
                let asked = self.ask_and_collect(events);
                if asked != 0 {
                    result = Some(asked);
                }
            }
            result.is_some()
        });
        result
    }

    /// Whether the last question to the kernel was so long ago.
    fn is_asked_before(&self, ns: u64) -> bool {
        wait::now() >= self.instance.asked.load(Ordering::Relaxed).saturating_add(ns)
    }

    /// What the kernel has now, and what it has to say of the rings.
    fn ask_and_collect(&mut self, events: &mut [epoll_event]) -> c_int {
        let found = (self.sleep)(events, Some(0));
        self.instance.asked.store(wait::now(), Ordering::Relaxed);
        if found < 0 {
            return found;
        }
        let told = self.translate(events, found);
        if told == 0 {
            self.instance.watches.lock().open_inboxes();
        }
        self.instance.crowded.store(told == events.len(), Ordering::Relaxed);
        number(told + self.collect(&mut events[told..]))
    }

    /// Puts the program's data back into the kernel's events, and takes out those that are not the
    /// program's to know yet. Returns how many are left.
    fn translate(&self, events: &mut [epoll_event], found: c_int) -> usize {
        let found = usize::try_from(found).unwrap_or(0).min(events.len());
        let mut watches = self.instance.watches.lock();
        let mut kept = 0;
        for index in 0..found {
            let event = events[index];
            let told = if event.u64 >> 48 == MARK >> 48 {
                watches.told(self.epoll, event, self.round)
            } else {
                Some(event)
            };
            if let Some(told) = told {
                events[kept] = told;
                kept += 1;
            }
        }
        kept
    }

    /// Fills in the events of hot sockets.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        remote::drive();
        self.instance.watches.lock().collect(self.epoll, events, self.round)
    }
}

/// So many events, as the program is told.
fn number(events: usize) -> c_int {
    c_int::try_from(events).unwrap_or(c_int::MAX)
}
