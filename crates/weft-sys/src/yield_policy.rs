//! When a thread that polls, and finds nothing, offers its core to others.
//!
//! The peer whose message is awaited may want the core. Whether it does shows in what becomes of an
//! offer (`sched_yield(2)`): nobody takes it up, and it is over in less than a microsecond; another
//! that polls takes it and gives it back soon; or somebody has work, and keeps it for a whole turn.
//! Among pollers offers pay at every opportunity; otherwise they are made now and then, to find
//! out. Beside one that has work a poller sleeps for a short time instead, until it is woken: a
//! thread that sleeps keeps its claim to the core, and one that yields loses it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::cpu_contention::CpuContention;
use crate::limits::REFUSED_MAX;

/// Polls that find nothing between two offers, where cores are shared by pollers and elsewhere.
const POLLS_AMONG_POLLERS: u32 = 8;
const POLLS_ALONE: u32 = 1_024;
/// The same beside one that works: longer than a peer on another core takes to answer.
const POLLS_BESIDE_WORK: u32 = 64;
/// An offer that took this long, in nanoseconds, was taken up.
const TAKEN_NS: u64 = 1_500;
/// Pollers, however many they are, give a core back sooner than this, in nanoseconds; who works
/// takes a whole turn of the scheduler's.
const TURN_NS: u64 = 2_000_000;
/// Offers in a row that were taken up for less than a turn, after which the takers are pollers.
const TAKEN_MIN: u32 = 2;
/// An offer that took this long, in nanoseconds, shows that cores are scarce, and for how long.
const SCARCE_NS: u64 = 20_000;
const SCARCE_TIME_NS: u64 = 100_000_000;
/// For how long one that has work is expected to go on, in nanoseconds.
const WORKER_TIME_NS: u64 = 200_000_000;
/// How long a poller sleeps instead of yielding: a program may look at more than us between polls.
pub const TIMED_SLEEP: Duration = Duration::from_micros(100);

/// What became of the last offers, and what follows from it. Threads may learn at once; then one of
/// the lessons is lost.
#[derive(Debug)]
pub struct YieldPolicy {
    polls_before_yield: AtomicU32,
    taken: AtomicU32,
    refused: AtomicU32,
    scarce_until: AtomicU64,
    worker_until: AtomicU64,
    /// What the offers say that are made because of the time.
    contention: CpuContention,
}

/// How to offer a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldKind {
    /// By `sched_yield`.
    Yield,
    /// By sleeping until something arrives, for [`TIMED_SLEEP`] at most.
    TimedSleep,
}

impl YieldPolicy {
    /// Nothing is known of the cores yet.
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

    /// How to make an offer `now`, in nanoseconds.
    pub fn kind(&self, now: u64) -> YieldKind {
        if now < self.worker_until.load(Ordering::Relaxed) {
            YieldKind::TimedSleep
        } else {
            YieldKind::Yield
        }
    }

    /// How many polls in a row may find nothing before the core is offered.
    #[inline]
    pub fn polls_before_yield(&self) -> u32 {
        self.polls_before_yield.load(Ordering::Relaxed)
    }

    /// Whether more threads than there are cores wanted to run a moment ago. `now` is in
    /// nanoseconds.
    pub fn are_cores_scarce(&self, now: u64) -> bool {
        now < self.scarce_until.load(Ordering::Relaxed) || self.contention.is_believed(now)
    }

    /// An offer by yielding that was made because of the time, after fewer polls than
    /// [`Self::polls_before_yield`], took this long and ended `now`; both in nanoseconds. Returns
    /// whether cores are scarce.
    pub fn learn_early(&self, took: u64, now: u64) -> bool {
        // One that is made by time may be taken up for long by chance.
        if took <= CpuContention::LONG_NS {
            self.learn(took, now);
        }
        self.contention.learn(took, now);
        self.contention.is_believed(now)
    }

    /// An offer by yielding that ended `now` took this long; both in nanoseconds.
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

/// Counts what happened in a row.
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
    fn pollers_hand_the_core_to_each_other() {
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
    fn poller_sleeps_beside_one_that_works() {
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
