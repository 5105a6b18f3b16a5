//! Executes one call of `epoll_wait(2)`.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use weft_sys::calls::io::Errno;
use weft_sys::{Handled, with_cleanup};

use super::alarm::Begun;
use super::{Epoll, Watches};
use crate::limits::EPOLL_ASKS_MAX;
use crate::wait::{self, Wait};
use crate::{errno, remote};

/// How long waits that find events in the rings do not ask the kernel about other descriptors, in
/// nanoseconds. Connections to accept and timers must not wait for ever; asking costs about a
/// hundredth of this.
const RINGS_ALONE_NS: u64 = 10_000;
/// The same if so many sockets are not polled that they are not checked for the order of arrival.
const MANY_UNPOLLED_NS: u64 = 1_000;
/// Interval between two questions to the kernel while spinning, in nanoseconds.
const ASK_NS: u64 = 5_000;
const SPIN_MAX_NS: u64 = 2_000_000;

/// The kernel's wait, with a timeout in nanoseconds.
pub(crate) type Sleep<'a> = dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int + 'a;

/// Waits like `epoll_wait(2)`. Returns the number of events, or a negative number.
pub(super) fn wait(
    instance: &Epoll,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    sleep: &mut Sleep<'_>,
) -> c_int {
    let handled = Handled::up_to_now();
    let is_due = match collect_at_once(instance, events, timeout_ns) {
        AtOnce::Found(found) => return number(found),
        AtOnce::Nothing => false,
        AtOnce::KernelIsDue => true,
    };
    Waiting::new(instance, sleep, handled).wait(events, timeout_ns, is_due)
}

/// What a wait has found before it does anything else.
enum AtOnce {
    /// So many events of the rings.
    Found(usize),
    /// None, or only the kernel has events of this instance.
    Nothing,
    /// The kernel is to be asked first.
    KernelIsDue,
}

/// Collects the rings' events under one lock, which most waits of busy connections find.
#[inline]
fn collect_at_once(
    instance: &Epoll,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
) -> AtOnce {
    // A call without a timeout may look for an event that the thread has just caused, on an
    // eventfd(2) for example.
    if timeout_ns == Some(0) {
        return AtOnce::KernelIsDue;
    }
    remote::drive();
    let now = wait::now();
    let mut watches = instance.lock();
    if watches.is_empty() {
        return AtOnce::Nothing;
    }
    let alone = if watches.are_many_unpolled() { MANY_UNPOLLED_NS } else { RINGS_ALONE_NS };
    if now >= instance.asked.load(Ordering::Relaxed).saturating_add(alone) {
        return AtOnce::KernelIsDue;
    }
    let round = watches.begin_wait();
    let found = watches.collect(instance.fd(), events, round);
    watches.end_wait();
    if found == 0 {
        return AtOnce::Nothing;
    }
    watches.pass_on(instance.fd());
    AtOnce::Found(found)
}

/// A thread's wait for an instance's events.
struct Waiting<'a, 'b> {
    instance: &'a Epoll,
    sleep: &'a mut Sleep<'b>,
    /// The wait's number.
    round: u64,
    /// The instance had no sockets of Weft's when the wait began.
    is_empty: bool,
    /// The wait is not counted any more.
    is_over: bool,
    /// How many sockets had been added when the kernel was last asked.
    added: u64,
    /// How many signal handlers had run when the call began.
    handled: Handled,
    /// The sleep in progress.
    begun: Option<Begun>,
}

impl Drop for Waiting<'_, '_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<'a, 'b> Waiting<'a, 'b> {
    fn new(instance: &'a Epoll, sleep: &'a mut Sleep<'b>, handled: Handled) -> Self {
        let mut watches = instance.lock();
        let (round, is_empty) = (watches.begin_wait(), watches.is_empty());
        drop(watches);
        Self { instance, sleep, round, is_empty, is_over: false, added: 0, handled, begun: None }
    }

    /// Ends the wait, on whose count other threads rely.
    fn end(&mut self) {
        if !self.is_over {
            let instance = self.instance;
            self.end_held(&mut instance.lock());
        }
    }

    fn end_held(&mut self, watches: &mut Watches) {
        if let Some(begun) = self.begun.take() {
            watches.end_sleep(begun);
        }
        watches.end_wait();
        watches.pass_on(self.instance.fd());
        self.is_over = true;
    }

    fn wait(mut self, events: &mut [epoll_event], timeout_ns: Option<u64>, is_due: bool) -> c_int {
        let wait = |wait: &mut Self| wait.wait_or_be_cancelled(events, timeout_ns, is_due);
        with_cleanup(&mut self, wait, Self::end)
    }

