//! A seeded simulation of many processes that connect, send, receive, fork, become other programs,
//! start some, pass sockets on, close them and are killed, in the kernel of one host that is
//! simulated, too ([`host`]). Each process has a view of the registry and a descriptor table of its
//! own ([`process`]); what they decide, and how bytes move, is the product's. Each thread has a
//! stack ([`fibers`]). At each system call, and at each lock that is taken, a thread may pause for
//! others, or its process be killed ([`world`]). What must come of it the model says ([`model`]):
//! of each direction the bytes that were sent, once and in their order, to those who hold the other
//! end; no end before them, and no reset without a reason; nobody sleeps for whom there is
//! something; no slot is free that somebody holds, and all are when everybody has gone.
//!
//! `WEFT_SIM_SEED=n` runs one seed again and `WEFT_SIM_SEEDS=n` that many, starting from a random
//! one.

mod fibers;
mod host;
mod model;
mod process;
mod program;
mod world;

use std::time::Duration;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds::{self, Extent};

/// Seeds of an ordinary run.
const EXTENT: Extent = Extent { at_least: 500, at_most: 20_000, time: Duration::from_secs(3) };
/// Runs in which a defect must have shown.
const MUTATED_SEEDS: u64 = 20_000;

/// A defect to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// A wakeup is not sent.
    LostWakeup,
    /// The library forgets a copy of a descriptor, also for a child of `vfork`.
    DupForgotten,
    /// Nobody counts a child of `fork`.
    ChildUncounted,
    /// A connection goes to TCP after the program has been started that gets it.
    LeavesLate,
    /// A program is started while another thread closes or copies a descriptor.
    StartBesideClose,
}

/// Runs one seed; returns what is wrong.
fn run(seed: u64, mutation: Option<Mutation>) -> Option<String> {
    world::run(seed, mutation, false).wrong
}

/// What led to it.
fn report(seed: u64, mutation: Option<Mutation>) -> String {
    let outcome = world::run(seed, mutation, true);
    let notes: Vec<_> = outcome.notes.into_iter().collect();
    let wrong = outcome.wrong.unwrap_or_else(|| "not found again".to_owned());
    format!("{wrong}\n{}\n{wrong}", notes.join("\n"))
}

#[test]
fn seeds() {
    if let Some(seed) = seeds::chosen() {
        eprintln!("{}", report(seed, None));
    }
    seeds::run(EXTENT, |seed| run(seed, None).map(|_| report(seed, None)));
}

/// The simulation is of use only if it can fail: each defect is found.
#[test]
fn every_mutation_is_found() {
    let all = [
        Mutation::LostWakeup,
        Mutation::DupForgotten,
        Mutation::ChildUncounted,
        Mutation::LeavesLate,
    ];
    for mutation in all {
        mutations::found_in_one(mutation, "", MUTATED_SEEDS, |seed| Outcome {
            wrong: run(seed, Some(mutation)),
            mutated: true,
        });
    }
}

/// The same for a defect that one of a million schedules shows.
#[test]
fn a_close_beside_the_start_of_a_program_is_found() {
    const SEED: u64 = 3_623_105;
    assert!(run(SEED, None).is_none(), "{}", report(SEED, None));
    let wrong = run(SEED, Some(Mutation::StartBesideClose));
    assert!(wrong.is_some(), "schedules have changed: another seed has to be looked for");
}

/// What a seed does does not depend on what has run before.
#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..50 {
        let first = world::run(seed, None, true).notes;
        for (line, again) in world::run(seed, None, true).notes.into_iter().zip(&first) {
            assert_eq!(line, *again, "seed {seed}");
        }
    }
}
