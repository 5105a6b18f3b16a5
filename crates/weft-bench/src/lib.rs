//! The measurements of `weft bench`: queue pairs of the engine beside plain sockets, between the
//! same two cores or hosts, in the same run.
//!
//! From the top down: the command line ([`args`]) chooses benchmarks (`suite`), each a list of
//! plans. The runner takes rounds over the plans; for each, `session` starts the two ends as
//! processes of their own (`worker`), which talk to it over a control connection (`control`).
//! A worker opens lanes (`lane`: queue pairs or sockets) and runs a pattern (`pattern`) over them.
//! What they counted becomes values (`suite::reading`), and medians of values a report (`report`).

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

use anyhow::{Context as _, Result};

use args::Bench;
pub use args::BenchArgs;
use suite::Request;

/// Runs what the command line asks for, and returns what is to be printed.
///
/// # Errors
/// If a measurement fails, or a report cannot be written.
pub fn run(args: &BenchArgs) -> Result<String> {
    match &args.bench {
        Bench::Peer => worker::run().map(|()| String::new()),
        Bench::Serve(args) => serve::run(args.listen).map(|()| String::new()),
        bench => {
            let request = Request::of(bench).context("nothing to measure")?;
            measure(bench, &request)
        }
    }
}

fn measure(bench: &Bench, request: &Request) -> Result<String> {
    let benchmarks = suite::benchmarks(bench, request);
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
