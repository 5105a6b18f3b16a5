//! A seeded simulation of streams to another host. It has two ends, a wire between them whose
//! operations take time and are lost when it breaks ([`net`]), a TCP connection with delays
//! ([`relay`]), and two programs that make random calls ([`world`]). One thread runs everything;
//! while one end waits, the other program goes on.
//!
//! `WEFT_SIM_SEED=n` repeats one seed, and `WEFT_SIM_SEEDS=n` runs `n` seeds, starting from a
//! random one.

mod net;
mod relay;
mod world;

use std::net::TcpListener;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

use world::World;

/// Number of seeds in an ordinary run.
const SEEDS: u64 = 200;
/// Number of seeds within which a mutation must be found.
const MUTATED_SEEDS: u64 = 200;

/// A defect that the simulation has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// The receiver sees the head before the bytes.
    HeadFirst,
    /// Bytes do not arrive, although the head does.
    LostBytes,
    /// The sender sees a tail beyond what the receiver has taken.
    TailEarly,
    /// Everything posted counts as arrived, so an end that falls back to TCP does not wait for it.
    DoneEarly,
    /// The position at which the stream falls back to TCP is published before all bytes have been
    /// posted.
    BackEarly,
    /// The sleeper is not woken.
    LostWakeup,
    /// A thread that has announced its sleep does not check once more.
    SleepsUnasked,
    /// An end leaves TCP although its peer has not begun.
    BegunEarly,
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// Runs one seed, with a mutation or without one.
fn run(seed: u64, listener: &TcpListener, mutation: Option<Mutation>) -> Outcome {
    let world = World::new(seed, listener, mutation);
    let wrong = world.run().err().map(|wrong| format!("{wrong}\n{}", world.report()));
    Outcome { wrong, mutated: world.mutated() }
}

#[test]
fn seeds() {
    let listener = listener();
    seeds::run(SEEDS, |seed| run(seed, &listener, None).wrong);
}

/// Each mutation is found, by the check that is meant for it. A simulation that cannot fail is
/// useless.
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
        (Mutation::BegunEarly, "for no reason"),
    ];
    let listener = listener();
    for (mutation, reason) in expected {
        let run = |seed| run(seed, &listener, Some(mutation));
        mutations::found_in_one(mutation, reason, MUTATED_SEEDS, run);
    }
}
