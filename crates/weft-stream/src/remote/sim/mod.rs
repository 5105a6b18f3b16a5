//! A seeded simulation of streams to another host: two ends, between them a wire whose operations
//! take their time and may be lost at its end ([`net`]), a TCP connection that is as slow
//! ([`relay`]), and two programs that do whatever there is to do ([`world`]). One thread runs it
//! all; while an end waits, the other program goes on.
//!
//! `WEFT_SIM_SEED=n` runs one seed again and `WEFT_SIM_SEEDS=n` that many, starting from a random
//! one.

mod net;
mod relay;
mod world;

use std::net::TcpListener;
use std::time::Duration;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds::{self, Extent};

use world::World;

/// Seeds of an ordinary run.
const EXTENT: Extent = Extent { at_least: 100, at_most: 1_000, time: Duration::from_secs(2) };
/// Runs in which a defect must have shown.
const MUTATED_SEEDS: u64 = 200;

/// A defect to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The head is seen before the bytes.
    HeadFirst,
    /// Bytes do not arrive, though the head does.
    LostBytes,
    /// The sender hears that bytes have been taken that have not.
    TailEarly,
    /// What was posted counts as arrived: who goes back to TCP does not wait for it.
    DoneEarly,
    /// The position where the stream goes back to TCP is published before all bytes have been
    /// posted.
    BackEarly,
    /// The sleeper is not woken.
    LostWakeup,
    /// A thread that has announced that it sleeps does not look once more.
    SleepsUnasked,
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// Runs one seed with a defect, or without one.
fn run(seed: u64, listener: &TcpListener, mutation: Option<Mutation>) -> Outcome {
    let world = World::new(seed, listener, mutation);
    let wrong = world.run().err().map(|wrong| format!("{wrong}\n{}", world.report()));
    Outcome { wrong, mutated: world.mutated() }
}

#[test]
fn seeds() {
    let listener = listener();
    seeds::run(EXTENT, |seed| run(seed, &listener, None).wrong);
}

/// The simulation is of use only if it can fail: each defect is found, by the check meant for it.
#[test]
fn every_mutation_is_found() {
    const OTHERS: &str = "are others";
    const SLEEPS: &str = "sleeps on";
    let expected = [
        (Mutation::HeadFirst, OTHERS),
        (Mutation::LostBytes, OTHERS),
        (Mutation::TailEarly, OTHERS),
        (Mutation::DoneEarly, OTHERS),
        (Mutation::BackEarly, "for no reason"),
        (Mutation::LostWakeup, SLEEPS),
        (Mutation::SleepsUnasked, SLEEPS),
    ];
    let listener = listener();
    for (mutation, reason) in expected {
        let run = |seed| run(seed, &listener, Some(mutation));
        mutations::found_in_one(mutation, reason, MUTATED_SEEDS, run);
    }
}
