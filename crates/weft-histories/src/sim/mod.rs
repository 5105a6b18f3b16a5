//! A server without sockets, with a log, and clients whose connections break. Everything follows
//! from a seed.
//!
//! `WEFT_SIM_SEED=n` runs one seed, `WEFT_SIM_SEEDS=n` runs `n` seeds from a random one on.
//!
//! # Layers
//!
//! ```text
//! world
//! disk server
//! ```

mod disk;
mod server;
mod world;

use weft_testing::seeds;

use crate::search::Verdict;

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 30;

#[test]
fn what_clients_saw_has_one_order() {
    let (mut calls, mut runs, mut undecided) = (0, 0, 0);
    seeds::run(SEEDS, |seed| {
        runs += 1;
        let (seen, histories) = match world::run(seed) {
            Ok((histories, crashes)) => (crate::check(&histories, &crashes), histories),
            Err(wrong) => return Some(wrong),
        };
        calls += histories.iter().map(|client| client.calls.len()).sum::<usize>();
        match seen {
            Verdict::Consistent => None,
            Verdict::Inconsistent(account) => Some(format!("no order explains this:\n{account}")),
            // A few histories have more orders than a search looks at.
            Verdict::Undecided => {
                undecided += 1;
                None
            }
        }
    });
    assert!(calls != 0);
    assert!(undecided <= runs / 100, "{undecided} of {runs} searches have given up");
}
