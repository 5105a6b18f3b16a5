//! The actual and the desired number of workers of a stage.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The workers of a stage. A worker is counted before its thread runs.
#[derive(Debug)]
pub(crate) struct Crew {
    target: AtomicUsize,
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Crew {
    /// Creates a crew whose first workers are about to start.
    pub(crate) fn new(workers: usize) -> Self {
        let [target, live, peak] = [(); 3].map(|()| AtomicUsize::new(workers));
        Self { target, live, peak }
    }

    /// Sets the desired number of workers. Returns how many to start, and counts those.
    pub(crate) fn aim_at(&self, workers: usize) -> usize {
        self.target.store(workers.max(1), Ordering::SeqCst);
        let add = |live: usize| (live > 0 && live < workers).then_some(workers);
        let before = self.live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        self.peak.fetch_max(self.live(), Ordering::SeqCst);
        // A stage whose last worker has ended does not start again.
        before.map_or(0, |before| workers - before)
    }

    /// Removes the calling worker if there are more than desired. Returns whether it must end.
    pub(crate) fn leave_if_superfluous(&self) -> bool {
        let target = self.target.load(Ordering::SeqCst);
        let leave = |live: usize| (live > target).then(|| live - 1);
        self.live.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).is_ok()
    }

    /// Removes the calling worker, which ends. Returns whether it was the last.
    pub(crate) fn leave(&self) -> bool {
        self.live.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crew_grows_and_shrinks_but_does_not_restart() {
        let crew = Crew::new(1);
        assert!(!crew.leave_if_superfluous());
        assert_eq!(crew.aim_at(3), 2);
        assert_eq!(crew.aim_at(2), 0);
        assert!(crew.leave_if_superfluous());
        assert!(!crew.leave_if_superfluous());
        assert!(!crew.leave());
        assert!(crew.leave(), "the last one");
        assert_eq!(crew.aim_at(4), 0);
        assert_eq!((crew.live(), crew.peak()), (0, 3));
    }

    #[test]
    fn last_worker_is_never_superfluous() {
        let crew = Crew::new(1);
        assert_eq!(crew.aim_at(0), 0);
        assert!(!crew.leave_if_superfluous());
    }
}
