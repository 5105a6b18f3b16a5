//! Decides whether a program's results on Weft differ from those on the kernel, or the program is
//! not deterministic.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::executor::{Executor, Observed};

/// Further runs of a program that differed: this many on Weft, and `KERNEL_RUNS_PER_REPEAT` times
/// as many on the kernel.
const REPEATS: usize = 3;
const KERNEL_RUNS_PER_REPEAT: usize = 2;
/// A hang, a crash or foreign bytes are a failure if they occur in this many runs.
const SEVERE_MIN: usize = 2;
/// A step that ended on the kernel and takes longer than this on Weft hangs.
const HANG: Duration = Duration::from_secs(60);
/// A list of events with room for more than any `wait` reports.
const LONG_LIST: &str = "max=32";
/// Lines that a report shows before the first difference, and from the first difference on.
const LINES_BEFORE: usize = 3;
const LINES_AFTER: usize = 6;

/// The kind of a difference, the most severe last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Each wait reports the same events in another order, or other events if its list is too short
    /// for all. `epoll_wait(2)` promises no order, only that successive waits go round all
    /// descriptors, and the kernel does not report when bytes arrived by TCP.
    Order,
    /// Another result.
    Result,
    /// A step that ends on the kernel does not end on Weft.
    Hang,
    /// A process ended.
    Crash,
    /// Bytes of another connection, repeated bytes or bytes out of order were received.
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
    /// In how many of the runs on Weft the difference occurred.
    pub times: usize,
    /// The number of runs on Weft.
    pub runs: usize,
    /// The observations on the kernel.
    pub kernel: Observed,
    /// The observations on Weft.
    pub weft: Observed,
}

/// The result of judging a program.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The same on both.
    Same,
    /// The kernel's runs differ from one another, or only some of Weft's runs differ from them.
    Nondeterministic,
    /// Weft's results differ: a defect.
    Different(Box<Failure>),
}

/// The result of one run on the kernel and one on Weft.
#[derive(Debug)]
pub(super) enum Screened {
    /// The same on both.
    Same,
    /// The program receives foreign bytes on the kernel, so its results mean nothing.
    ForeignOnKernel,
    /// The results differ, perhaps by chance.
    Different(Box<Difference>),
}

/// The observations of two runs that differ.
#[derive(Debug)]
pub(super) struct Difference {
    kernel: Observed,
    weft: Observed,
}

/// Runs programs on the kernel and on Weft, and compares their observations.
#[derive(Debug)]
pub struct Oracle<'executor> {
    executor: &'executor Executor,
    late: Duration,
    hang: Duration,
}

impl<'executor> Oracle<'executor> {
    /// Creates an oracle that runs a program again if a step on Weft takes longer than `late`. Only
    /// a step that then takes a minute is a hang, because a busy machine may delay any thread.
    pub fn new(executor: &'executor Executor, late: Duration) -> Self {
        Self { executor, late, hang: late.max(HANG) }
    }

    /// Creates an oracle that considers a step on Weft that takes longer than `late` a hang.
    pub fn hasty(executor: &'executor Executor, late: Duration) -> Self {
        Self { executor, late, hang: late }
    }

