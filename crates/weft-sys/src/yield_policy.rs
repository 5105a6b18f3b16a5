//! Decides when a thread that polls without success yields its core.
//!
//! The peer whose message is awaited may need the core. The duration of a yield (`sched_yield(2)`)
//! shows it: if no thread takes the core, the call returns in less than a microsecond; another
//! poller takes it and gives it back soon; a thread with work keeps it for a whole time slice.
//! Among pollers, yielding pays off at every opportunity; otherwise a yield now and then finds out.
//! Beside a thread with work a poller sleeps for a short time instead, until it is woken: a
//! sleeping thread keeps its claim to the core, and a yielding one loses it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::cpu_contention::CpuContention;
use crate::limits::REFUSED_MAX;

/// Number of unsuccessful polls between two yields, if pollers share cores, and otherwise.
const POLLS_AMONG_POLLERS: u32 = 8;
const POLLS_ALONE: u32 = 1_024;
/// The same beside a thread with work: longer than a peer on another core takes to answer.
const POLLS_BESIDE_WORK: u32 = 64;
/// A yield that took at least this many nanoseconds gave the core to another thread.
const TAKEN_NS: u64 = 1_500;
/// Pollers, however many, give a core back in less than this many nanoseconds; a thread with work
/// takes a whole time slice of the scheduler.
const TURN_NS: u64 = 2_000_000;
/// Number of consecutive yields shorter than a time slice that show other pollers.
const TAKEN_MIN: u32 = 2;
/// A yield that took more than this many nanoseconds shows that cores are scarce, and then for how
/// long they count as scarce.
const SCARCE_NS: u64 = 20_000;
const SCARCE_TIME_NS: u64 = 100_000_000;
/// How long a thread with work is expected to continue, in nanoseconds.
const WORKER_TIME_NS: u64 = 200_000_000;
/// How long a poller sleeps instead of yielding. Programs may poll other things, too, so it is
/// short.
pub const TIMED_SLEEP: Duration = Duration::from_micros(100);

/// Results of the last yields, and the conclusions. If two threads learn at once, one result is
/// lost.
#[derive(Debug)]
pub struct YieldPolicy {
    polls_before_yield: AtomicU32,
    taken: AtomicU32,
    refused: AtomicU32,
    scarce_until: AtomicU64,
    worker_until: AtomicU64,
    /// Results of yields that are made because time has passed.
    contention: CpuContention,
}

/// A way to yield a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldKind {
    /// By `sched_yield`.
    Yield,
    /// By sleeping until something arrives, for [`TIMED_SLEEP`] at most.
    TimedSleep,
}

impl YieldPolicy {
    /// The initial state, in which nothing is known about the cores.
    #[must_use]
    #[allow(clippy::new_without_default)] // An object of its own, not a value.
    pub const fn new() -> Self {
        Self {
            polls_before_yield: AtomicU32::new(POLLS_ALONE),
            taken: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            scarce_until: AtomicU64::new(0),
            worker_until: AtomicU64::new(0),
            contention: CpuContention::new(),
        }
    }

    /// How to yield at the time `now`, in nanoseconds.
    pub fn kind(&self, now: u64) -> YieldKind {
        if now < self.worker_until.load(Ordering::Relaxed) {
            YieldKind::TimedSleep
        } else {
            YieldKind::Yield
        }
    }

    /// Number of consecutive unsuccessful polls before the core is yielded.
    #[inline]
    pub fn polls_before_yield(&self) -> u32 {
        self.polls_before_yield.load(Ordering::Relaxed)
    }

    /// Whether more threads than cores wanted to run a moment ago. `now` is in nanoseconds.
    pub fn are_cores_scarce(&self, now: u64) -> bool {
        now < self.scarce_until.load(Ordering::Relaxed) || self.contention.is_believed(now)
    }

    /// Records a yield that was made because time has passed, after fewer polls than
    /// [`Self::polls_before_yield`]. It took `took` nanoseconds and ended at `now`. Returns whether
    /// cores are scarce.
    pub fn learn_early(&self, took: u64, now: u64) -> bool {
        // Such a yield may take long by chance.
        if took <= CpuContention::LONG_NS {
            self.learn(took, now);
        }
        self.contention.learn(took, now);
        self.contention.is_believed(now)
    }

    /// Records a yield that took `took` nanoseconds and ended at `now`.
    pub fn learn(&self, took: u64, now: u64) {
        if took >= TURN_NS {
            self.worker_until.store(now + WORKER_TIME_NS, Ordering::Relaxed);
            self.polls_before_yield.store(POLLS_BESIDE_WORK, Ordering::Relaxed);
        }
        if took > SCARCE_NS {
            self.scarce_until.store(now + SCARCE_TIME_NS, Ordering::Relaxed);
        }
        let was_taken = (TAKEN_NS..TURN_NS).contains(&took);
        let taken = count(&self.taken, was_taken);
        let refused = count(&self.refused, took < TAKEN_NS);
        if taken >= TAKEN_MIN {
            self.polls_before_yield.store(POLLS_AMONG_POLLERS, Ordering::Relaxed);
        } else if refused >= REFUSED_MAX {
            self.polls_before_yield.store(POLLS_ALONE, Ordering::Relaxed);
        }
    }
}

/// Counts consecutive events.
fn count(counter: &AtomicU32, happened: bool) -> u32 {
    let before = counter.load(Ordering::Relaxed);
    let count = if happened { before.saturating_add(1) } else { 0 };
    counter.store(count, Ordering::Relaxed);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: u64 = 500;
    const POLLER: u64 = 4_000;
    const WORKER: u64 = 3_000_000;

    fn after(offers: &[u64]) -> YieldPolicy {
        let all = YieldPolicy::new();
        offers.iter().for_each(|&took| all.learn(took, 0));
        all
    }

    #[test]
    fn pollers_yield_often_to_other_pollers() {
        assert_eq!(
            after(&[POLLER]).polls_before_yield(),
            POLLS_ALONE,
            "an interrupt looks the same"
        );
        assert_eq!(after(&[POLLER; 2]).polls_before_yield(), POLLS_AMONG_POLLERS);
        let mut then = vec![POLLER; 2];
        then.extend([QUICK; 63]);
        assert_eq!(after(&then).polls_before_yield(), POLLS_AMONG_POLLERS);
        then.push(QUICK);
        assert_eq!(after(&then).polls_before_yield(), POLLS_ALONE, "they have gone");
    }

    #[test]
    fn poller_sleeps_beside_a_thread_with_work() {
        let offers = after(&[POLLER, POLLER]);
        assert_eq!(offers.kind(0), YieldKind::Yield);
        offers.learn(WORKER, 0);
        assert_eq!(offers.polls_before_yield(), POLLS_BESIDE_WORK);
        assert_eq!(offers.kind(WORKER_TIME_NS - 1), YieldKind::TimedSleep);
        assert_eq!(offers.kind(WORKER_TIME_NS), YieldKind::Yield);
        assert!(offers.are_cores_scarce(SCARCE_TIME_NS - 1));
        assert!(!offers.are_cores_scarce(SCARCE_TIME_NS));
    }
}
