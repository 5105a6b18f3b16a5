//! One call of `epoll_wait(2)`.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use rustix::io::Errno;
use weft_sys::Handled;

use super::Epoll;
use super::alarm::Begun;
use crate::limits::EPOLL_ASKS_MAX;
use crate::wait::{self, Wait};
use crate::{errno, remote};

/// Nanoseconds for which waits that find something in the rings do not ask the kernel what else it
/// watches: connections to be accepted and timers must not wait for ever. A question costs about a
/// hundredth of this.
const RINGS_ALONE_NS: u64 = 10_000;
/// The same where so many sockets are at rest that they are not looked at for what came first.
const MANY_AT_REST_NS: u64 = 1_000;
/// Nanoseconds between two questions to the kernel while looking.
const ASK_NS: u64 = 5_000;
const SPIN_MAX_NS: u64 = 2_000_000;

/// The kernel's wait with a timeout in nanoseconds.
pub(crate) type Sleep<'a> = dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int + 'a;

/// A thread's wait for an instance's events.
pub(super) struct Waiting<'a, 'b> {
    instance: &'a Epoll,
    sleep: &'a mut Sleep<'b>,
    /// Its number.
    round: u64,
    /// How many sockets had been added when the kernel was asked last.
    added: u64,
    /// Handlers that had run when the call began.
    handled: Handled,
    /// Others must know when the thread sleeps no more, also if it is cancelled.
    begun: Option<Begun>,
}

impl Drop for Waiting<'_, '_> {
    fn drop(&mut self) {
        let mut watches = self.instance.lock();
        if let Some(begun) = self.begun.take() {
            watches.end_sleep(begun);
        }
        watches.end_wait();
        watches.pass_on(self.instance.fd());
    }
}

impl<'a, 'b> Waiting<'a, 'b> {
    pub(super) fn new(instance: &'a Epoll, sleep: &'a mut Sleep<'b>) -> Self {
        let round = instance.lock().begin_wait();
        Self { instance, sleep, round, added: 0, handled: Handled::up_to_now(), begun: None }
    }

    /// As `epoll_wait(2)`: how many events there are, or negative.
    pub(super) fn wait(&mut self, events: &mut [epoll_event], timeout_ns: Option<u64>) -> c_int {
        let (is_empty, are_many) = {
            let watches = self.instance.lock();
            (watches.is_empty(), watches.are_many_at_rest())
        };
        let deadline = || timeout_ns.map(|timeout| wait::now().saturating_add(timeout));
        if is_empty && timeout_ns != Some(0) {
            let deadline = deadline();
            return self.sleep_until(events, deadline, None);
        }
        // Who does not wait may ask for what it has just done itself, to an eventfd(2) say.
        let alone = if are_many { MANY_AT_REST_NS } else { RINGS_ALONE_NS };
        let is_due = timeout_ns == Some(0) || self.is_asked_before(alone);
        // The kernel must not fill a short list each time.
        if !is_due || self.instance.crowded.swap(false, Ordering::Relaxed) {
            let found = self.collect(events);
            if found > 0 {
                let rest = &mut events[found..];
                let asks = is_due && !rest.is_empty();
                let more = if asks { self.ask_and_collect(rest).max(0) } else { 0 };
                return number(found) + more;
            }
        }
        // A thread that finds nothing goes to sleep, and gets what the kernel has then.
        if timeout_ns == Some(0) || !self.instance.lock().are_quiet(self.instance.fd()) {
            let asked = self.ask_and_collect(events);
            if asked != 0 || timeout_ns == Some(0) {
                return asked;
            }
        }
        let wait = Wait::begin(&self.instance.spin);
        let deadline = timeout_ns.map(|timeout| wait.began().saturating_add(timeout));
        self.sleep_until(events, deadline, Some(wait))
    }

