//! Reports on pipelines, and their bottleneck.

use super::meter::{Role, Times};
use super::queue::Passage;

/// The report on one stage.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// The stage's name.
    pub name: &'static str,
    /// The stage's role.
    pub role: Role,
    /// The number of workers now, or at the end.
    pub workers: usize,
    /// The largest number of workers at a time.
    pub workers_peak: usize,
    /// The workers' time by activity.
    pub times: Times,
    /// The stage's input queue, if it has one.
    pub input: Option<Passage>,
}

impl StageReport {
    /// The mean time to process a task, in nanoseconds.
    #[must_use]
    pub fn service(&self) -> u64 {
        mean(self.times.busy, self.times.done)
    }

    /// The mean time that a task waited in the input queue, in nanoseconds.
    #[must_use]
    pub fn queueing(&self) -> u64 {
        self.input.map_or(0, |input| mean(input.waited, input.passed))
    }
}

/// The report on a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The stages in the order in which they were added.
    pub stages: Vec<StageReport>,
    /// Nanoseconds since the start.
    pub elapsed: u64,
}

/// The bottleneck: the stage that limited the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The stage's name.
    pub stage: &'static str,
    /// The stage's role.
    pub role: Role,
    /// The share of time in which it was busy, from 0 to 1. If it is far below 1, the other end
    /// limited the rate.
    pub share: f64,
}

impl Report {
    /// Returns the stage whose workers were busy for the greatest share of time; `None` if none
    /// was.
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

/// Returns `sum / count`, or 0 if `count` is 0.
pub(crate) fn mean(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_stage_is_the_bottleneck() {
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
