//! Runs a simulation for many seeds. A simulation is deterministic: everything follows from its
//! seed.
//!
//! `WEFT_SIM_SEED=n` repeats the one seed `n`. `WEFT_SIM_SEEDS=n` runs `n` seeds from a random one
//! on. Without these variables, a run takes the same seeds each time, from 0 on.

use std::time::{Duration, Instant};

use crate::variables::number_of;

/// The number of seeds of an ordinary run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// This many seeds run, however long they take.
    pub at_least: u64,
    /// At most this many seeds run.
    pub at_most: u64,
    /// After this time, no seed beyond `at_least` starts.
    pub time: Duration,
}

/// Returns the seed that `WEFT_SIM_SEED` asks to repeat.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn chosen() -> Option<u64> {
    number_of("WEFT_SIM_SEED")
}

/// Runs the seeds one after the other. `run` returns a description of the error if there is one.
///
/// # Panics
/// If a seed fails. The message has the description and says how to repeat the seed.
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
    fn at_least_runs_without_time_and_at_most_with_time() {
        assert_eq!(count(3, 10, Duration::ZERO), 3);
        assert_eq!(count(3, 10, Duration::MAX), 10);
    }

    #[test]
    #[should_panic(expected = "seed 7: broken\nreplay it by WEFT_SIM_SEED=7")]
    fn failure_says_how_to_replay_the_seed() {
        take(5, 10, 10, Duration::MAX, |seed| (seed == 7).then(|| "broken".into()));
    }
}
