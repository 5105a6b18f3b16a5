//! Decides which stage gets another thread and which one loses one, from their loads alone. It
//! starts no threads and reads no clock.
//!
//! A stage is *short* of workers if they are busy nearly all the time and tasks queue longer than
//! they are processed. It gets another worker. If that does not raise its rate, because all
//! processors are busy or another stage is the bottleneck, the monitor removes the worker again and
//! does not change the stage for some time. A stage has *slack* if it would not be busy with one
//! worker fewer.

use crate::limits::{
    MONITOR_HOLD, MONITOR_SHORT_MAX, MONITOR_SLACK_MAX, MONITOR_TRIAL, PIPELINE_THREADS_MAX,
};

/// Busy share above which a stage may be short of workers.
const BUSY_SHARE: f64 = 0.9;
/// The highest busy share that the remaining workers may have after one is removed.
const SLACK_SHARE: f64 = 0.7;
/// The factor by which another worker must raise the rate to stay.
const GAIN: f64 = 1.05;

/// The load of a stage in the last interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// The number of workers.
    pub workers: usize,
    /// The smallest allowed number of workers.
    pub least: usize,
    /// The largest allowed number.
    pub most: usize,
    /// The share of the workers' time in which they worked, from 0 to 1.
    pub busy: f64,
    /// The tasks completed.
    pub done: u64,
    /// The mean time that a task waited in the queue, in nanoseconds.
    pub queueing: u64,
    /// The mean time to process a task, in nanoseconds.
    pub service: u64,
    /// The tasks in the queue now.
    pub queued: usize,
}

impl Load {
    fn is_short(&self) -> bool {
        let waits = self.queued > 0 && self.queueing > self.service;
        self.workers < self.most && self.busy >= BUSY_SHARE && waits
    }

    fn has_slack(&self) -> bool {
        let fewer = self.workers.saturating_sub(1);
        self.workers > self.least && self.busy * self.workers as f64 <= SLACK_SHARE * fewer as f64
    }
}

/// A change of a stage's number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The index of the stage among the loads.
    pub stage: usize,
    /// The new number of workers.
    pub workers: usize,
}

/// The monitor's record of a stage.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    short_for: u32,
    slack_for: u32,
    /// The remaining intervals in which the stage is not changed.
    held_for: u32,
    trial: Option<Trial>,
}

/// The trial of an added worker.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The tasks that the stage completed in an interval before it.
    before: u64,
    /// The tasks completed with it.
    done: u64,
    intervals: u32,
}

/// Decides on the numbers of workers.
#[derive(Debug)]
pub struct Monitor {
    threads_max: usize,
    stages: Vec<History>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new(PIPELINE_THREADS_MAX)
    }
}

impl Monitor {
    /// Creates a monitor of a pipeline whose stages may have `threads_max` workers together.
    #[must_use]
    pub fn new(threads_max: usize) -> Self {
        Self { threads_max, stages: Vec::new() }
    }

    /// Decides after an interval, from the loads of all stages. At most one stage gets a worker,
    /// possibly one that another stage loses.
    pub fn decide(&mut self, loads: &[Load]) -> Vec<Change> {
        self.stages.resize(loads.len(), History::default());
        let mut changes = Vec::new();
        for (stage, (load, history)) in loads.iter().zip(&mut self.stages).enumerate() {
            if history.observe(load) {
                changes.push(Change { stage, workers: load.workers - 1 });
            }
        }
        let Some(stage) = self.shortest(loads) else { return changes };
        let total: usize = loads.iter().map(|load| load.workers).sum();
        if total - changes.len() >= self.threads_max {
            let Some(giver) = giver(loads, stage, &changes) else { return changes };
            changes.push(Change { stage: giver, workers: loads[giver].workers - 1 });
        }
        let load = &loads[stage];
        self.stages[stage].trial = Some(Trial { before: load.done, done: 0, intervals: 0 });
        self.stages[stage].short_for = 0;
        changes.push(Change { stage, workers: load.workers + 1 });
        changes
    }

    /// Returns the stage that has been short for long enough and whose tasks wait longest.
    fn shortest(&self, loads: &[Load]) -> Option<usize> {
        let short = |stage: &usize| {
            let history = &self.stages[*stage];
            history.short_for >= MONITOR_SHORT_MAX && history.trial.is_none()
        };
        (0..loads.len()).filter(short).max_by_key(|stage| loads[*stage].queueing)
    }
}

/// Returns the stage that needs a worker least, if one can lose one.
fn giver(loads: &[Load], taker: usize, changes: &[Change]) -> Option<usize> {
    let can_give = |stage: &usize| {
        let load = &loads[*stage];
        let is_free = *stage != taker && changes.iter().all(|change| change.stage != *stage);
        is_free && load.workers > load.least && load.busy < BUSY_SHARE
    };
    let busy = |stage: &usize| loads[*stage].busy;
    (0..loads.len()).filter(can_give).min_by(|one, other| busy(one).total_cmp(&busy(other)))
}

