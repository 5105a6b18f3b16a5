//! Runs programs of consecutive seeds, many at a time.
//!
//! A campaign consists of rounds of two parts. In the first part many programs run at a time, once
//! on the kernel and once on Weft; programs mostly wait, so the processors can run many at a time.
//! The programs whose results differ are suspects. In the second part the suspects run again, at
//! most one for each processor, and these runs decide whether a program fails. So a difference that
//! only the load of the machine causes is not reported.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::executor::Executor;
use super::generate::generate;
use super::known::without_known;
use super::oracle::{Class, Difference, Failure, Oracle, Screened, Verdict};
use super::shrink::shrink;

/// Time limit for shrinking one failing program.
const SHRINK_LIMIT: Duration = Duration::from_secs(60);
/// Suspects that end the first part of a round. With this many a round lasts long, and the wait for
/// its last program is short in comparison.
const SUSPECTS: usize = 24;
/// Maximum length of a failing program's file name, without the seed.
const NAME_LENGTH: usize = 60;

/// What to run, and for how long.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// Maximum number of programs to run; `None` for no limit.
    pub count: Option<u64>,
    /// How long to run; `None` for no limit.
    pub limit: Option<Duration>,
    /// Programs that run at a time in the first part of a round.
    pub jobs: usize,
    /// Suspects that run at a time in the second part of a round.
    pub rechecks: usize,
    /// Different failures after which to stop.
    pub failures_max: usize,
    /// Whether to shrink failing programs.
    pub shrinks: bool,
    /// The directory to which failing programs are written.
    pub save: Option<PathBuf>,
    /// Words to remove from all steps, so that a known difference does not hide others.
    pub without: Vec<String>,
    /// Whether to replace all words in [`KNOWN`](super::KNOWN).
    pub without_known: bool,
    /// Time after which a step on Weft may hang, if it ended on the kernel: see [`Oracle::new`].
    pub late: Duration,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Summary {
    /// Programs that ran.
    pub programs: u64,
    /// Programs that were discarded because they are not deterministic.
    pub discarded: u64,
    /// Programs that differ only in the order of events, if such differences are not reported.
    pub orders: u64,
    /// Failures with the signature of one that was reported before.
    pub repeated: u64,
    /// The seeds of all failures.
    pub seeds: BTreeSet<u64>,
    /// The reports of the failures with distinct signatures.
    pub failures: Vec<String>,
    /// The campaign's duration.
    pub elapsed: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} programs in {:.0} s, {} discarded as not deterministic, {} failures",
            self.programs,
            self.elapsed.as_secs_f64(),
            self.discarded,
            self.failures.len()
        )?;
        if self.repeated > 0 {
            write!(formatter, " and {} more of the same", self.repeated)?;
        }
        if self.orders > 0 {
            write!(formatter, ", {} by the order of events alone", self.orders)?;
        }
        if !self.seeds.is_empty() {
            write!(formatter, ", of seeds {:?}", self.seeds)?;
        }
        Ok(())
    }
}

/// A program whose results differed in the first part of a round.
struct Suspect {
    seed: u64,
    steps: Vec<String>,
    difference: Difference,
}

/// The state that the threads of a campaign share.
struct Progress {
    begin: Instant,
    next: AtomicU64,
    stopped: AtomicBool,
    summary: Mutex<Summary>,
    seen: Mutex<BTreeSet<String>>,
    suspects: Mutex<Vec<Suspect>>,
}

