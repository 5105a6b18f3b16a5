//! Decides how long a waiting thread polls before it sleeps: one policy for all waits.
//!
//! A wakeup costs tens of microseconds, also for the waker, which is often the peer; polling costs
//! a core. If nothing is known about a wait, polling for as long as a wakeup costs, and sleeping
//! then, is never worse than twice the optimum (Karlin et al., "Empirical studies of competitive
//! spinning for a shared-memory multiprocessor", 1991). Knowledge does better: waits tend to last
//! as long as the last ones. So each object remembers whether polling would have paid off, and
//! polls only if it would.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The policy that `WEFT_WAIT` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// `latency`: polls for as long as the limit allows.
    Latency,
    /// `balanced`: polls while that pays off; the default.
    Balanced,
    /// `cpu`: sleeps at once.
    Cpu,
}

/// Returns a time in nanoseconds, as [`Spin`] takes it; the most that fits if it is longer.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn policy() -> Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    *POLICY.get_or_init(|| match std::env::var("WEFT_WAIT").as_deref() {
        Ok("latency") => Policy::Latency,
        Ok("cpu") => Policy::Cpu,
        _ => Policy::Balanced,
    })
}

/// What an object remembers of its last waits.
#[derive(Debug)]
pub struct Spin {
    policy: Policy,
    /// The longest time of polling, in nanoseconds.
    limit: u64,
    ns: AtomicU64,
    /// Number of consecutive short waits that went on after polling.
    failures: AtomicU32,
    /// Number of waits to be made without polling.
    skip: AtomicU32,
}

impl Spin {
    /// Approximate cost, in nanoseconds, of being woken by a core that has gone to sleep.
    const LIMIT_NS: u64 = 50_000;
    /// The longest time of polling under the latency policy.
    const LATENCY_LIMIT_NS: u64 = 2_000_000;
    /// A wait shorter than this, in nanoseconds, might have ended while polling. It includes
    /// wakeups on both sides, which take long in a virtual machine whose core has gone to sleep.
    const SHORT_NS: u64 = 250_000;
    const FAILURES_MAX: u32 = 8;
    const SKIP: u32 = 256;

    /// For threads of the program.
    #[must_use]
    #[allow(clippy::new_without_default)] // An object of its own, not a value.
    pub fn new() -> Self {
        Self::with(policy(), Self::LIMIT_NS)
    }

    /// For waits that sleep until a thread of Weft wakes them. Two wakeups cost twice as much, so
    /// polling pays off for twice as long.
    #[must_use]
    pub fn behind_a_thread() -> Self {
        Self::with(policy(), 2 * Self::LIMIT_NS)
    }

