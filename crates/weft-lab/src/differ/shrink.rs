//! Shrinks a failing program.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::executor::Executor;
use super::oracle::{Class, Failure, Oracle, Verdict};

/// Time after which a step is a hang while a program shrinks. Many candidates hang, so it is short.
const LATE: Duration = Duration::from_millis(300);
/// Attempts to reproduce a failure that does not occur in each run.
const ATTEMPTS_RARE: usize = 8;

/// Removes steps and words of steps while the program still fails in the same way, for at most
/// `limit`. Returns the remaining steps.
///
/// # Errors
///
/// If a program cannot be started.
pub fn shrink(
    executor: &Executor,
    steps: &[String],
    failure: &Failure,
    limit: Duration,
) -> Result<Vec<String>> {
    let mut shrinker = Shrinker {
        oracle: Oracle::hasty(executor, LATE),
        class: failure.class,
        operation: failure.operation(steps).to_owned(),
        attempts: if failure.times == failure.runs { 1 } else { ATTEMPTS_RARE },
        deadline: Instant::now() + limit,
        steps: steps.to_vec(),
    };
    shrinker.remove_steps()?;
    shrinker.remove_words()?;
    shrinker.remove_steps()?;
    Ok(shrinker.steps)
}

/// Whether the shrinker may remove a word. `loose=1` stays: it excludes from the comparison what
/// may differ between runs.
fn is_needless(word: &str) -> bool {
    word.contains('=') && word != "loose=1"
}

struct Shrinker<'executor> {
    oracle: Oracle<'executor>,
    class: Class,
    operation: String,
    attempts: usize,
    deadline: Instant,
    steps: Vec<String>,
}

impl Shrinker<'_> {
    /// Keeps `candidate` if it still fails.
    fn offer(&mut self, candidate: Vec<String>) -> Result<bool> {
        for _ in 0..self.attempts {
            if Instant::now() > self.deadline {
                return Ok(false);
            }
            let repeats = usize::from(self.attempts == 1);
            if let Verdict::Different(failure) =
                self.oracle.compare_repeatedly(&candidate, repeats)?
                && failure.class == self.class
                && failure.operation(&candidate) == self.operation
            {
                self.steps = candidate;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes steps: first halves, last single ones.
    fn remove_steps(&mut self) -> Result<()> {
        let mut size = self.steps.len().div_ceil(2);
        loop {
            let mut removed = false;
            // From the end, because later steps depend on earlier ones.
            let mut end = self.steps.len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let mut candidate = self.steps.clone();
                candidate.drain(start..end);
                if !candidate.is_empty() && self.offer(candidate)? {
                    removed = true;
                }
                end = start.min(self.steps.len());
            }
            if size == 1 && !removed {
                return Ok(());
            }
            if !removed || size > self.steps.len() {
                size = size.div_ceil(2);
            }
            if Instant::now() > self.deadline {
                return Ok(());
            }
        }
    }

    fn remove_words(&mut self) -> Result<()> {
        for index in 0..self.steps.len() {
            let words: Vec<String> =
                self.steps[index].split_whitespace().map(str::to_owned).collect();
            for word in words.iter().filter(|word| is_needless(word)) {
                let left: Vec<&str> =
                    self.steps[index].split_whitespace().filter(|other| other != word).collect();
                let mut candidate = self.steps.clone();
                candidate[index] = left.join(" ");
                self.offer(candidate)?;
            }
        }
        Ok(())
    }
}