    /// Runs a program, several times if it differs.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn compare(&self, steps: &[String]) -> Result<Verdict> {
        self.compare_repeatedly(steps, REPEATS)
    }

    /// Runs a program, and if it differs, runs it `repeats` more times on Weft.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn compare_repeatedly(&self, steps: &[String], repeats: usize) -> Result<Verdict> {
        match self.screen(steps)? {
            Screened::Same => Ok(Verdict::Same),
            Screened::ForeignOnKernel => Ok(Verdict::Nondeterministic),
            Screened::Different(difference) => self.run_again(steps, *difference, repeats),
        }
    }

    /// Runs a program once on the kernel and once on Weft.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn screen(&self, steps: &[String]) -> Result<Screened> {
        let kernel = self.executor.run_on_kernel(steps)?;
        if kernel.contains("FOREIGN") {
            return Ok(Screened::ForeignOnKernel);
        }
        let weft = self.executor.run_on_weft(steps, &kernel, self.late)?;
        Ok(if weft == kernel {
            Screened::Same
        } else {
            Screened::Different(Box::new(Difference { kernel, weft }))
        })
    }

    /// Decides about a program that differed once while many others ran. That run counts as the
    /// first one, unless the kernel's results differ now; then the program is compared anew.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub(super) fn recheck(&self, steps: &[String], difference: Difference) -> Result<Verdict> {
        if self.executor.run_on_kernel(steps)? != difference.kernel {
            return self.compare(steps);
        }
        self.run_again(steps, difference, REPEATS)
    }

    /// Runs a program that differed once again, and decides whether it fails.
    fn run_again(&self, steps: &[String], first: Difference, repeats: usize) -> Result<Verdict> {
        let Difference { kernel, weft: first } = first;
        let class = classify(&kernel, &first);
        // A step that was late once need not hang.
        let counts = class != Class::Hang || self.late >= self.hang;
        let mut worst = (if counts { class } else { Class::Order }, first);
        let (mut times, mut severe) = (usize::from(counts), usize::from(worst.0 > Class::Result));
        for _ in 0..repeats {
            for _ in 0..KERNEL_RUNS_PER_REPEAT {
                if self.executor.run_on_kernel(steps)? != kernel {
                    return Ok(Verdict::Nondeterministic);
                }
            }
            let again = self.executor.run_on_weft(steps, &kernel, self.hang)?;
            if again == kernel {
                continue;
            }
            times += 1;
            let class = classify(&kernel, &again);
            severe += usize::from(class > Class::Result);
            if class >= worst.0 {
                worst = (class, again);
            }
        }
        let runs = repeats + usize::from(counts);
        if times < runs && severe < SEVERE_MIN.min(runs) {
            return Ok(Verdict::Nondeterministic);
        }
        let (class, weft) = worst;
        let mut failure = Failure { class, times, runs, kernel, weft };
        if class == Class::Result && self.is_of_short_lists(steps, &failure)? {
            failure.class = Class::Order;
        }
        Ok(Verdict::Different(Box::new(failure)))
    }

    /// Whether a program differs only in which events a wait with a too short list has reported:
    /// the first difference besides the order is in a full list, and with longer lists there is no
    /// difference.
    fn is_of_short_lists(&self, steps: &[String], failure: &Failure) -> Result<bool> {
        let pairs = failure.kernel.lines.iter().zip(&failure.weft.lines);
        let first =
            pairs.into_iter().find(|(kernel, weft)| sort_events(kernel) != sort_events(weft));
        let is_full = first.is_some_and(|(kernel, weft)| {
            let max = step_of(kernel).and_then(|step| max_of(steps.get(step)?));
            max.is_some() && events_reported(kernel) == max && events_reported(weft) == max
        });
        if !is_full {
            return Ok(false);
        }
        let longer: Vec<String> = steps.iter().map(|step| with_long_list(step)).collect();
        let kernel = self.executor.run_on_kernel(&longer)?;
        let weft = self.executor.run_on_weft(&longer, &kernel, self.late)?;
        Ok(kernel == weft || classify(&kernel, &weft) == Class::Order)
    }
}

/// Returns the number of the step that an observed line belongs to.
fn step_of(line: &str) -> Option<usize> {
    let mut numbers = line.trim_start_matches('@').split_whitespace();
    let end = numbers.next()?.parse().ok();
    numbers.next().and_then(|step| step.parse().ok()).or(end)
}

/// Returns how many events a wait has reported.
fn events_reported(line: &str) -> Option<usize> {
    line.rsplit_once("= ")?.1.parse().ok()
}

/// Returns the `max=` of a step: how many events its list has room for.
fn max_of(step: &str) -> Option<usize> {
    step.split(' ').find_map(|word| word.strip_prefix("max="))?.parse().ok()
}

fn with_long_list(step: &str) -> String {
    let longer = |word| if str::starts_with(word, "max=") { LONG_LIST } else { word };
    step.split(' ').map(longer).collect::<Vec<_>>().join(" ")
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

/// Returns the observations with the events of each wait sorted. Events of an epoll instance begin
/// with a number.
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

    /// The step with the first difference.
    pub fn step(&self) -> Option<usize> {
        let at = self.first_difference();
        let line = self.kernel.lines.get(at).or_else(|| self.weft.lines.get(at))?;
        step_of(line)
    }

    /// The operation of the step with the first difference.
    pub fn operation<'steps>(&self, steps: &'steps [String]) -> &'steps str {
        let line = self.step().and_then(|step| steps.get(step)).map_or("", String::as_str);
        line.split_whitespace().nth(1).unwrap_or_default()
    }

    /// A text that distinguishes this failure from others: its class, and the step that differed
    /// without its variables and lengths.
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
    fn another_order_of_events_differs_from_other_events() {
        assert_eq!(class("@9 9 -> [4 in] [0 in] = 2", "@9 9 -> [0 in] [4 in] = 2"), Class::Order);
        assert_eq!(class("@9 9 -> [4 in] [0 in] = 2", "@9 9 -> [0 in] = 1"), Class::Result);
        assert_eq!(class("@9 9 -> [4 in] = 1", "@9 9 -> [4 out] = 1"), Class::Result);
        // In the output of `poll`, the position identifies the descriptor.
        assert_eq!(class("@9 9 -> [] [out] = 1", "@9 9 -> [out] [] = 1"), Class::Result);
    }

    #[test]
    fn words_and_numbers_of_waits_are_parsed() {
        assert_eq!(with_long_list("0 wait v2 max=2 timeout=5"), "0 wait v2 max=32 timeout=5");
        assert_eq!(with_long_list("0 wait v2"), "0 wait v2");
        assert_eq!(max_of("0 wait v2 max=2 timeout=5"), Some(2));
        assert_eq!(events_reported("@9 9 -> [4 in] [0 in] = 2"), Some(2));
        assert_eq!(step_of("@9 8 -> [4 in] = 1"), Some(8));
    }
}
