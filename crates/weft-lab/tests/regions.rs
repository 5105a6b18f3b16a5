//! Random programs that register memory, compared with a model of hardware.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::{Finished, Program, compile, note_skip, ports};

const TIMEOUT: Duration = Duration::from_secs(120);
const STEPS: &str = "2000";
/// Number of programs in a run, unless `WEFT_LAB_REGIONS` sets another one.
const PROGRAMS: u64 = 16;

fn run(seed: u64, change: impl Fn(Program) -> Program) -> Result<Finished> {
    let words = ["run", &seed.to_string(), STEPS, &ports::next().to_string()].map(str::to_owned);
    let program = Program::weft(compile("regions")?).args(words).env("WEFT_TRANSPORT", "shm");
    let ended = change(program).run(TIMEOUT).and_then(Finished::success);
    ended.with_context(|| format!("program {seed}"))
}

/// Returns how many pages were registered, and how many of these a peer could map.
fn pages(ended: &Finished) -> Result<[u64; 2]> {
    let line = ended.stdout.lines().find_map(|line| line.strip_prefix("pages registered: "));
    let words = line.and_then(|line| line.split_once(" shared: "));
    let (registered, shared) = words.with_context(|| ended.error("no count of pages"))?;
    Ok([registered.parse()?, shared.parse()?])
}

#[test]
fn random_programs_and_their_regions() -> Result<()> {
    let asked = std::env::var("WEFT_LAB_REGIONS").ok();
    let count = asked.map_or(Ok(PROGRAMS), |count| count.parse()).context("WEFT_LAB_REGIONS")?;
    let (mut registered, mut shared) = (0, 0);
    for seed in 1..=count {
        let ended = run(seed, |program| program)?;
        let [of_it, shared_of_it] = pages(&ended)?;
        (registered, shared) = (registered + of_it, shared + shared_of_it);
    }
    if shared == 0 {
        note_skip("random_programs_and_their_regions", "no memory can be shared: no userfaultfd");
        return Ok(());
    }
    ensure!(shared * 4 > registered, "of {registered} registered pages only {shared} were shared");
    Ok(())
}

/// The random programs, without shared memory.
#[test]
fn random_programs_without_shared_memory() -> Result<()> {
    for seed in 1..=2 {
        let ended = run(seed, |program| program.env("WEFT_REMAP", "0"))?;
        ensure!(pages(&ended)?[1] == 0, ended.error("memory is shared"));
    }
    Ok(())
}
