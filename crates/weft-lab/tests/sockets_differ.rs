//! Random programs, and programs that once found a defect, observe the same on the kernel and on
//! Weft.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use weft_lab::differ::{Campaign, Executor, Oracle, Verdict, read_program};
use weft_lab::{ensure_data, source};

/// The seeds of the random part, the same each time. `make differ` tries others.
const FIRST_SEED: u64 = 1_000_000;
const PROGRAMS: u64 = 300;
/// A program runs again if a step that ends on the kernel takes longer than this on Weft.
const LATE: Duration = Duration::from_secs(5);
/// Programs that run at a time for the first time. Their processes mostly wait for each other.
const JOBS: usize = 8;
/// Known programs that run at a time.
const AT_ONCE: usize = 4;
/// Programs that run at a time again because their results differed.
const RECHECKS: usize = 2;

/// A program for each defect that was found, named after the behaviour.
#[test]
fn known_programs_observe_the_same() -> Result<()> {
    let executor = Executor::new(None)?;
    let oracle = Oracle::new(&executor, LATE);
    let paths = programs_in("corpus")?;
    ensure!(!paths.is_empty(), "no programs");
    let next = AtomicUsize::new(0);
    let compare_rest = || -> Result<Vec<String>> {
        let mut failures = Vec::new();
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Verdict::Different(failure) = oracle.compare(&read_program(path)?)? {
                failures.push(format!("{}: {failure}", path.display()));
            }
        }
        Ok(failures)
    };
    let compared: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(compare_rest)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut failures = Vec::new();
    for found in compared {
        failures.extend(found.map_err(|_| anyhow!("a thread panicked"))??);
    }
    // The oracle has looked more than once.
    ensure_data!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Each says why, and the engineer who mends one reads here that it can move to the others.
#[test]
fn programs_that_differ_say_why() -> Result<()> {
    let executor = Executor::new(None)?;
    let oracle = Oracle::hasty(&executor, LATE);
    for path in programs_in("known")? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let reason = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let reason = reason.with_context(|| format!("{} gives no reason", path.display()))?;
        // Once is enough to see whether it is worth a look.
        match oracle.compare_repeatedly(&read_program(&path)?, 0)? {
            Verdict::Different(_) => println!("{} differs: {reason}", path.display()),
            Verdict::Same | Verdict::Nondeterministic => {
                println!("{} did not differ: does it belong to the corpus?", path.display());
            }
        }
    }
    Ok(())
}

#[test]
fn random_programs_observe_the_same() -> Result<()> {
    let campaign = Campaign {
        first: FIRST_SEED,
        count: Some(PROGRAMS),
        limit: None,
        jobs: JOBS,
        rechecks: RECHECKS,
        failures_max: 1,
        shrinks: true,
        save: None,
        without: Vec::new(),
        without_known: true,
        late: LATE,
    };
    let summary = campaign.run(&Executor::new(None)?)?;
    println!("{summary}");
    ensure_data!(summary.failures.is_empty(), "{}\n{summary}", summary.failures.join("\n"));
    ensure!(summary.programs == PROGRAMS, "not all programs: {summary}");
    ensure!(summary.programs > summary.discarded, "no program was deterministic: {summary}");
    Ok(())
}

/// A patch of `mutations/` that no longer applies would show nothing.
#[test]
fn mutations_apply_to_the_product() -> Result<()> {
    let root = source("../..");
    for patch in programs_in("mutations")?
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == "patch"))
    {
        let mut check = Command::new("git");
        check.args(["apply", "--check"]).arg(patch).current_dir(&root);
        let output = check.output().context("git")?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {message}", patch.display());
    }
    Ok(())
}

fn programs_in(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = source("programs/differ").join(folder);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
