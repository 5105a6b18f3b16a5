//! Runs programs of consecutive seeds, several at a time.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::executor::Executor;
use super::generate::generate;
use super::judge::{Class, Failure, Judge, Verdict};
use super::known::without_known;
use super::shrink::shrink;

/// How long one failing program is made shorter for.
const SHRINK_LIMIT: Duration = Duration::from_secs(60);
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
    /// Programs at a time.
    pub jobs: usize,
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

/// What the jobs share.
struct Progress {
    next: AtomicU64,
    stopped: AtomicBool,
    summary: Mutex<Summary>,
    seen: Mutex<BTreeSet<String>>,
}

impl Campaign {
    /// Runs it, and prints each failure when it is found.
    ///
    /// # Errors
    ///
    /// If programs cannot be started.
    pub fn run(&self, executor: &Executor) -> Result<Summary> {
        let begin = Instant::now();
        let progress = Progress {
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            summary: Mutex::default(),
            seen: Mutex::default(),
        };
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs.max(1))
                .map(|_| scope.spawn(|| self.work(executor, &progress, begin)))
                .collect();
            jobs.into_iter().try_for_each(|job| {
                job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let mut summary = progress.summary.into_inner().unwrap_or_default();
        summary.elapsed = begin.elapsed();
        Ok(summary)
    }

    fn work(&self, executor: &Executor, progress: &Progress, begin: Instant) -> Result<()> {
        let judge = Judge::new(executor, self.late);
        while !progress.stopped.load(Ordering::Relaxed) && begin.elapsed() < self.limit {
            let number = progress.next.fetch_add(1, Ordering::Relaxed);
            if self.count.is_some_and(|count| number >= count) {
                break;
            }
            let seed = self.first.wrapping_add(number);
            let mut steps = generate(seed);
            for step in &mut steps {
                let kept =
                    step.split(' ').filter(|word| !self.without.iter().any(|out| out == word));
                *step = kept.collect::<Vec<_>>().join(" ");
                if self.without_known {
                    *step = without_known(step);
                }
            }
            let verdict = judge.judge(&steps)?;
            let lock = || progress.summary.lock().unwrap_or_else(|broken| broken.into_inner());
            lock().programs += 1;
            match verdict {
                Verdict::Same => {}
                Verdict::Nondeterministic => lock().discarded += 1,
                Verdict::Different(failure)
                    if self.without_known && failure.class == Class::Order =>
                {
                    lock().orders += 1;
                }
                Verdict::Different(failure) => {
                    lock().seeds.insert(seed);
                    let signature = failure.signature(&steps);
                    let mut seen =
                        progress.seen.lock().unwrap_or_else(|broken| broken.into_inner());
                    if !seen.insert(signature) {
                        lock().repeated += 1;
                        continue;
                    }
                    if seen.len() >= self.failures_max {
                        progress.stopped.store(true, Ordering::Relaxed);
                    }
                    drop(seen);
                    let report = self.report(executor, seed, steps, *failure)?;
                    println!("{report}");
                    lock().failures.push(report);
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
