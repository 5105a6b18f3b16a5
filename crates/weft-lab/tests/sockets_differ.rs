//! Random programs observe the same on the kernel and on Weft, and so do those that once did not.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::differ::{Campaign, Executor, Judge, Verdict, read_program};
use weft_lab::source;

/// Both bound the random part, so that a slow machine runs fewer programs and a fast one ends.
const LIMIT: Duration = Duration::from_secs(60);
const PROGRAMS_MAX: u64 = 10_000;
/// A step that takes longer on Weft, and none on the kernel, is a hang. A busy machine's threads
/// wait less long than that for a core.
const LATE: Duration = Duration::from_secs(5);
/// Programs at a time: most of what they do is to wait for each other.
const JOBS: usize = 2;

/// A program for each defect that was found, named after the behaviour.
#[test]
fn known_programs_observe_the_same() -> Result<()> {
    let executor = Executor::new(None)?;
    let judge = Judge::new(&executor, LATE);
    let mut failures = Vec::new();
    let folder = source("programs/differ/corpus");
    let mut paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    ensure!(!paths.is_empty(), "no programs");
    for path in paths {
        let steps = read_program(&path)?;
        if let Verdict::Different(failure) = judge.judge(&steps)? {
            let name = path.file_name().context("a file without a name")?;
            failures.push(format!("{}: {failure}", name.display()));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[test]
fn random_programs_observe_the_same() -> Result<()> {
    let campaign = Campaign {
        first: fastrand::u64(..1 << 48),
        count: Some(PROGRAMS_MAX),
        limit: LIMIT,
        jobs: JOBS,
        failures_max: 1,
        shrinks: true,
        save: None,
        without: Vec::new(),
        late: LATE,
    };
    let summary = campaign.run(&Executor::new(None)?)?;
    println!("{summary}");
    ensure!(summary.failures.is_empty(), "{}\n{summary}", summary.failures.join("\n"));
    ensure!(summary.programs > summary.discarded, "no program was deterministic: {summary}");
    Ok(())
}
