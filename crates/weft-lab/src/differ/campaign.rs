//! Runs programs of consecutive seeds, many at a time.
//!
//! A campaign goes in rounds of two parts. In the first part many programs run once both ways,
//! beside each other, because most of what they do is to wait. Those that differ are put aside. In
//! the second part these run again, with no more than one for each processor, and only then is it
//! decided whether they fail. So a machine that many programs keep busy makes no differences.

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
use super::judge::{Class, Failure, Judge, Screened, Suspicion, Verdict};
use super::known::without_known;
use super::shrink::shrink;

/// How long one failing program is made shorter for.
const SHRINK_LIMIT: Duration = Duration::from_secs(60);
/// Programs that are put aside before they are judged: as many as make a round long, so that the
/// wait for its last program is short beside it.
const SUSPECTS: usize = 24;
/// How a failing file is named, at most.
const NAME_LENGTH: usize = 60;

/// What to run, and for how long.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// Programs to run, without a limit by default.
    pub count: Option<u64>,
    /// When to stop.
    pub limit: Duration,
    /// Programs at a time, while they run for the first time.
    pub jobs: usize,
    /// Those that differed, at a time, when they run again.
    pub judges: usize,
    /// Different failures after which to stop.
    pub failures_max: usize,
    /// Whether failing programs are made short.
    pub shrinks: bool,
    /// Where those are written to.
    pub save: Option<PathBuf>,
    /// Words that are taken out of all steps, so that what is known does not hide the rest.
    pub without: Vec<String>,
    /// Whether that is done with all in [`KNOWN`](super::KNOWN).
    pub without_known: bool,
    /// When a step on Weft is a hang.
    pub late: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Summary {
    /// Programs that ran.
    pub programs: u64,
    /// Those of them that were discarded, because they are not deterministic.
    pub discarded: u64,
    /// Those that differ by the order of events alone, if that is left out.
    pub orders: u64,
    /// Failures that looked like one that had been reported.
    pub repeated: u64,
    /// The seeds of all that failed.
    pub seeds: BTreeSet<u64>,
    /// Reports of the others.
    pub failures: Vec<String>,
    /// How long it took.
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

/// A program that differed, to be judged.
struct Suspect {
    seed: u64,
    steps: Vec<String>,
    suspicion: Suspicion,
}

/// What the jobs share.
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

/// Does the same in several threads, until all have ended.
fn in_threads(count: usize, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count.max(1)).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

impl Campaign {
    /// Runs it, and prints each failure when it is found.
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
        let judge = Judge::new(executor, self.late);
        loop {
            in_threads(self.jobs, || self.screen(&judge, &progress))?;
            let were_enough = lock(&progress.suspects).len() >= SUSPECTS;
            in_threads(self.judges, || self.decide(executor, &judge, &progress))?;
            if !were_enough || progress.stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        let elapsed = progress.begin.elapsed();
        let mut summary = mem::take(&mut *progress.summary());
        summary.elapsed = elapsed;
        Ok(summary)
    }

    /// Runs programs once, until enough of them have differed or the campaign is at its end.
    fn screen(&self, judge: &Judge<'_>, progress: &Progress) -> Result<()> {
        while progress.begin.elapsed() < self.limit && lock(&progress.suspects).len() < SUSPECTS {
            let number = progress.next.fetch_add(1, Ordering::Relaxed);
            if self.count.is_some_and(|count| number >= count) {
                break;
            }
            let seed = self.first.wrapping_add(number);
            let steps = self.steps(seed);
            let screened = judge.screen(&steps)?;
            progress.summary().programs += 1;
            match screened {
                Screened::Same => {}
                Screened::Senseless => progress.summary().discarded += 1,
                Screened::Suspect(suspicion) => {
                    lock(&progress.suspects).push(Suspect { seed, steps, suspicion: *suspicion });
                }
            }
        }
        Ok(())
    }

    /// The program of a seed, without what is left out.
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

    /// Judges the programs that differed.
    fn decide(&self, executor: &Executor, judge: &Judge<'_>, progress: &Progress) -> Result<()> {
        while !progress.stopped.load(Ordering::Relaxed) {
            let Some(suspect) = lock(&progress.suspects).pop() else { break };
            let Suspect { seed, steps, suspicion } = suspect;
            match judge.judge_suspect(&steps, suspicion)? {
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
            // What it looks like now; a rare failure may hide.
            let judge = Judge::new(executor, self.late);
            if let Verdict::Different(again) = judge.judge(&short)? {
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