impl Progress {
    fn summary(&self) -> MutexGuard<'_, Summary> {
        lock(&self.summary)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// Runs `work` in `count` threads and waits until all have ended.
fn in_threads(count: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count.max(1)).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

impl Campaign {
    /// Runs the campaign, and prints each failure when it is found.
    ///
    /// # Errors
    ///
    /// If programs cannot be started.
    pub fn run(&self, executor: &Executor) -> Result<Summary> {
        let progress = Progress {
            begin: Instant::now(),
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            summary: Mutex::default(),
            seen: Mutex::default(),
            suspects: Mutex::default(),
        };
        let oracle = Oracle::new(executor, self.late);
        loop {
            in_threads(self.jobs, || self.screen(&oracle, &progress))?;
            let were_enough = lock(&progress.suspects).len() >= SUSPECTS;
            in_threads(self.rechecks, || self.decide(executor, &oracle, &progress))?;
            if !were_enough || progress.stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        let elapsed = progress.begin.elapsed();
        let mut summary = mem::take(&mut *progress.summary());
        summary.elapsed = elapsed;
        Ok(summary)
    }

    /// Runs programs once on each side, until there are enough suspects or the campaign ends.
    fn screen(&self, oracle: &Oracle<'_>, progress: &Progress) -> Result<()> {
        let is_over = || self.limit.is_some_and(|limit| progress.begin.elapsed() >= limit);
        while !is_over() && lock(&progress.suspects).len() < SUSPECTS {
            let number = progress.next.fetch_add(1, Ordering::Relaxed);
            if self.count.is_some_and(|count| number >= count) {
                break;
            }
            let seed = self.first.wrapping_add(number);
            let steps = self.steps(seed);
            let screened = oracle.screen(&steps)?;
            progress.summary().programs += 1;
            match screened {
                Screened::Same => {}
                Screened::ForeignOnKernel => progress.summary().discarded += 1,
                Screened::Different(difference) => {
                    lock(&progress.suspects).push(Suspect { seed, steps, difference: *difference });
                }
            }
        }
        Ok(())
    }

    /// Generates the program of a seed and removes the words that the campaign excludes.
    fn steps(&self, seed: u64) -> Vec<String> {
        let mut steps = generate(seed);
        for step in &mut steps {
            let kept = step.split(' ').filter(|word| !self.without.iter().any(|out| out == word));
            *step = kept.collect::<Vec<_>>().join(" ");
            if self.without_known {
                *step = without_known(step);
            }
        }
        steps
    }

    /// Runs the suspects again, and reports those that fail.
    fn decide(&self, executor: &Executor, oracle: &Oracle<'_>, progress: &Progress) -> Result<()> {
        while !progress.stopped.load(Ordering::Relaxed) {
            let Some(suspect) = lock(&progress.suspects).pop() else { break };
            let Suspect { seed, steps, difference } = suspect;
            match oracle.recheck(&steps, difference)? {
                Verdict::Same | Verdict::Nondeterministic => progress.summary().discarded += 1,
                Verdict::Different(failure)
                    if self.without_known && failure.class == Class::Order =>
                {
                    progress.summary().orders += 1;
                }
                Verdict::Different(failure) => {
                    progress.summary().seeds.insert(seed);
                    let signature = failure.signature(&steps);
                    let mut seen = lock(&progress.seen);
                    if !seen.insert(signature) {
                        progress.summary().repeated += 1;
                        continue;
                    }
                    if seen.len() >= self.failures_max {
                        progress.stopped.store(true, Ordering::Relaxed);
                    }
                    drop(seen);
                    let report = self.report(executor, seed, steps, *failure)?;
                    println!("{report}");
                    progress.summary().failures.push(report);
                }
            }
        }
        Ok(())
    }

    fn report(
        &self,
        executor: &Executor,
        seed: u64,
        steps: Vec<String>,
        failure: Failure,
    ) -> Result<String> {
        let (mut steps, mut failure) = (steps, failure);
        if self.shrinks {
            let short = shrink(executor, &steps, &failure, SHRINK_LIMIT)?;
            // Compare the shrunk program for its report. A rare failure may not occur this time;
            // the shrunk program then goes with the report of the original one.
            let oracle = Oracle::new(executor, self.late);
            if let Verdict::Different(again) = oracle.compare(&short)? {
                failure = *again;
                steps = short;
            } else if failure.times < failure.runs {
                steps = short;
            }
        }
        let mut report = format!("seed {seed}: {failure}");
        for (number, step) in steps.iter().enumerate() {
            report += &format!("{number:4}  {step}\n");
        }
        let mut without: String =
            self.without.iter().map(|word| format!(" --without {word}")).collect();
        if self.without_known {
            without += " --without-known";
        }
        report += &format!(
            "again: cargo run --release -p weft-lab --bin differ -- --seed {seed}{without}\n"
        );
        if let Some(folder) = &self.save {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            let mut name: String = failure
                .signature(&steps)
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
                .collect();
            name.truncate(NAME_LENGTH);
            let path = folder.join(format!("{name}-{seed}"));
            let comment: String =
                failure.to_string().lines().map(|line| format!("# {line}\n")).collect();
            fs::write(&path, format!("# seed {seed}\n{comment}{}\n", steps.join("\n")))
                .with_context(|| path.display().to_string())?;
        }
        Ok(report)
    }
}
