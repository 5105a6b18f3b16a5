//! Checks that a simulation finds defects that a test puts into it on purpose. A simulation that
//! misses them is of no use.

use std::fmt::Debug;

/// The result of one run with a defect.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the simulation found to be wrong.
    pub wrong: Option<String>,
    /// Whether the run reached the defect.
    pub mutated: bool,
}

/// Runs `seeds` seeds with a defect. Most of the runs that reach the defect must find it, and at
/// least one for the expected `reason`.
///
/// # Panics
/// If they do not, or if fewer than `mutated_min` runs reach the defect.
pub fn found_in_most<M: Debug + Copy>(
    mutation: M,
    reason: &str,
    seeds: u64,
    mutated_min: usize,
    run: impl FnMut(u64) -> Outcome,
) {
    let outcomes: Vec<Outcome> = (0..seeds).map(run).collect();
    let mutated = outcomes.iter().filter(|outcome| outcome.mutated).count();
    let reasons = || outcomes.iter().filter_map(|outcome| outcome.wrong.as_ref());
    let found = reasons().count();
    let for_that = reasons().filter(|wrong| wrong.contains(reason)).count();
    eprintln!("{mutation:?}: {mutated} runs, found in {found}, in {for_that} as \"{reason}\"");
    assert!(mutated >= mutated_min, "{mutation:?} was reached in {mutated} runs only");
    assert!(for_that != 0 && found * 2 > mutated, "{mutation:?} was found in {found} runs");
}

/// Runs seeds with a defect until one finds it for the expected `reason`.
///
/// # Panics
/// If none of `seeds` seeds finds it.
pub fn found_in_one<M: Debug + Copy>(
    mutation: M,
    reason: &str,
    seeds: u64,
    mut run: impl FnMut(u64) -> Outcome,
) {
    let mut runs = 0;
    let found = (0..seeds).find(|&seed| {
        let Outcome { wrong, mutated } = run(seed);
        runs += u64::from(mutated);
        wrong.is_some_and(|wrong| wrong.contains(reason))
    });
    eprintln!("{mutation:?}: found at seed {found:?}, after {runs} runs with it");
    assert!(found.is_some(), "{mutation:?} is not found");
}

#[cfg(test)]
mod tests {
    use super::{Outcome, found_in_most, found_in_one};

    fn outcome(wrong: Option<&str>) -> Outcome {
        Outcome { wrong: wrong.map(str::to_owned), mutated: true }
    }

    #[test]
    fn defect_is_found_for_the_expected_reason() {
        found_in_most("defect", "lost", 10, 10, |seed| outcome((seed > 3).then_some("is lost")));
        found_in_one("defect", "lost", 10, |seed| outcome((seed == 9).then_some("is lost")));
    }

    #[test]
    #[should_panic(expected = "is not found")]
    fn mutation_found_for_another_reason_does_not_count() {
        found_in_one("defect", "lost", 10, |_| outcome(Some("is late")));
    }

    #[test]
    #[should_panic(expected = "was found in 5 runs")]
    fn mutation_found_in_half_of_the_runs_fails() {
        found_in_most("defect", "lost", 10, 10, |seed| outcome((seed < 5).then_some("is lost")));
    }

    #[test]
    #[should_panic(expected = "was reached in 0 runs only")]
    fn defect_that_no_run_reaches_fails() {
        found_in_most("defect", "lost", 10, 1, |_| Outcome { wrong: None, mutated: false });
    }
}
