//! Decides whether a program differs on Weft, or is not deterministic on the kernel either.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::executor::{Executor, Observed};

/// How often a difference is looked at again, on Weft and, twice as often, on the kernel.
const REPEATS: usize = 3;
const KERNEL_RUNS_PER_REPEAT: usize = 2;
/// A hang, a crash or foreign bytes need not show each time, but more than once.
const SEVERE_MIN: usize = 2;
/// Lines that are shown before the first that differs, and from there on.
const LINES_BEFORE: usize = 3;
const LINES_AFTER: usize = 6;

/// What kind of difference it is, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The same events of an epoll instance in each wait, in another order. `epoll_wait(2)`
    /// promises none, and the kernel does not tell when bytes came by TCP.
    Order,
    /// Another result.
    Result,
    /// A step that ends on the kernel does not on Weft.
    Hang,
    /// A process ended.
    Crash,
    /// Bytes that belong elsewhere, or come twice, or out of order.
    Foreign,
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Order => "another order of events",
            Self::Result => "another result",
            Self::Hang => "a hang",
            Self::Crash => "a crash",
            Self::Foreign => "foreign bytes",
        })
    }
}

/// A program that differs.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What kind of difference it is.
    pub class: Class,
    /// In how many of the runs on Weft.
    pub times: usize,
    /// How many these were.
    pub runs: usize,
    /// What was observed on the kernel.
    pub kernel: Observed,
    /// What was observed on Weft.
    pub weft: Observed,
}

/// What became of a program.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The same on both.
    Same,
    /// Different, but it is on the kernel, too, from run to run, or only now and then on Weft.
    Nondeterministic,
    /// A defect.
    Different(Box<Failure>),
}

/// Runs programs both ways and compares.
#[derive(Debug)]
pub struct Judge<'executor> {
    executor: &'executor Executor,
    late: Duration,
}

impl<'executor> Judge<'executor> {
    /// A judge to whom a step is a hang that takes longer than `late`.
    pub fn new(executor: &'executor Executor, late: Duration) -> Self {
        Self { executor, late }
    }

    /// Runs a program, several times if it differs.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn judge(&self, steps: &[String]) -> Result<Verdict> {
        self.judge_repeatedly(steps, REPEATS)
    }

    /// The same with another number of further runs.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn judge_repeatedly(&self, steps: &[String], repeats: usize) -> Result<Verdict> {
        let kernel = self.executor.run_on_kernel(steps)?;
        if kernel.contains("FOREIGN") {
            // A program that mixes up its own bytes says nothing.
            return Ok(Verdict::Nondeterministic);
        }
        let first = self.executor.run_on_weft(steps, &kernel, self.late)?;
        if first == kernel {
            return Ok(Verdict::Same);
        }
        let mut worst = (classify(&kernel, &first), first);
        let (mut times, mut severe) = (1, usize::from(worst.0 > Class::Result));
        for _ in 0..repeats {
            for _ in 0..KERNEL_RUNS_PER_REPEAT {
                if self.executor.run_on_kernel(steps)? != kernel {
                    return Ok(Verdict::Nondeterministic);
                }
            }
            let again = self.executor.run_on_weft(steps, &kernel, self.late)?;
            if again == kernel {
                continue;
            }
            times += 1;
            let class = classify(&kernel, &again);
            severe += usize::from(class > Class::Result);
            if class > worst.0 {
                worst = (class, again);
            }
        }
        if times <= repeats && severe < SEVERE_MIN.min(repeats + 1) {
            return Ok(Verdict::Nondeterministic);
        }
        let (class, weft) = worst;
        let failure = Failure { class, times, runs: repeats + 1, kernel, weft };
        Ok(Verdict::Different(Box::new(failure)))
    }
}

fn classify(kernel: &Observed, weft: &Observed) -> Class {
    let only_here = |what| weft.contains(what) && !kernel.contains(what);
    if only_here("FOREIGN") {
        Class::Foreign
    } else if only_here("DIED") {
        Class::Crash
    } else if only_here("LATE") {
        Class::Hang
    } else if in_any_order(kernel) == in_any_order(weft) {
        Class::Order
    } else {
        Class::Result
    }
}

/// What was observed, with the events of each wait sorted. Those of an epoll instance begin with a
/// number.
fn in_any_order(observed: &Observed) -> Vec<(Vec<&str>, String)> {
    observed.lines.iter().map(|line| sort_events(line)).collect()
}

fn sort_events(line: &str) -> (Vec<&str>, String) {
    let mut parts = line.split('[');
    let mut rest = parts.next().unwrap_or_default().to_owned();
    let mut events = Vec::new();
    for part in parts {
        let (inside, after) = part.split_once(']').unwrap_or((part, ""));
        if inside.starts_with(|letter: char| letter.is_ascii_digit()) {
            events.push(inside);
        } else {
            rest += &format!("[{inside}]");
        }
        rest += after;
    }
    events.sort_unstable();
    (events, rest)
}

impl Failure {
    fn first_difference(&self) -> usize {
        let pairs = self.kernel.lines.iter().zip(&self.weft.lines);
        pairs.take_while(|(kernel, weft)| kernel == weft).count()
    }

    /// The step at which the first difference was seen.
    pub fn step(&self) -> Option<usize> {
        let at = self.first_difference();
        let line = self.kernel.lines.get(at).or_else(|| self.weft.lines.get(at))?;
        let mut numbers = line.trim_start_matches('@').split_whitespace();
        let end = numbers.next()?.parse().ok();
        numbers.next().and_then(|step| step.parse().ok()).or(end)
    }

    /// The operation that differed first.
    pub fn operation<'steps>(&self, steps: &'steps [String]) -> &'steps str {
        let line = self.step().and_then(|step| steps.get(step)).map_or("", String::as_str);
        line.split_whitespace().nth(1).unwrap_or_default()
    }

    /// What tells this failure from others: its class, and the operation that differed.
    pub fn signature(&self, steps: &[String]) -> String {
        let line = self.step().and_then(|step| steps.get(step)).map_or("", String::as_str);
        let words = line.split_whitespace().skip(1);
        let kept: Vec<&str> =
            words.filter(|word| !word.starts_with('v') && !word.starts_with("n=")).collect();
        format!("{}: {}", self.class, kept.join(" "))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} in {} of {} runs", self.class, self.times, self.runs)?;
        let at = self.first_difference();
        for line in &self.kernel.lines[at.saturating_sub(LINES_BEFORE)..at] {
            writeln!(formatter, "   {line}")?;
        }
        for line in self.kernel.lines.iter().skip(at).take(LINES_AFTER) {
            writeln!(formatter, "kernel {line}")?;
        }
        for line in self.weft.lines.iter().skip(at).take(LINES_AFTER) {
            writeln!(formatter, "weft   {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(kernel: &str, weft: &str) -> Class {
        let observed = |line: &str| Observed { lines: vec![line.to_owned()] };
        classify(&observed(kernel), &observed(weft))
    }

    #[test]
    fn another_order_is_told_from_other_events() {
        assert_eq!(class("@9 9 -> [4 in] [0 in] = 2", "@9 9 -> [0 in] [4 in] = 2"), Class::Order);
        assert_eq!(class("@9 9 -> [4 in] [0 in] = 2", "@9 9 -> [0 in] = 1"), Class::Result);
        assert_eq!(class("@9 9 -> [4 in] = 1", "@9 9 -> [4 out] = 1"), Class::Result);
        // Of `poll` the place says which descriptor it is.
        assert_eq!(class("@9 9 -> [] [out] = 1", "@9 9 -> [out] [] = 1"), Class::Result);
    }
}