    /// Looks, and sleeps, until there is something.
    fn sleep_until(
        &mut self,
        events: &mut [epoll_event],
        deadline: Option<u64>,
        wait: Option<Wait<'_>>,
    ) -> c_int {
        let end = |wait: Option<Wait<'_>>, result| {
            wait.map(Wait::end);
            result
        };
        loop {
            if let Some(looked) = &wait
                && let Some(result) = self.look(looked, events, deadline)
            {
                return end(wait, result);
            }
            let is_any = {
                let mut watches = self.instance.lock();
                self.begun = Some(watches.begin_sleep(self.instance.fd()));
                self.added = watches.names.added();
                !watches.polled.is_empty()
            };
            let found = if is_any { self.collect_or_rest(events) } else { Ok(None) };
            let longest = match found {
                Err(found) => return end(wait, number(found)),
                Ok(longest) => longest,
            };
            if self.is_interrupted() {
                return errno::fail(Errno::INTR);
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(wait::now()));
            let sleep_time =
                longest.map_or(left, |most| Some(left.map_or(most, |left| left.min(most))));
            let slept = (self.sleep)(events, sleep_time);
            if slept < 0 {
                return slept;
            }
            let total = self.wake_up(events, slept);
            if total > 0 {
                return end(wait, number(total));
            }
            if deadline.is_some_and(|deadline| wait::now() >= deadline) {
                return 0;
            }
            self.instance.notice_sharing();
        }
    }

    /// The last look before a sleep. `Err`: so many events; `Ok`: how long it may be at most.
    fn collect_or_rest(&mut self, events: &mut [epoll_event]) -> Result<Option<u64>, usize> {
        remote::drive();
        let mut watches = self.instance.lock();
        match watches.collect(self.instance.fd(), events, self.round) {
            0 => Ok(watches.rest_all()),
            found => Err(found),
        }
    }

    /// What there is after a sleep, in which the kernel has reported so much.
    fn wake_up(&mut self, events: &mut [epoll_event], slept: c_int) -> usize {
        {
            let mut watches = self.instance.lock();
            if let Some(begun) = self.begun.take() {
                watches.end_sleep(begun);
            }
            let is_plain = watches.is_empty() && !watches.is_shared();
            if is_plain && watches.names.are_the_programs() {
                return usize::try_from(slept).unwrap_or(0);
            }
        }
        let reported = self.translate(events, slept);
        reported + self.collect(&mut events[reported..])
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
        if !wait.would_look() || self.instance.lock().polled.is_empty() {
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
            result.is_some() || self.is_interrupted()
        });
        result
    }

    /// Whether a signal has been handled, which the kernel has not seen in its own sleep.
    fn is_interrupted(&self) -> bool {
        self.handled.is_more_now()
    }

    /// Whether the last question to the kernel was so long ago.
    fn is_asked_before(&self, ns: u64) -> bool {
        wait::now() >= self.instance.asked.load(Ordering::Relaxed).saturating_add(ns)
    }

    /// What the kernel has now, and what it has to say of the rings.
    fn ask_and_collect(&mut self, events: &mut [epoll_event]) -> c_int {
        self.added = self.instance.lock().names.added();
        let (mut found, mut reported) = self.ask(events);
        self.instance.asked.store(wait::now(), Ordering::Relaxed);
        if found < 0 {
            return found;
        }
        if reported == 0 && found > 0 && self.instance.lock().is_to_ask_again() {
            // What the kernel reported is registered otherwise now.
            (found, reported) = self.ask(events);
        }
        for _ in 0..EPOLL_ASKS_MAX {
            let is_filled = found == number(events.len());
            if reported > 0 || !is_filled {
                break;
            }
            // What is not the program's has filled a short list.
            (found, reported) = self.ask(events);
        }
        if reported == 0 {
            self.instance.lock().open_inboxes();
        }
        self.instance.crowded.store(reported == events.len(), Ordering::Relaxed);
        number(reported + self.collect(&mut events[reported..]))
    }

    /// What the kernel has now: how many events, and how many of them are the program's. A negative
    /// number stands for `errno`.
    fn ask(&mut self, events: &mut [epoll_event]) -> (c_int, usize) {
        let found = (self.sleep)(events, Some(0));
        (found, self.translate(events, found))
    }

    /// Takes out those of the kernel's events that are not the program's to know yet. Returns how
    /// many are left.
    fn translate(&self, events: &mut [epoll_event], found: c_int) -> usize {
        let found = usize::try_from(found).unwrap_or(0).min(events.len());
        if found == 0 {
            return 0;
        }
        let mut watches = self.instance.lock();
        let mut kept = 0;
        for index in 0..found {
            let event = events[index];
            let epoll = self.instance.fd();
            if let Some(reported) = watches.translate(epoll, event, self.round, self.added) {
                events[kept] = reported;
                kept += 1;
            }
        }
        kept
    }

    /// Fills in the events of polled sockets.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        remote::drive();
        self.instance.lock().collect(self.instance.fd(), events, self.round)
    }
}

/// So many events, as the call returns them.
fn number(events: usize) -> c_int {
    c_int::try_from(events).unwrap_or(c_int::MAX)
}
