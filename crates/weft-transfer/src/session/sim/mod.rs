//! A seeded simulation of sessions: sources and sinks, between them a control channel that delays
//! and data channels that delay, overtake one another, break and come back ([`world`]). Messages
//! and headers pass as bytes.
//!
//! `WEFT_SIM_SEED=n` runs one seed again and `WEFT_SIM_SEEDS=n` that many, starting from a random
//! one.

mod growth;
mod path;
mod session;
mod world;

use std::time::Duration;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds::{self, Extent};

use world::World;

/// Seeds of an ordinary run.
const EXTENT: Extent = Extent { at_least: 300, at_most: 5_000, time: Duration::from_secs(3) };
/// Runs in which a defect must have shown.
const MUTATED_SEEDS: u64 = 400;

/// A defect to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The answer to a request for credits has none.
    GrantDropped,
    /// A request for credits does not arrive.
    RequestDropped,
    /// A write uses the credit of an earlier one.
    CreditReused,
    /// Blocks are used in the order of their arrival.
    ReorderSkipped,
    /// What was under way on a lost channel counts as written, and nobody hears of the loss.
    LostNotResent,
    /// A block is acknowledged that has not arrived.
    AcknowledgedEarly,
    /// The sink says that a channel is closed before it has closed it.
    FencedEarly,
    /// A notice is sent before the block is placed.
    NoticedEarly,
    /// A block is given to the sink twice.
    ArrivesTwice,
    /// The source fills a block again before it is free.
    FilledEarly,
    /// A buffer is not released.
    ReleaseDropped,
    /// The source says that it is closed while a write is under way.
    ClosedEarly,
}

/// Runs one seed with a defect, or without one.
fn run(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let mut world = World::new(seed, mutation);
    let wrong = world.run().err().map(|wrong| format!("{wrong}\n{}", world.report()));
    Outcome { wrong, mutated: world.is_mutated() }
}

#[test]
fn seeds() {
    seeds::run(EXTENT, |seed| run(seed, None).wrong);
}

/// The simulation is of use only if it can fail: each defect is found, by the check meant for it.
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

/// What a seed does does not depend on what has run before.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..20 {
        let report = || {
            let mut world = World::new(seed, None);
            world.run().map(|()| world.report())
        };
        assert_eq!(report(), report(), "seed {seed}");
    }
}
