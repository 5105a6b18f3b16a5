//! The measurements of `weft bench`: queue pairs of the engine next to plain sockets, between the
//! same two cores or hosts, in the same run.
//!
//! From the top down: the command line ([`args`]) chooses benchmarks (`suite`), each a list of
//! plans. The runner executes the plans in rounds. For each plan `session` starts the two ends as
//! separate processes (`worker`), which it commands over a control connection (`control`). A worker
//! opens lanes (`lane`: queue pairs or sockets) and runs a pattern (`pattern`) over them. Its
//! counts become values (`suite::reading`), and the medians of the values a report (`report`).
//!
//! # Layers
//!
//! A module uses the modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! runner worker
//! pattern serve suite
//! lane session
//! args control memory report
//! plan
//! cache limits machine process stats
//! ```

pub mod args;
mod cache;
mod control;
mod lane;
mod limits;
mod machine;
mod memory;
mod pattern;
mod plan;
mod process;
mod report;
mod runner;
mod serve;
mod session;
mod stats;
mod suite;
mod worker;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use args::Bench;
pub use args::BenchArgs;
use suite::Request;

/// Runs what the command line asks for, and returns the text to print. `find_sockets` finds the
/// library that puts sockets on Weft, if one is needed.
///
/// # Errors
/// If a measurement fails, or a report cannot be written.
pub fn run(args: &BenchArgs, find_sockets: impl FnOnce() -> Result<PathBuf>) -> Result<String> {
    match &args.bench {
        Bench::Peer => worker::run().map(|()| String::new()),
        Bench::Serve(args) => serve::run(args.listen).map(|()| String::new()),
        bench => {
            let request = Request::of(bench).context("nothing to measure")?;
            measure(bench, &request, find_sockets)
        }
    }
}

fn measure(
    bench: &Bench,
    request: &Request,
    find_sockets: impl FnOnce() -> Result<PathBuf>,
) -> Result<String> {
    let mut benchmarks = suite::benchmarks(bench, request);
    let cases = benchmarks.iter_mut().flat_map(|benchmark| &mut benchmark.cases);
    let mut on_weft = cases.filter(|case| case.over.flow().is_some()).peekable();
    if on_weft.peek().is_some() {
        let library = find_sockets()?;
        let library = library.to_str().context("the library's path is not UTF-8")?;
        on_weft.for_each(|case| {
            case.plan.environment.push(("LD_PRELOAD".into(), library.to_owned()));
        });
    }
    let common = &request.common;
    let document = runner::run(&benchmarks, common)?;
    if let Some(path) = &common.html {
        let page = report::html(&document)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(match (common.json, common.csv) {
        (true, _) => format!("{}\n", serde_json::to_string_pretty(&document)?),
        (_, true) => report::csv(&document),
        _ => report::text(&document),
    })
}
