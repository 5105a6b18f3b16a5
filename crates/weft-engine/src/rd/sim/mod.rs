//! A seeded simulation of reliable datagrams: endpoints ([`host`]), a network that loses, repeats,
//! reorders, delays and cuts ([`net`]), programs that post all kinds of requests ([`world`]), and a
//! model of the expected results ([`oracle`]). Everything derives from the seed.
//!
//! `WEFT_SIM_SEED=n` runs one seed again, and `WEFT_SIM_SEEDS=n` runs that many, starting from a
//! random one.

mod connected;
mod gone;
mod host;
mod hostile;
mod net;
mod oracle;
mod paths;
mod setup;
mod strangers;
mod world;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

use world::{Mutation, World};

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 50;
/// Number of runs in which a defect must have been found.
const MUTATED_SEEDS: u64 = 12;
/// Number of those runs in which the defect must have occurred.
const MUTATED_MIN: usize = 2;

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
        (Mutation::CorruptPayload, "is not what was sent"),
        (Mutation::ForgedAcknowledgement, "come to rest"),
        (Mutation::RepeatedMessage, "comes again"),
        (Mutation::RepeatedAtomic, "carried out twice"),
        (Mutation::WrongOldValue, "is not the value before"),
        (Mutation::ForgottenPeer, "comes again"),
        (Mutation::WildWrite, "has changed at"),
        (Mutation::OldWrite, "is not in place"),
        (Mutation::DoubleCompletion, "what is not open"),
        (Mutation::LostCompletion, "never completes"),
    ];
    for (mutation, reason) in expected {
        let run = |seed| run(seed, Some(mutation));
        mutations::found_in_most(mutation, reason, MUTATED_SEEDS, MUTATED_MIN, run);
    }
}
