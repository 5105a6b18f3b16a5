//! What a pipeline did, and what bounded its rate.

use super::meter::{Role, Times};
use super::queue::Passage;

/// What one stage did.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// Its name.
    pub name: &'static str,
    /// What it is to the pipeline.
    pub role: Role,
    /// Its workers now, or at the end.
    pub workers: usize,
    /// The most that it had at one time.
    pub workers_peak: usize,
    /// What its workers spent their time on.
    pub times: Times,
    /// The queue in front of it, if it has one.
    pub input: Option<Passage>,
}

impl StageReport {
    /// The mean time of work for a task, in nanoseconds.
    #[must_use]
    pub fn service(&self) -> u64 {
        mean(self.times.busy, self.times.done)
    }

    /// The mean time that a task waited in front of the stage, in nanoseconds.
    #[must_use]
    pub fn queueing(&self) -> u64 {
        self.input.map_or(0, |input| mean(input.waited, input.passed))
    }
}

/// What a pipeline did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its stages, in the order in which they were put together.
    pub stages: Vec<StageReport>,
    /// Nanoseconds from the start on.
    pub elapsed: u64,
}

/// The stage that bounded the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Its name.
    pub stage: &'static str,
    /// What it is to the pipeline.
    pub role: Role,
    /// The share of its time in which it worked, from 0 to 1. Far below 1, nothing here bounded the
    /// rate: the other end did.
    pub share: f64,
}

impl Report {
    /// The stage whose workers worked for the greatest share of their time. None before any did.
    #[must_use]
    pub fn bound(&self) -> Option<Bound> {
        let worked = self.stages.iter().filter(|stage| stage.times.busy > 0);
        let bounds = worked.map(|stage| Bound {
            stage: stage.name,
            role: stage.role,
            share: stage.times.busy_share(),
        });
        bounds.max_by(|one, other| one.share.total_cmp(&other.share))
    }
}

/// The mean of `count` parts of a sum, 0 of none.
pub(crate) fn mean(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_stage_bounds_the_rate() {
        let stage = |name, role, idle, busy, blocked| StageReport {
            name,
            role,
            workers: 1,
            workers_peak: 1,
            times: Times { idle, busy, blocked, done: 10 },
            input: None,
        };
        let stages = vec![
            stage("read", Role::SourceDisk, 0, 30, 70),
            stage("seal", Role::Cpu, 4, 95, 1),
            stage("send", Role::Network, 60, 40, 0),
        ];
        let report = Report { stages, elapsed: 100 };
        let bound = report.bound().expect("they worked");
        assert_eq!((bound.stage, bound.role), ("seal", Role::Cpu));
        assert!((bound.share - 0.95).abs() < 1e-9);
        assert_eq!(report.stages[1].service(), 9);
        assert_eq!(Report::default().bound(), None);
    }
}