impl History {
    /// Records the load of an interval. Returns whether the stage loses a worker.
    fn observe(&mut self, load: &Load) -> bool {
        if let Some(trial) = &mut self.trial {
            trial.intervals += 1;
            // The first interval includes the start of the thread, so it does not count.
            if trial.intervals > 1 {
                trial.done += load.done;
            }
            if trial.intervals <= MONITOR_TRIAL {
                return false;
            }
            let gained = trial.done as f64 >= GAIN * trial.before as f64 * f64::from(MONITOR_TRIAL);
            self.trial = None;
            if !gained && load.workers > load.least {
                *self = Self { held_for: MONITOR_HOLD, ..Self::default() };
                return true;
            }
        }
        let is_held = self.held_for > 0;
        self.held_for = self.held_for.saturating_sub(1);
        self.short_for = if load.is_short() && !is_held { self.short_for + 1 } else { 0 };
        self.slack_for = if load.has_slack() { self.slack_for + 1 } else { 0 };
        if self.slack_for >= MONITOR_SLACK_MAX {
            self.slack_for = 0;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the load of a stage that is short of workers: tasks of 1 ms that wait for 10 ms.
    fn short(workers: usize, done: u64) -> Load {
        let (service, queueing) = (1_000_000, 10_000_000);
        Load { workers, least: 1, most: 4, busy: 0.99, done, queueing, service, queued: 5 }
    }

    fn idle(workers: usize) -> Load {
        Load { busy: 0.05, queueing: 1_000, queued: 0, ..short(workers, 10) }
    }

    /// Runs the monitor on one stage for many intervals. Returns its numbers of workers.
    fn settle(monitor: &mut Monitor, intervals: usize, load: impl Fn(usize) -> Load) -> Vec<usize> {
        let mut workers = 1;
        let mut seen = vec![workers];
        for _ in 0..intervals {
            for change in monitor.decide(&[load(workers)]) {
                workers = change.workers;
                seen.push(workers);
            }
        }
        seen
    }

    #[test]
    fn short_stage_grows_to_its_limit_while_workers_help() {
        let seen =
            settle(&mut Monitor::default(), 100, |workers| short(workers, 100 * workers as u64));
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn growth_ends_when_the_rate_does_not_rise() {
        // With two processors, a third worker adds nothing.
        let load = |workers: usize| short(workers, 100 * workers.min(2) as u64);
        let seen = settle(&mut Monitor::default(), 20, load);
        assert_eq!(seen, [1, 2, 3, 2]);
        let seen = settle(&mut Monitor::default(), 200, load);
        assert!(seen.len() < 15, "tries again now and then only: {seen:?}");
        assert_eq!(seen.iter().max(), Some(&3));
    }

    #[test]
    fn growth_ends_when_tasks_do_not_wait() {
        // Three workers suffice for the arriving tasks.
        let load = |workers: usize| {
            if workers < 3 { short(workers, 100 * workers as u64) } else { idle_enough(workers) }
        };
        assert_eq!(settle(&mut Monitor::default(), 100, load), [1, 2, 3]);
    }

    fn idle_enough(workers: usize) -> Load {
        Load { busy: 0.85, queueing: 100_000, queued: 0, ..short(workers, 290) }
    }

    #[test]
    fn one_slow_interval_changes_nothing() {
        let mut monitor = Monitor::default();
        for _ in 0..10 {
            assert_eq!(monitor.decide(&[short(1, 100)]), []);
            assert_eq!(monitor.decide(&[idle_enough(1)]), []);
        }
    }

    #[test]
    fn idle_stage_loses_its_workers_one_by_one() {
        let mut monitor = Monitor::default();
        let mut workers = 4;
        for _ in 0..100 {
            for change in monitor.decide(&[idle(workers)]) {
                assert_eq!(change.workers, workers - 1);
                workers = change.workers;
            }
        }
        assert_eq!(workers, 1);
    }

    #[test]
    fn worker_moves_to_the_stage_that_needs_it() {
        let mut monitor = Monitor::new(4);
        let loads = [short(1, 100), Load { busy: 0.8, ..idle(3) }];
        let changes: Vec<_> = (0..3).flat_map(|_| monitor.decide(&loads)).collect();
        let expected = [Change { stage: 1, workers: 2 }, Change { stage: 0, workers: 2 }];
        assert_eq!(changes, expected);
    }

    #[test]
    fn thread_limit_holds_if_no_stage_can_lose_a_worker() {
        let mut monitor = Monitor::new(2);
        for _ in 0..50 {
            assert_eq!(monitor.decide(&[short(1, 100), short(1, 100)]), []);
        }
    }

    #[test]
    fn stages_grow_one_at_a_time_by_longest_wait() {
        let mut monitor = Monitor::default();
        let longer = Load { queueing: 90_000_000, ..short(1, 100) };
        let changes: Vec<_> =
            (0..2).flat_map(|_| monitor.decide(&[short(1, 100), longer])).collect();
        assert_eq!(changes, [Change { stage: 1, workers: 2 }]);
    }
}
