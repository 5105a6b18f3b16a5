//! A seeded simulation of queue pairs: two hosts, some connections, and a network that splits,
//! merges, delays and cuts the streams ([`net`]). Programs on both sides post whatever there is to
//! post ([`work`]), right and wrong; what completes, in which order, and what is in memory then is
//! compared with a model ([`oracle`]). Time, network and choices follow from the seed.
//!
//! `WEFT_SIM_SEED=n` runs one seed again and `WEFT_SIM_SEEDS=n` that many, starting from a random
//! one. Run such a seed alone (`cargo test -p weft-engine sim::seeds`): other tests in the process
//! share its reactor.

pub(crate) mod memory;
mod model;
mod net;
mod oracle;
mod setup;
mod work;
mod world;

use std::env;
use std::time::{Duration, Instant};

use world::{Mutation, World};

/// Seeds of an ordinary run, or as many as can be done in [`TIME`].
const SEEDS: u64 = 400;
const TIME: Duration = Duration::from_secs(10);
/// Runs in which a defect must have shown.
const MUTATED_SEEDS: u64 = 30;

fn number_of(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}

/// Runs one seed; returns what is wrong, and whether the defect came to pass.
fn run(seed: u64, mutation: Option<Mutation>) -> (Option<String>, bool) {
    let mut world = World::new(seed, mutation);
    let result = world.run();
    let wrong = result.err().map(|wrong| {
        format!("seed {seed}: {wrong}\n{}replay it by WEFT_SIM_SEED={seed}", world.report())
    });
    (wrong, world.mutated())
}

#[test]
fn seeds() {
    let (seeds, time) = match (number_of("WEFT_SIM_SEED"), number_of("WEFT_SIM_SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, None),
        (None, Some(count)) => {
            let first = u64::from(fastrand::u32(..));
            (first..first + count, None)
        }
        (None, None) => (0..SEEDS, Some(TIME)),
    };
    let start = Instant::now();
    for seed in seeds {
        if time.is_some_and(|time| start.elapsed() > time) {
            eprintln!("the time is up at seed {seed}");
            break;
        }
        if let (Some(wrong), _) = run(seed, None) {
            panic!("{wrong}");
        }
    }
}

/// The simulation is of use only if it can fail: each defect is found, by the check meant for it.
#[test]
fn every_mutation_is_found() {
    let expected = [
        (Mutation::CorruptByte, "is not in place"),
        (Mutation::EarlyAcknowledgement, "is complete, but"),
        (Mutation::WildWrite, "has changed at"),
        (Mutation::DoubleCompletion, "what is not posted"),
        (Mutation::LostCompletion, "never completes"),
    ];
    for (mutation, reason) in expected {
        let runs: Vec<_> = (0..MUTATED_SEEDS).map(|seed| run(seed, Some(mutation))).collect();
        let mutated = runs.iter().filter(|(_, mutated)| *mutated).count();
        let found = runs.iter().filter_map(|(wrong, _)| wrong.as_ref());
        let (found, for_that) = found.fold((0, 0), |(found, for_that), wrong| {
            (found + 1, for_that + usize::from(wrong.contains(reason)))
        });
        eprintln!("{mutation:?}: {mutated} runs, found in {found}, in {for_that} as \"{reason}\"");
        assert!(mutated >= 10, "{mutation:?} came to pass in {mutated} runs only");
        assert!(for_that != 0 && found * 2 > mutated, "{mutation:?} was found in {found} runs");
    }
}
