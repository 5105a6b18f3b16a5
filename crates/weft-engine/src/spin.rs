//! How long a thread that waits looks before it sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How long to look before sleeping: not at all, unless the last wait was short, nor while looking
/// proves to be in vain, as it does where it keeps the peer off its core.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: u64,
    ns: AtomicU64,
    /// Waits in a row that went on after the spin and were short all the same.
    failures: AtomicU32,
    /// Waits to be made without.
    skip: AtomicU32,
}

impl Spin {
    /// About what it costs to be woken, in nanoseconds, by a core that has gone to sleep.
    const LIMIT_NS: u64 = 50_000;
    /// A wait that might have been over in time, in nanoseconds: both sides' being woken is part of
    /// it, and that of a core that has gone to sleep in a virtual machine takes long.
    const SHORT_NS: u64 = 250_000;
    const FAILURES_MAX: u32 = 8;
    const SKIP: u32 = 256;

    /// Of threads of the program's.
    pub(crate) fn new() -> Self {
        Self {
            limit: Self::LIMIT_NS,
            ns: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            skip: AtomicU32::new(0),
        }
    }

    /// Of a thread beside the program's, which must not keep them off the only core.
    pub(crate) fn beside() -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        Self { limit: if alone { 0 } else { Self::LIMIT_NS }, ..Self::new() }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    /// The last wait took this long, in nanoseconds. Two threads may learn at once; then one of
    /// the lessons is lost.
    pub(crate) fn learn(&self, waited: u64) {
        let spun = self.ns();
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
