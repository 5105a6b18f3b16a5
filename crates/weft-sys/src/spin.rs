//! How long a thread that waits looks before it sleeps: one policy for every wait.
//!
//! To be woken costs some tens of microseconds, and it costs the waker, too, who is often the peer;
//! to look costs a core. Not knowing how long a wait will be, one that looks for as long as being
//! woken costs, and then sleeps, is never worse than twice the best (Karlin et al., "Empirical
//! studies of competitive spinning for a shared-memory multiprocessor", 1991). It is better than
//! that to know: what is waited for comes as it came the last times. So each object that is waited
//! on remembers whether looking would have paid, and looks only if it would.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What `WEFT_WAIT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// `latency`: looks for as long as a waiter stays at it at all.
    Latency,
    /// `balanced`: looks while that pays; the default.
    Balanced,
    /// `cpu`: sleeps at once.
    Cpu,
}

fn policy() -> Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    *POLICY.get_or_init(|| match std::env::var("WEFT_WAIT").as_deref() {
        Ok("latency") => Policy::Latency,
        Ok("cpu") => Policy::Cpu,
        _ => Policy::Balanced,
    })
}

/// What an object that is waited on remembers of its last waits.
#[derive(Debug)]
pub struct Spin {
    policy: Policy,
    /// The longest look, in nanoseconds.
    limit: u64,
    ns: AtomicU64,
    /// Waits in a row that went on after the look and were short all the same.
    failures: AtomicU32,
    /// Waits to be made without.
    skip: AtomicU32,
}

impl Spin {
    /// About what it costs to be woken, in nanoseconds, by a core that has gone to sleep.
    const LIMIT_NS: u64 = 50_000;
    /// The longest look if latency is all that counts.
    const LATENCY_LIMIT_NS: u64 = 2_000_000;
    /// A wait that might have been over in time, in nanoseconds: both sides' being woken is part of
    /// it, and that of a core that has gone to sleep in a virtual machine takes long.
    const SHORT_NS: u64 = 250_000;
    const FAILURES_MAX: u32 = 8;
    const SKIP: u32 = 256;

    /// Of threads of the program's.
    #[must_use]
    #[allow(clippy::new_without_default)] // An object of its own, not a value.
    pub fn new() -> Self {
        Self::with(policy(), Self::LIMIT_NS)
    }

    /// Of a thread beside the program's, which must not keep them off the only core.
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

    /// How long to look now, in nanoseconds. Where there are more threads that want to run than
    /// cores (`crowded`), the one that is waited for may want this one.
    #[must_use]
    pub fn ns(&self, crowded: bool) -> u64 {
        match self.policy {
            Policy::Cpu => 0,
            _ if crowded => 0,
            Policy::Latency => Self::LATENCY_LIMIT_NS,
            Policy::Balanced => self.ns.load(Ordering::Relaxed),
        }
    }

    /// The last wait took this long, in nanoseconds. Two threads may learn at once; then one of
    /// the lessons is lost.
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

    /// What being woken costs in the model, in nanoseconds of both cores and of latency.
    const WAKING_NS: u64 = 50_000;

    /// Sums over a series of waits: time on the core, and time from what was waited for until the
    /// waiter goes on, both in nanoseconds.
    #[derive(Clone, Copy, Debug, Default)]
    struct Cost {
        cpu: u64,
        latency: u64,
    }

    /// A waiter with a policy, for which things come after these gaps.
    fn simulate(policy: Policy, gaps: impl Iterator<Item = u64>) -> Cost {
        let spin = Spin::with(policy, Spin::LIMIT_NS);
        gaps.fold(Cost::default(), |mut cost, gap| {
            let look = spin.ns(false);
            let asleep = gap > look;
            cost.cpu += gap.min(look) + if asleep { WAKING_NS } else { 0 };
            cost.latency += if asleep { WAKING_NS } else { 0 };
            // A wait ends when the waiter goes on.
            spin.learn(gap + if asleep { WAKING_NS } else { 0 });
            cost
        })
    }

    fn steady(gap: u64) -> impl Iterator<Item = u64> + Clone {
        std::iter::repeat_n(gap, 10_000)
    }

    #[test]
    fn short_gaps_are_looked_through() {
        for gap in [1_000, 5_000, 10_000, 40_000] {
            let adaptive = simulate(Policy::Balanced, steady(gap));
            // The first wait teaches it.
            assert_eq!(adaptive.latency, WAKING_NS, "gap of {gap} ns");
        }
    }

    #[test]
    fn long_gaps_are_slept_through() {
        for gap in [300_000, 1_000_000, 10_000_000] {
            let adaptive = simulate(Policy::Balanced, steady(gap));
            let asleep = simulate(Policy::Cpu, steady(gap));
            assert_eq!(adaptive.cpu, asleep.cpu, "gap of {gap} ns");
        }
    }

    /// Whatever comes, it costs at most little more than twice what the better of always looking
    /// and always sleeping costs.
    #[test]
    fn no_series_makes_it_much_worse_than_the_better_policy() {
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
