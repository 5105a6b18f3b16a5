//! Runs a simulation for many seeds. A simulation is deterministic: everything follows from its
//! seed.
//!
//! Without variables a run takes the same seeds each time, from 0 on. `WEFT_SIM_SEEDS=n` runs `n`
//! seeds from a random one on, which is printed first. `WEFT_SIM_SEED=n` repeats the one seed `n`;
//! with both variables, the run starts at that seed.

use std::time::Instant;

use crate::variables::{announce, fresh_seed, number_of};

/// Returns the seed that `WEFT_SIM_SEED` asks to repeat.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn chosen() -> Option<u64> {
    number_of("WEFT_SIM_SEED")
}

/// Runs the seeds one after the other; `count` is their number in an ordinary run. `run` returns a
/// description of the error if there is one.
///
/// # Panics
/// If a seed fails. The message has the description and says how to repeat the seed.
pub fn run(count: u64, run: impl FnMut(u64) -> Option<String>) {
    match (chosen(), number_of("WEFT_SIM_SEEDS")) {
        (Some(seed), count) => take(seed, count.unwrap_or(1), run),
        (None, Some(count)) => {
            let first = fresh_seed();
            // The name of a test's thread is the name of the test.
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("a simulation");
            announce(&format!("{test}: WEFT_SIM_SEED={first} WEFT_SIM_SEEDS={count}"));
            take(first, count, run);
        }
        (None, None) => take(0, count, run),
    }
}

/// Returns the number of cases of a slow property test: `PROPTEST_CASES`, or else `count`.
///
/// # Panics
/// If the variable is not a number.
#[must_use]
pub fn cases(count: u32) -> u32 {
    number_of("PROPTEST_CASES").map_or(count, |count| u32::try_from(count).unwrap_or(u32::MAX))
}

fn take(first: u64, count: u64, mut run: impl FnMut(u64) -> Option<String>) {
    let start = Instant::now();
    for seed in (first..).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        if let Some(wrong) = run(seed) {
            panic!("seed {seed}: {wrong}\nreplay it by WEFT_SIM_SEED={seed}");
        }
    }
    eprintln!("{count} seeds from {first} on, {:?}", start.elapsed());
}

#[cfg(test)]
mod tests {
    use super::take;

    #[test]
    fn seeds_follow_one_another() {
        let mut seeds = Vec::new();
        take(5, 3, |seed| {
            seeds.push(seed);
            None
        });
        assert_eq!(seeds, [5, 6, 7]);
    }

    #[test]
    #[should_panic(expected = "seed 7: broken\nreplay it by WEFT_SIM_SEED=7")]
    fn failure_says_how_to_replay_the_seed() {
        take(5, 10, |seed| (seed == 7).then(|| "broken".into()));
    }
}
