//! A seeded simulation of sessions between sources and sinks. The control channel delays messages;
//! the data channels delay blocks, overtake one another, break and reconnect ([`world`]). Messages
//! and headers are encoded and parsed.
//!
//! `WEFT_SIM_SEED=n` runs one seed, `WEFT_SIM_SEEDS=n` runs `n` seeds from a random one on.

mod growth;
mod path;
mod session;
mod world;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

use world::World;

/// The number of seeds of an ordinary run.
const SEEDS: u64 = 150;
/// The number of runs in which each defect must be found.
const MUTATED_SEEDS: u64 = 400;

/// A defect that the simulation adds to the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The sink answers a request for credits with none.
    GrantDropped,
    /// A request for credits is lost.
    RequestDropped,
    /// A write uses the credit of an earlier one.
    CreditReused,
    /// The sink's program uses blocks in the order of their arrival.
    ReorderSkipped,
    /// Writes on a lost channel count as sent, and nobody reports the loss.
    LostNotResent,
    /// The sink acknowledges a block that has not arrived.
    AcknowledgedEarly,
    /// The sink confirms that a channel is closed before it is.
    FencedEarly,
    /// The source sends a notice before the block is written.
    NoticedEarly,
    /// A block arrives at the sink twice.
    ArrivesTwice,
    /// The source refills a block before it is free.
    FilledEarly,
    /// The sink's program does not release a buffer.
    ReleaseDropped,
    /// The source reports that it is closed during a write.
    ClosedEarly,
}

/// Runs one seed, with or without a defect.
fn run(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut world = World::new(seed, mutation);
    let wrong = world.run().err().map(|wrong| format!("{wrong}\n{}", world.report()));
    Outcome { wrong, mutated: world.is_mutated() }
}

#[test]
fn seeds() {
    seeds::run(SEEDS, |seed| run(seed, None).wrong);
}

/// The simulation finds each defect, by the check that is meant for it.
#[test]
fn every_mutation_is_found() {
    const WAITS: &str = "waits for ever";
    const FAULT: &str = "takes for a fault";
    const CONTENT: &str = "holds";
    const EARLY: &str = "has not arrived";
    let expected = [
        (Mutation::GrantDropped, WAITS),
        (Mutation::RequestDropped, WAITS),
        (Mutation::CreditReused, FAULT),
        (Mutation::ReorderSkipped, "out of order"),
        (Mutation::LostNotResent, WAITS),
        (Mutation::AcknowledgedEarly, EARLY),
        (Mutation::FencedEarly, "another use"),
        (Mutation::NoticedEarly, EARLY),
        (Mutation::ArrivesTwice, FAULT),
        (Mutation::FilledEarly, CONTENT),
        (Mutation::ReleaseDropped, WAITS),
        (Mutation::ClosedEarly, "another use"),
    ];
    for (mutation, reason) in expected {
        mutations::found_in_one(mutation, reason, MUTATED_SEEDS, |seed| run(seed, Some(mutation)));
    }
}

/// A seed's result does not depend on earlier runs.
#[test]
fn a_seed_is_reproducible() {
    for seed in 0..20 {
        let report = || {
            let mut world = World::new(seed, None);
            world.run().map(|()| world.report())
        };
        assert_eq!(report(), report(), "seed {seed}");
    }
}
