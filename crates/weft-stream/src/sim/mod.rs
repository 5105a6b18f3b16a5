//! A seeded simulation of many processes that connect, send, receive, fork, execute and start
//! programs, pass sockets on, close them and are killed, on one host with a simulated kernel
//! ([`host`]).
//!
//! Each process has its own view of the registry and its own descriptor table ([`process`]); what
//! it decides, and how bytes move, is the product's code. Each thread has a stack ([`fibers`]). At
//! each system call, and at each lock, a thread may be paused or its process killed ([`world`]).
//!
//! The model ([`model`]) checks the results. The holders of the receiving end get the bytes of each
//! direction once and in order; EOF is never reported before all bytes, nor a reset without a
//! reason; no thread sleeps while there is something for it; no slot is free while a process holds
//! it, and all slots are free when all processes have gone.
//!
//! `WEFT_SIM_SEED=n` repeats one seed, and `WEFT_SIM_SEEDS=n` runs `n` seeds, starting from a
//! random one.

mod fibers;
mod host;
mod model;
mod process;
mod program;
mod world;

use weft_testing::mutations::{self, Outcome};
use weft_testing::seeds;

/// Number of seeds in an ordinary run.
const SEEDS: u64 = 1_000;
/// Number of seeds within which a mutation must be found.
const MUTATED_SEEDS: u64 = 20_000;

/// A defect that the simulation has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// A wakeup is not sent.
    LostWakeup,
    /// The library does not notice a copy of a descriptor, also in a child of `vfork`.
    DupForgotten,
    /// A child of `fork` is not counted.
    ChildUncounted,
    /// A connection falls back to TCP only after the program that gets it has been started.
    LeavesLate,
    /// A program is started while another thread closes or copies a descriptor.
    StartBesideClose,
}

/// Runs one seed. Returns what went wrong, if anything.
fn run(seed: u64, mutation: Option<Mutation>) -> Option<String> {
    world::run(seed, mutation, false).wrong
}

/// What led to a failure.
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
    seeds::run(SEEDS, |seed| run(seed, None).map(|_| report(seed, None)));
}

/// Each mutation is found. A simulation that cannot fail is useless.
#[test]
fn every_mutation_is_found() {
    // With the seed that the search begins at. Some defects show in one of thousands of schedules.
    let all = [
        (Mutation::LostWakeup, 0),
        (Mutation::DupForgotten, 0),
        (Mutation::ChildUncounted, 0),
        (Mutation::LeavesLate, 6_000),
    ];
    for (mutation, first) in all {
        mutations::found_in_one(mutation, "", MUTATED_SEEDS, |seed| Outcome {
            wrong: run(first + seed, Some(mutation)),
            mutated: true,
        });
    }
}

/// Finds a defect that shows in only one of a million schedules.
#[test]
fn close_during_the_start_of_a_program_is_found() {
    const SEED: u64 = 3_623_105;
    assert!(run(SEED, None).is_none(), "{}", report(SEED, None));
    let wrong = run(SEED, Some(Mutation::StartBesideClose));
    assert!(wrong.is_some(), "schedules have changed: another seed has to be looked for");
}

/// What a seed does must not depend on earlier runs.
#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..50 {
        let first = world::run(seed, None, true).notes;
        for (line, again) in world::run(seed, None, true).notes.into_iter().zip(&first) {
            assert_eq!(line, *again, "seed {seed}");
        }
    }
}