    /// For a thread of Weft beside the program's, which it must not keep off the only core.
    #[must_use]
    pub fn beside() -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        let policy = if alone { Policy::Cpu } else { policy() };
        Self::with(policy, Self::LIMIT_NS)
    }

    fn with(policy: Policy, limit: u64) -> Self {
        Self {
            policy,
            limit,
            ns: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            skip: AtomicU32::new(0),
        }
    }

    /// How long to poll now, in nanoseconds. If more threads want to run than there are cores
    /// (`crowded`), the thread that is waited for may need this one.
    #[must_use]
    pub fn ns(&self, crowded: bool) -> u64 {
        match self.policy {
            Policy::Cpu => 0,
            _ if crowded => 0,
            Policy::Latency => Self::LATENCY_LIMIT_NS,
            Policy::Balanced => self.ns.load(Ordering::Relaxed),
        }
    }

    /// Records how long the last wait took, in nanoseconds. If two threads learn at once, one
    /// result is lost.
    pub fn learn(&self, waited: u64) {
        let spun = self.ns.load(Ordering::Relaxed);
        if spun != 0 && waited > spun && waited < Self::SHORT_NS {
            let failures = self.failures.load(Ordering::Relaxed) + 1;
            self.failures.store(failures % Self::FAILURES_MAX, Ordering::Relaxed);
            if failures == Self::FAILURES_MAX {
                self.skip.store(Self::SKIP, Ordering::Relaxed);
            }
        } else if spun != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        let ns = if skip == 0 && waited < Self::SHORT_NS { self.limit } else { 0 };
        self.ns.store(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a wakeup in the model, in nanoseconds of both cores and of latency.
    const WAKING_NS: u64 = 50_000;

    /// Totals of a series of waits, in nanoseconds: time on the core, and time from the awaited
    /// event until the waiter continues.
    #[derive(Clone, Copy, Debug, Default)]
    struct Cost {
        cpu: u64,
        latency: u64,
    }

    /// Simulates a waiter with a policy, whose events come after these gaps.
    fn simulate(policy: Policy, gaps: impl Iterator<Item = u64>) -> Cost {
        let spin = Spin::with(policy, Spin::LIMIT_NS);
        gaps.fold(Cost::default(), |mut cost, gap| {
            let look = spin.ns(false);
            let asleep = gap > look;
            cost.cpu += gap.min(look) + if asleep { WAKING_NS } else { 0 };
            cost.latency += if asleep { WAKING_NS } else { 0 };
            // A wait ends when the waiter continues.
            spin.learn(gap + if asleep { WAKING_NS } else { 0 });
            cost
        })
    }

    fn steady(gap: u64) -> impl Iterator<Item = u64> + Clone {
        std::iter::repeat_n(gap, 10_000)
    }

    #[test]
    fn waiter_polls_through_short_gaps() {
        for gap in [1_000, 5_000, 10_000, 40_000] {
            let adaptive = simulate(Policy::Balanced, steady(gap));
            // The waiter learns from the first wait.
            assert_eq!(adaptive.latency, WAKING_NS, "gap of {gap} ns");
        }
    }

    /// A peer that sleeps for each message, and is woken by way of a thread, answers after two
    /// wakeups. The other end polls through that, so that its own answers come at once and the peer
    /// polls again. Otherwise both would sleep for ever.
    #[test]
    fn waiter_behind_a_thread_polls_while_its_peer_is_woken() {
        let spin = Spin::with(Policy::Balanced, 2 * Spin::LIMIT_NS);
        spin.learn(2 * WAKING_NS);
        for gap in [WAKING_NS + 10_000, 2 * WAKING_NS - 1_000] {
            for _ in 0..1_000 {
                assert!(spin.ns(false) > gap, "gap of {gap} ns");
                spin.learn(gap);
            }
        }
    }

    #[test]
    fn waiter_sleeps_through_long_gaps() {
        for gap in [300_000, 1_000_000, 10_000_000] {
            let adaptive = simulate(Policy::Balanced, steady(gap));
            let asleep = simulate(Policy::Cpu, steady(gap));
            assert_eq!(adaptive.cpu, asleep.cpu, "gap of {gap} ns");
        }
    }

    /// The cost is at most little more than twice that of the better one of always polling and
    /// always sleeping.
    #[test]
    fn adaptive_policy_is_never_much_worse_than_the_better_fixed_one() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut series: Vec<Vec<u64>> =
            (0..14).map(|power| steady(1_000 << power).collect()).collect();
        series.push((0..10_000).map(|i| if i % 2 == 0 { 2_000 } else { 2_000_000 }).collect());
        series.push((0..10_000).map(|i| if i / 100 % 2 == 0 { 2_000 } else { 500_000 }).collect());
        series.push((0..10_000).map(|_| 1_000 << random.u32(0..14)).collect());
        for gaps in series {
            let adaptive = simulate(Policy::Balanced, gaps.iter().copied());
            let asleep = simulate(Policy::Cpu, gaps.iter().copied());
            let looking: u64 = gaps.iter().sum();
            let better = asleep.cpu.min(looking);
            let bound = better * 22 / 10 + 10 * WAKING_NS;
            assert!(adaptive.cpu <= bound, "{} > {bound}: gaps {:?}", adaptive.cpu, &gaps[..4]);
            assert!(adaptive.latency <= asleep.latency);
        }
    }

    #[test]
    fn policy_overrides_what_was_learnt() {
        let (latency, cpu) = (Spin::with(Policy::Latency, 1), Spin::with(Policy::Cpu, 1));
        for waited in [1_000, 10_000_000] {
            latency.learn(waited);
            cpu.learn(waited);
            assert_eq!((latency.ns(false), cpu.ns(false)), (Spin::LATENCY_LIMIT_NS, 0));
            assert_eq!(latency.ns(true), 0, "others want the core");
        }
    }
}
