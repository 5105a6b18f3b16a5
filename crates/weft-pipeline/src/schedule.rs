//! Decides which copy of a consumer gets the next buffer. No input or output, and no clock.

use serde::{Deserialize, Serialize};

/// How a producer selects the copy of a consumer that gets the next buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The copy with the fewest unacknowledged buffers. A copy acknowledges a buffer when it has
    /// processed it, or after some milliseconds.
    #[default]
    Demand,
    /// One copy after the other.
    RoundRobin,
}

/// The copies of one consumer as one producer sees them.
#[derive(Debug)]
pub(crate) struct Scheduler {
    policy: Policy,
    window: u32,
    unacknowledged: Vec<u32>,
    /// The copy whose turn it is.
    turn: usize,
}

impl Scheduler {
    pub(crate) fn new(policy: Policy, copies: usize, window: u32) -> Self {
        Self { policy, window, unacknowledged: vec![0; copies], turn: 0 }
    }

    /// Selects the copy for the next buffer. `None`: the producer has to wait for an
    /// acknowledgement.
    pub(crate) fn pick(&self) -> Option<usize> {
        let copies = self.unacknowledged.len();
        let picked = match self.policy {
            Policy::RoundRobin => self.turn,
            // Of equal copies it is the one whose turn comes first.
            Policy::Demand => (self.turn..copies)
                .chain(0..self.turn)
                .min_by_key(|&copy| self.unacknowledged[copy])?,
        };
        (self.unacknowledged[picked] < self.window).then_some(picked)
    }

    /// Records that a copy gets a buffer.
    pub(crate) fn sent(&mut self, copy: usize) {
        self.unacknowledged[copy] += 1;
        self.turn = (copy + 1) % self.unacknowledged.len();
    }

    /// Records an acknowledgement. Returns whether the copy had an unacknowledged buffer.
    #[must_use]
    pub(crate) fn acknowledged(&mut self, copy: usize) -> bool {
        let count = &mut self.unacknowledged[copy];
        let had = *count > 0;
        *count = count.saturating_sub(1);
        had
    }

    pub(crate) fn unacknowledged(&self, copy: usize) -> u32 {
        self.unacknowledged[copy]
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use fastrand::Rng;
    use weft_testing::seeds;

    use super::*;

    /// Copies with service times in a simulated time, in which acknowledgements take a while.
    struct World {
        scheduler: Scheduler,
        /// For each copy the time of one buffer.
        service: Vec<u64>,
        delay: u64,
    }

    /// Results of a run: when the last buffer was processed, and the buffers of each copy.
    struct Ran {
        end: u64,
        processed: Vec<u32>,
    }

    impl World {
        fn new(policy: Policy, service: Vec<u64>, window: u32, delay: u64) -> Self {
            let scheduler = Scheduler::new(policy, service.len(), window);
            Self { scheduler, service, delay }
        }

        /// Sends `buffers` as fast as the windows allow. `rng` varies the service times.
        fn run(mut self, buffers: u32, rng: &mut Rng) -> Ran {
            let copies = self.service.len();
            // Acknowledgements on their way, by time; buffers at each copy and when it is free.
            let mut acks = BinaryHeap::new();
            let (mut free, mut processed) = (vec![0; copies], vec![0; copies]);
            let (mut now, mut end) = (0, 0);
            for _ in 0..buffers {
                let copy = loop {
                    while let Some(&Reverse((at, copy))) = acks.peek()
                        && at <= now
                    {
                        acks.pop();
                        assert!(self.scheduler.acknowledged(copy));
                    }
                    if let Some(copy) = self.scheduler.pick() {
                        break copy;
                    }
                    now = acks.peek().expect("a full window has acknowledgements to come").0.0;
                };
                self.scheduler.sent(copy);
                assert!(self.scheduler.unacknowledged(copy) <= self.scheduler.window);
                let start = u64::max(free[copy], now + self.delay);
                free[copy] = start + self.service[copy] * rng.u64(80..=120) / 100;
                end = u64::max(end, free[copy]);
                processed[copy] += 1;
                acks.push(Reverse((start + self.delay, copy)));
            }
            Ran { end, processed }
        }
    }

    #[test]
    fn demand_driven_uses_copies_by_their_speed_and_round_robin_equally() {
        seeds::run(100, |seed| {
            let mut rng = Rng::with_seed(seed);
            let copies = rng.usize(2..8);
            let slowness = rng.u64(3..100);
            let mut service = vec![1_000; copies];
            service[rng.usize(..copies)] *= slowness;
            let (window, buffers) = (rng.u32(2..8), 500);
            let run = |policy, rng: &mut Rng| {
                World::new(policy, service.clone(), window, 20).run(buffers, rng)
            };
            let robin = run(Policy::RoundRobin, &mut rng);
            let demand = run(Policy::Demand, &mut rng);
            for ran in [&robin, &demand] {
                assert_eq!(ran.processed.iter().sum::<u32>(), buffers, "seed {seed}");
            }
            let fewest = robin.processed.iter().min().expect("copies");
            assert!(robin.processed.iter().all(|count| count - fewest <= 1), "seed {seed}");
            // The best schedule shares the work by speed. Demand-driven scheduling loses at most
            // what the slowest copy holds at the end.
            let speed: f64 = service.iter().map(|&time| 1.0 / time as f64).sum();
            let best = f64::from(buffers) / speed;
            let held = ((u64::from(window) + 1) * 1_200 * slowness) as f64;
            let ends =
                format!("{} demand-driven, {} in turn, {best} at best", demand.end, robin.end);
            let is_good = demand.end < robin.end && (demand.end as f64) < best * 1.25 + held;
            (!is_good).then_some(ends)
        });
    }

    #[test]
    fn equal_copies_get_equal_shares_either_way() {
        for policy in [Policy::Demand, Policy::RoundRobin] {
            let ran = World::new(policy, vec![1_000; 3], 4, 10).run(300, &mut Rng::with_seed(1));
            assert!(ran.processed.iter().all(|&count| count.abs_diff(100) <= 8), "{policy:?}");
        }
    }

    #[test]
    fn full_windows_stop_the_producer() {
        let mut scheduler = Scheduler::new(Policy::Demand, 2, 2);
        for expected in [0, 1, 0, 1] {
            assert_eq!(scheduler.pick(), Some(expected));
            scheduler.sent(expected);
        }
        assert_eq!(scheduler.pick(), None);
        assert!(scheduler.acknowledged(1));
        assert_eq!(scheduler.pick(), Some(1));
        assert!(scheduler.acknowledged(1) && !scheduler.acknowledged(1));
        let mut robin = Scheduler::new(Policy::RoundRobin, 2, 1);
        robin.sent(0);
        robin.sent(1);
        assert!(robin.acknowledged(1));
        assert_eq!(robin.pick(), None, "it is the turn of the other copy");
    }
}