    /// Waits. If the kernel `is_due` it is asked first, and the rings have not been checked.
    fn wait_or_be_cancelled(
        &mut self,
        events: &mut [epoll_event],
        timeout_ns: Option<u64>,
        is_due: bool,
    ) -> c_int {
        let deadline = || timeout_ns.map(|timeout| wait::now().saturating_add(timeout));
        if self.is_empty && timeout_ns != Some(0) {
            let deadline = deadline();
            return self.sleep_until(events, deadline, None);
        }
        // Otherwise the kernel would fill a short list each time, and the rings would starve.
        if is_due && self.instance.crowded.swap(false, Ordering::Relaxed) {
            let found = self.collect(events);
            if found > 0 {
                let rest = &mut events[found..];
                let asks = !rest.is_empty();
                let more = if asks { self.ask_and_collect(rest).max(0) } else { 0 };
                return number(found) + more;
            }
        }
        // A thread that finds nothing sleeps in the kernel, and gets the kernel's events then.
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

    /// Spins and sleeps until there is an event.
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
            let found = if is_any { self.collect_or_stop_polling(events) } else { Ok(None) };
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
            self.notice_sharing();
        }
    }

    /// Checks whether another process uses the instance by now. The thread has no event of the
    /// kernel's, so it does not count as waiting meanwhile.
    fn notice_sharing(&mut self) {
        let instance = self.instance;
        let mut watches = instance.lock();
        watches.end_wait();
        self.is_over = true;
        drop(watches);
        instance.notice_sharing();
        let mut watches = instance.lock();
        self.round = watches.begin_wait();
        self.is_over = false;
    }

    /// Checks the rings for the last time before a sleep. `Err`: the number of events; `Ok`: the
    /// longest time to sleep.
    fn collect_or_stop_polling(
        &mut self,
        events: &mut [epoll_event],
    ) -> Result<Option<u64>, usize> {
        remote::drive();
        let mut watches = self.instance.lock();
        match watches.collect(self.instance.fd(), events, self.round) {
            0 => Ok(watches.stop_polling_all()),
            found => Err(found),
        }
    }

    /// Collects events after a sleep in which the kernel has reported `slept` events.
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

    /// Spins on the rings for as long as that has paid, and asks the kernel at intervals.
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
            let found = self.collect_and_end(events);
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

    /// Returns whether a signal has been handled that the kernel's own sleep has not seen.
    fn is_interrupted(&self) -> bool {
        self.handled.is_more_now()
    }

    /// Returns whether the kernel was last asked at least `ns` nanoseconds ago.
    fn is_asked_before(&self, ns: u64) -> bool {
        wait::now() >= self.instance.asked.load(Ordering::Relaxed).saturating_add(ns)
    }

    /// Collects the kernel's events first, then those of the rings. If there are any the wait has
    /// ended.
    fn ask_and_collect(&mut self, events: &mut [epoll_event]) -> c_int {
        self.added = self.instance.lock().names.added();
        let (mut found, mut reported) = self.ask(events);
        self.instance.asked.store(wait::now(), Ordering::Relaxed);
        if found < 0 {
            return found;
        }
        if reported == 0 && found > 0 && self.instance.lock().is_to_ask_again() {
            // The reported entry has been modified, so the kernel reports it anew.
            (found, reported) = self.ask(events);
        }
        for _ in 0..EPOLL_ASKS_MAX {
            let is_filled = found == number(events.len());
            if reported > 0 || !is_filled {
                break;
            }
            // Events of Weft's own have filled a short list.
            (found, reported) = self.ask(events);
        }
        self.instance.crowded.store(reported == events.len(), Ordering::Relaxed);
        remote::drive();
        let instance = self.instance;
        let mut watches = instance.lock();
        if reported == 0 {
            watches.open_inboxes();
        }
        let all = reported + watches.collect(instance.fd(), &mut events[reported..], self.round);
        if all > 0 {
            self.end_held(&mut watches);
        }
        number(all)
    }

    /// Asks the kernel. Returns how many events it has reported, and how many of them go to the
    /// program. A negative number stands for `errno`.
    fn ask(&mut self, events: &mut [epoll_event]) -> (c_int, usize) {
        let found = (self.sleep)(events, Some(0));
        (found, self.translate(events, found))
    }

    /// Removes kernel events that the program is not to see yet. Returns how many are left.
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

    /// Collects the events of polled sockets. If there are any, ends the wait under the same lock.
    fn collect_and_end(&mut self, events: &mut [epoll_event]) -> usize {
        remote::drive();
        let instance = self.instance;
        let mut watches = instance.lock();
        let found = watches.collect(instance.fd(), events, self.round);
        if found > 0 {
            self.end_held(&mut watches);
        }
        found
    }

    /// Collects the events of polled sockets.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        remote::drive();
        self.instance.lock().collect(self.instance.fd(), events, self.round)
    }
}

/// Converts a number of events to the call's return value.
fn number(events: usize) -> c_int {
    c_int::try_from(events).unwrap_or(c_int::MAX)
}
