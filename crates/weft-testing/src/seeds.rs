//! Runs a simulation for many seeds. All that a simulation does follows from its seed.
//!
//! `WEFT_SIM_SEED=n` runs one seed again and `WEFT_SIM_SEEDS=n` that many, starting from a random
//! one. Without them the seeds are always the same, from 0 on.

use std::time::{Duration, Instant};

use crate::variables::number_of;

/// How many seeds an ordinary run takes.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// So many run, however long they take.
    pub at_least: u64,
    /// So many run if there is time.
    pub at_most: u64,
    /// No seed begins after this time, but for the least.
    pub time: Duration,
}

/// The seed to run again, if there is one.
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn chosen() -> Option<u64> {
    number_of("WEFT_SIM_SEED")
}

/// Runs the seeds one after the other. `run` returns what is wrong, with what led to it.
///
/// # Panics
/// If a seed goes wrong, with what `run` said and how to replay it.
pub fn run(extent: Extent, run: impl FnMut(u64) -> Option<String>) {
    match (chosen(), number_of("WEFT_SIM_SEEDS")) {
        (Some(seed), _) => take(seed, 1, u64::MAX, Duration::MAX, run),
        (None, Some(count)) => {
            take(u64::from(fastrand::u32(..)), count, count, Duration::MAX, run);
        }
        (None, None) => take(0, extent.at_least, extent.at_most, extent.time, run),
    }
}

fn take(
    first: u64,
    at_least: u64,
    at_most: u64,
    time: Duration,
    mut run: impl FnMut(u64) -> Option<String>,
) {
    let start = Instant::now();
    let mut count = 0;
    while count < at_most && (count < at_least || start.elapsed() < time) {
        let seed = first + count;
        if let Some(wrong) = run(seed) {
            panic!("seed {seed}: {wrong}\nreplay it by WEFT_SIM_SEED={seed}");
        }
        count += 1;
    }
    eprintln!("{count} seeds from {first} on, {:?}", start.elapsed());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::take;

    fn count(at_least: u64, at_most: u64, time: Duration) -> u64 {
        let mut seeds = Vec::new();
        take(5, at_least, at_most, time, |seed| {
            seeds.push(seed);
            None
        });
        assert!(seeds.iter().copied().eq(5..5 + seeds.len() as u64));
        seeds.len() as u64
    }

    #[test]
    fn the_least_runs_without_time_and_the_most_with_it() {
        assert_eq!(count(3, 10, Duration::ZERO), 3);
        assert_eq!(count(3, 10, Duration::MAX), 10);
    }

    #[test]
    #[should_panic(expected = "seed 7: broken\nreplay it by WEFT_SIM_SEED=7")]
    fn a_seed_that_goes_wrong_says_how_to_replay_it() {
        take(5, 10, 10, Duration::MAX, |seed| (seed == 7).then(|| "broken".into()));
    }
}
