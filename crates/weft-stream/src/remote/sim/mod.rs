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

use std::env;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use world::World;

/// Seeds of an ordinary run, or as many as can be done in [`TIME`].
const SEEDS: u64 = 1_000;
const TIME: Duration = Duration::from_secs(2);
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
    /// Where the stream goes back to TCP is told before all bytes have been posted.
    BackEarly,
    /// The doorbell is not rung.
    LostBell,
    /// Who has said that it sleeps does not look once more.
    SleepsUnasked,
}

fn number_of(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// Runs one seed; returns what is wrong, and whether the defect came to pass.
fn run(seed: u64, listener: &TcpListener, mutation: Option<Mutation>) -> (Option<String>, bool) {
    let world = World::new(seed, listener, mutation);
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
    let (start, listener) = (Instant::now(), listener());
    for seed in seeds {
        if time.is_some_and(|time| start.elapsed() > time) {
            eprintln!("the time is up at seed {seed}");
            break;
        }
        if let (Some(wrong), _) = run(seed, &listener, None) {
            panic!("{wrong}");
        }
    }
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
        (Mutation::LostBell, SLEEPS),
        (Mutation::SleepsUnasked, SLEEPS),
    ];
    let listener = listener();
    for (mutation, reason) in expected {
        let mut runs = 0;
        let found = (0..MUTATED_SEEDS).find(|&seed| {
            let (wrong, mutated) = run(seed, &listener, Some(mutation));
            runs += u64::from(mutated);
            wrong.is_some_and(|wrong| wrong.contains(reason))
        });
        eprintln!("{mutation:?}: found at seed {found:?}, after {runs} runs with it");
        assert!(found.is_some(), "{mutation:?} is not found");
    }
}
