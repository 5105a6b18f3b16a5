//! Whether a simulation finds defects that are put into it on purpose: only then is it of use.

use std::fmt::Debug;

/// What one run with a defect showed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the simulation found to be wrong.
    pub wrong: Option<String>,
    /// Whether the defect came to pass at all.
    pub mutated: bool,
}

/// Runs `seeds` seeds with a defect. Most of those in which it came to pass must find it, and one
/// for the reason that is meant for it.
///
/// # Panics
/// If they do not, or if fewer than `mutated_min` runs had the defect.
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
    assert!(mutated >= mutated_min, "{mutation:?} came to pass in {mutated} runs only");
    assert!(for_that != 0 && found * 2 > mutated, "{mutation:?} was found in {found} runs");
}

/// Runs seeds with a defect until one finds it for the reason that is meant for it.
///
/// # Panics
/// If none of `seeds` seeds does.
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
    fn a_defect_is_found_for_its_reason() {
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
    #[should_panic(expected = "came to pass in 0 runs only")]
    fn a_defect_that_does_not_come_to_pass_is_no_test() {
        found_in_most("defect", "lost", 10, 1, |_| Outcome { wrong: None, mutated: false });
    }
}
