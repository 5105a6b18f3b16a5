//! Measures what the workers of a stage spend their time on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::clock::Clock;

/// The role of a stage, which reports name as the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It reads files at the source.
    SourceDisk,
    /// It computes.
    Cpu,
    /// It sends or receives.
    Network,
    /// It writes files at the sink.
    SinkDisk,
}

/// The activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for a task.
    Idle = 0,
    /// It works.
    Busy = 1,
    /// It waits for the next stage or the peer to take its output.
    Blocked = 2,
}

const KINDS: usize = 3;

/// The total time of all workers of a stage by activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds of waiting for tasks.
    pub idle: u64,
    /// Nanoseconds of work.
    pub busy: u64,
    /// Nanoseconds of waiting for the next stage or the peer.
    pub blocked: u64,
    /// Completed tasks.
    pub done: u64,
}

impl Times {
    /// Returns the difference to an `earlier` value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            idle: self.idle.saturating_sub(earlier.idle),
            busy: self.busy.saturating_sub(earlier.busy),
            blocked: self.blocked.saturating_sub(earlier.blocked),
            done: self.done.saturating_sub(earlier.done),
        }
    }

    /// The share of the workers' time that was work, from 0 to 1.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let all = self.idle + self.busy + self.blocked;
        if all == 0 { 0.0 } else { self.busy as f64 / all as f64 }
    }
}

/// Sums over workers. The time of an activity up to `now` is `spent + count * now`, where each
/// worker that began it at `t` has subtracted `t` from `spent`. So activities in progress are
/// counted, too.
#[derive(Debug, Default)]
struct Sums {
    spent: [u64; KINDS],
    count: [u64; KINDS],
    done: u64,
}

/// The meter of a stage.
#[derive(Debug)]
pub struct Meter {
    clock: Clock,
    sums: Mutex<Sums>,
    workers: AtomicUsize,
}

impl Meter {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, sums: Mutex::default(), workers: AtomicUsize::new(0) }
    }

    /// Returns the times up to now.
    #[must_use]
    pub fn times(&self) -> Times {
        let sums = self.lock();
        // The clock is read under the lock, so `now` is not before the start of any activity.
        let now = self.clock.now();
        let time = |doing: Doing| {
            let kind = doing as usize;
            sums.spent[kind].wrapping_add(sums.count[kind].wrapping_mul(now))
        };
        Times {
            idle: time(Doing::Idle),
            busy: time(Doing::Busy),
            blocked: time(Doing::Blocked),
            done: sums.done,
        }
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The meter of one worker.
#[derive(Debug)]
pub(crate) struct Watch {
    meter: Arc<Meter>,
    doing: Doing,
}

impl Watch {
    /// Starts measuring a new worker, which counts as busy.
    pub(crate) fn start(meter: Arc<Meter>) -> Self {
        meter.workers.fetch_add(1, Ordering::Relaxed);
        let mut sums = meter.lock();
        let now = meter.clock.now();
        sums.enter(Doing::Busy, now);
        drop(sums);
        Self { meter, doing: Doing::Busy }
    }

    /// Records that the worker's activity changes. Returns the time.
    pub(crate) fn switch(&mut self, to: Doing) -> u64 {
        let mut sums = self.meter.lock();
        let now = self.meter.clock.now();
        sums.leave(self.doing, now);
        sums.enter(to, now);
        self.doing = to;
        now
    }

    /// Counts completed tasks.
    pub(crate) fn done(&mut self, tasks: u64) {
        self.meter.lock().done += tasks;
    }

    pub(crate) fn doing(&self) -> Doing {
        self.doing
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut sums = self.meter.lock();
        let now = self.meter.clock.now();
        sums.leave(self.doing, now);
        drop(sums);
        self.meter.workers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sums {
    fn enter(&mut self, doing: Doing, now: u64) {
        let kind = doing as usize;
        self.count[kind] += 1;
        self.spent[kind] = self.spent[kind].wrapping_sub(now);
    }

    fn leave(&mut self, doing: Doing, now: u64) {
        let kind = doing as usize;
        self.count[kind] -= 1;
        self.spent[kind] = self.spent[kind].wrapping_add(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::ManualClock;
    use std::time::Duration;

    #[test]
    fn times_include_activities_in_progress() {
        let time = ManualClock::default();
        let pass = |n| time.advance(Duration::from_nanos(n));
        let meter = Arc::new(Meter::new(Clock::Manual(time.clone())));
        pass(1_000);
        let mut one = Watch::start(Arc::clone(&meter));
        pass(10);
        one.switch(Doing::Idle);
        let mut two = Watch::start(Arc::clone(&meter));
        pass(5);
        two.done(3);
        assert_eq!(meter.times(), Times { idle: 5, busy: 15, blocked: 0, done: 3 });
        two.switch(Doing::Blocked);
        pass(7);
        drop(two);
        pass(1);
        let times = meter.times();
        assert_eq!(times, Times { idle: 13, busy: 15, blocked: 7, done: 3 });
        assert_eq!(meter.workers(), 1);
        let later = meter.times().since(&times);
        assert_eq!(later, Times::default());
        assert!((times.busy_share() - 15.0 / 35.0).abs() < 1e-9);
    }
}
