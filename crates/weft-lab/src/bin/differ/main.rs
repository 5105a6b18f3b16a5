//! Differential fuzzing of sockets: `cargo run --release -p weft-lab --bin differ -- --help`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use weft_lab::differ::{Campaign, Executor, Oracle, Verdict, generate, read_program};

/// Run random programs on the kernel and on Weft, and compare what they observe
#[derive(Parser)]
struct Arguments {
    /// Seconds to run for
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Programs to run at most
    #[arg(long)]
    count: Option<u64>,
    /// The first program's seed; random by default
    #[arg(long)]
    first: Option<u64>,
    /// Run the program of this seed alone
    #[arg(long, conflicts_with_all = ["program", "first"])]
    seed: Option<u64>,
    /// Run the program in this file alone
    #[arg(long)]
    program: Option<PathBuf>,
    /// Programs at a time, four for each processor by default; those that differ run again with
    /// no more than one for each processor
    #[arg(long)]
    jobs: Option<usize>,
    /// Different failures after which to stop
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Preload this library instead of what `weft run` does
    #[arg(long)]
    library: Option<PathBuf>,
    /// Directory for the shrunk programs of failures
    #[arg(long)]
    save: Option<PathBuf>,
    /// Take this word (`way=asm`) out of all steps; may be given several times
    #[arg(long)]
    without: Vec<String>,
    /// Leave out what is known to differ, as `make test` does
    #[arg(long)]
    without_known: bool,
    /// Leave failing programs as they are
    #[arg(long)]
    keep_long: bool,
    /// Print the program of the seed and run nothing
    #[arg(long, requires = "seed")]
    print: bool,
}

/// A step that ends on the kernel and takes longer than this on Weft may hang.
const LATE: Duration = Duration::from_millis(1500);
/// Programs spend most of their time waiting, so a processor can run several at a time.
const JOBS_PER_PROCESSOR: usize = 4;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed.filter(|_| arguments.print) {
        println!("{}", generate(seed).join("\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let executor = Executor::new(arguments.library.as_deref())?;
    if let Some(path) = &arguments.program {
        let steps = read_program(path)?;
        return run_one(&executor, &steps);
    }
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let jobs = arguments.jobs.unwrap_or(processors * JOBS_PER_PROCESSOR);
    let campaign = Campaign {
        first: arguments.seed.or(arguments.first).unwrap_or_else(|| fastrand::u64(..1 << 48)),
        count: arguments.seed.map_or(arguments.count, |_| Some(1)),
        limit: Some(Duration::from_secs(arguments.seconds)),
        jobs,
        rechecks: jobs.min(processors),
        failures_max: arguments.failures,
        shrinks: !arguments.keep_long,
        save: arguments.save,
        without: arguments.without,
        without_known: arguments.without_known,
        late: LATE,
    };
    let summary = campaign.run(&executor)?;
    println!("{summary}");
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_one(executor: &Executor, steps: &[String]) -> Result<ExitCode> {
    let verdict = Oracle::new(executor, LATE).compare(steps)?;
    Ok(match verdict {
        Verdict::Same => {
            println!("the same on the kernel and on Weft");
            ExitCode::SUCCESS
        }
        Verdict::Nondeterministic => {
            println!("not deterministic");
            ExitCode::SUCCESS
        }
        Verdict::Different(failure) => {
            for (number, step) in steps.iter().enumerate() {
                println!("{number:4}  {step}");
            }
            print!("{failure}");
            ExitCode::FAILURE
        }
    })
}
