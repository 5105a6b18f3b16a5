//! A seeded simulation of queue pairs: two hosts, some connections, and a network that splits,
//! merges, delays and cuts the streams ([`net`]). Programs on both sides post valid and invalid
//! requests of all kinds ([`work`]); the completions, their order, and the contents of memory are
//! compared with a model ([`oracle`]). Time, network and choices derive from the seed.
//!
//! `WEFT_SIM_SEED=n` runs one seed again, and `WEFT_SIM_SEEDS=n` runs that many, starting from a
//! random one. Run a seed alone (`cargo test -p weft-engine sim::seeds`), because other tests in
//! the process share its reactor.

mod memory;
mod model;
mod net;
mod oracle;
mod setup;
mod work;
mod world;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

use world::{Mutation, World};

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 50;
/// Number of runs in which a defect must have been found.
const MUTATED_SEEDS: u64 = 15;
/// Number of those runs in which the defect must have occurred.
const MUTATED_MIN: usize = 6;

/// Runs one seed, with or without a defect.
fn run(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut world = World::new(seed, mutation);
    let wrong = world.run().err().map(|wrong| format!("{wrong}\n{}", world.report()));
    Outcome { wrong, mutated: world.mutated() }
}

#[test]
fn seeds() {
    seeds::run(SEEDS, |seed| run(seed, None).wrong);
}

/// Checks that the simulation can fail: each defect is found, by the check that is meant for it.
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
        let run = |seed| run(seed, Some(mutation));
        mutations::found_in_most(mutation, reason, MUTATED_SEEDS, MUTATED_MIN, run);
    }
}
