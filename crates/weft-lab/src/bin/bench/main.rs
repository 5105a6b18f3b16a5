//! `make bench`: measures Weft and TCP over the same path in alternating runs, and prints medians.

mod block;
mod bottleneck;
mod builds;
mod fabric;
mod groups;
mod plots;
mod ratios;
mod streams;
mod transfer;
mod tuples;

use std::fmt::Display;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;
use weft_lab::measure::{Bench, Placement, Sample, Tool, Unit};
use weft_lab::resources::{hold, idle_cpu, resources};
use weft_lab::{Stage, machine, namespaces_denied};

use crate::groups::{GROUPS, GROUPS_OF_ONE_HOST, GROUPS_OF_SOCKETS, Group};

/// Measure Weft beside TCP over the same path.
#[derive(Debug, Parser)]
struct Args {
    /// Runs of each tool; the figures are medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Where the two ends run
    #[arg(long, value_enum, default_value_t = Placement::Pinned)]
    placement: Placement,

    /// Measure shared memory on one host, beside other libraries' and plain copying
    #[arg(long)]
    one_host: bool,

    /// Measure sockets programs on one host: on Weft, and the same on the kernel's TCP
    #[arg(long, conflicts_with = "one_host")]
    sockets: bool,

    /// Measure copies of files, beside `cp`, `rsync`, `scp` and others
    #[arg(long, conflicts_with_all = ["one_host", "sockets", "loopback"])]
    transfer: bool,

    /// Measure block storage, beside tgt
    #[arg(
        long,
        conflicts_with_all = ["one_host", "sockets", "transfer", "only", "loopback", "before"]
    )]
    target: bool,

    /// Measure streams of `weft pipeline`, beside `timely`
    #[arg(
        long,
        conflicts_with_all =
            ["one_host", "sockets", "transfer", "target", "only", "loopback", "before"]
    )]
    pipeline: bool,

    /// Measure the tuple space, beside Redis
    #[arg(
        long,
        conflicts_with_all =
            ["one_host", "sockets", "transfer", "target", "pipeline", "only", "loopback", "before"]
    )]
    tuples: bool,

    /// Measure `weft-fabric` beside calls of the engine
    #[arg(
        long,
        conflicts_with_all = [
            "one_host", "sockets", "transfer", "target", "pipeline", "tuples", "only", "loopback",
            "before"
        ]
    )]
    fabric: bool,

    /// Measure what copies leave of a narrow path to another program's connection
    #[arg(
        long,
        conflicts_with_all =
            ["one_host", "sockets", "transfer", "target", "pipeline", "only", "loopback", "before"]
    )]
    fair: bool,

    /// Measure only beside tools, or on paths, whose description contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Measure beside another build of Weft, whose `dist` directory this is, instead of beside
    /// other tools
    #[arg(long, value_name = "DIST", conflicts_with = "transfer")]
    before: Option<PathBuf>,

    /// Measure only the rows of sockets programs and on one host that this file has ratios for, and
    /// fail if one is worse by more than 30 % in three tries
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "one_host", "sockets", "transfer", "target", "pipeline", "tuples", "fabric", "fair",
            "only", "loopback", "before", "json"
        ]
    )]
    ratios: Option<PathBuf>,

    /// Write a page with plots of the copies, too
    #[arg(long, value_name = "FILE", requires = "transfer")]
    html: Option<PathBuf>,

    /// Stay on loopback even with the right to make network namespaces
    #[arg(long)]
    loopback: bool,

    /// Print JSON, with the values of every run
    #[arg(long)]
    json: bool,
}

/// Connections that one process opens to measure the memory of each.
const CONNECTIONS: u32 = 1000;
const MEMORY_KIB_TARGET: f64 = 20.0;
const IDLE_SECONDS: u32 = 3;

fn main() -> Result<()> {
    let args = Args::parse();
    if args.transfer {
        return transfer::run(args.runs, args.only.as_deref(), args.html.as_deref(), args.json);
    }
    if args.target {
        return block::run(args.runs, args.json);
    }
    if args.fair {
        return bottleneck::run(args.runs, args.json);
    }
    if args.tuples {
        return tuples::run(args.runs, args.json);
    }
    if args.fabric {
        return fabric::run(args.runs, args.json);
    }
    if args.pipeline {
        return streams::run(args.runs, args.json);
    }
    if let Some(file) = &args.ratios {
        let bench = Bench { stage: &Stage::loopback(), placement: args.placement };
        return ratios::check(&bench, args.runs, file);
    }
    let stays = args.loopback || args.one_host || args.sockets;
    let stage = if stays { Stage::loopback() } else { Stage::best()? };
    let fallback = namespaces_denied().filter(|_| !stays);
    if let Some(why) = fallback {
        eprintln!("Falling back to loopback: {why}");
    }
    let bench = Bench { stage: &stage, placement: args.placement };
    let groups: &[Group] = match (args.one_host, args.sockets) {
        (true, _) => &GROUPS_OF_ONE_HOST,
        (_, true) => &GROUPS_OF_SOCKETS,
        _ => &GROUPS,
    };
    let wanted = |group: &&Group| {
        let text = args.only.as_deref().unwrap_or_default();
        group.baseline.to_string().contains(text)
    };
    let possible = |group: &&Group| match group.baseline.denied() {
        Some(why) => {
            eprintln!("left out: {}: {why}", group.baseline);
            false
        }
        None => true,
    };
    let groups = groups.iter().filter(wanted).filter(possible);
    let comparisons = match &args.before {
        Some(before) => builds::compare(&bench, groups, args.runs, before)?,
        None => {
            let mut comparisons = Vec::new();
            for group in groups {
                comparisons.extend(compare(&bench, group, args.runs)?);
            }
            comparisons
        }
    };
    let report = Report {
        machine: machine::describe(),
        path: bench.stage.describe(),
        placement: bench.placement.to_string(),
        runs: args.runs,
        comparisons,
        idle: Idle::measure(bench.stage)?,
        memory: Memory::measure(bench.stage)?,
    };
    show(&report, args.json, Report::print)
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    path: String,
    placement: String,
    runs: u32,
    comparisons: Vec<Comparison>,
    idle: Idle,
    memory: Memory,
}

#[derive(Debug, Serialize)]
struct Comparison {
    unit: Unit,
    weft: Series,
    rival: Series,
    /// The placements of Weft's ends and of the rival's.
    placements: [String; 2],
    /// Median of the ratios within each run. Slow changes of the machine's speed cancel out in
    /// them.
    ratio: f64,
    target: String,
    met: bool,
}

/// The results of all runs of one tool.
#[derive(Debug, Serialize)]
struct Series {
    tool: String,
    median: f64,
    values: Vec<f64>,
    /// Median processor time, in nanoseconds.
    client_cpu_ns_per_message: f64,
    server_cpu_ns_per_message: f64,
}

/// Processor time that one idle connection uses at both ends.
#[derive(Debug, Serialize)]
struct Idle {
    seconds: u32,
    client_cpu_ms: f64,
    server_cpu_ms: f64,
}

/// Memory of a process per connected queue pair, without the program's own buffers.
#[derive(Debug, Serialize)]
struct Memory {
    connections: u32,
    client_kib_each: f64,
    server_kib_each: f64,
    target_kib_each: f64,
}

/// Measures the baseline and then each subject in every run, so that slow changes of the machine's
/// speed affect all of them alike.
fn compare(bench: &Bench<'_>, group: &Group, runs: u32) -> Result<Vec<Comparison>> {
    let mut baseline = Vec::new();
    let mut subjects = vec![Vec::new(); group.subjects.len()];
    for run in 1..=runs {
        eprintln!("run {run} of {runs}: {}", group.baseline);
        let place = group.placement.unwrap_or(bench.placement);
        let baseline_place = group.baseline_placement.unwrap_or(place);
        baseline.push(bench.at(baseline_place).run(group.baseline)?);
        for ((tool, _), samples) in group.subjects.iter().zip(&mut subjects) {
            eprintln!("run {run} of {runs}: {tool}");
            samples.push(bench.at(place).run(*tool)?);
        }
    }
    let comparisons = group.subjects.iter().zip(&subjects).map(|((tool, target), samples)| {
        let ratios = samples.iter().zip(&baseline).map(|(weft, rival)| weft.value / rival.value);
        let ratio = median(ratios);
        let more = samples.iter().zip(&baseline).map(|(weft, rival)| weft.value - rival.value);
        let more = median(more);
        Comparison {
            unit: tool.unit(),
            weft: Series::new(*tool, samples),
            rival: Series::new(group.baseline, &baseline),
            placements: group.placements(bench.placement),
            ratio,
            target: target.to_string(),
            met: target.is_met(ratio, more),
        }
    });
    Ok(comparisons.collect())
}

impl Series {
    fn new(tool: Tool, samples: &[Sample]) -> Self {
        Self {
            tool: tool.to_string(),
            median: median(samples.iter().map(|sample| sample.value)),
            values: samples.iter().map(|sample| sample.value).collect(),
            client_cpu_ns_per_message: median(samples.iter().map(|s| s.cpu_per_message[0])),
            server_cpu_ns_per_message: median(samples.iter().map(|s| s.cpu_per_message[1])),
        }
    }

    fn cpu(&self) -> String {
        let (client, server) = (self.client_cpu_ns_per_message, self.server_cpu_ns_per_message);
        format!("{:.2} + {:.2}", client / 1e3, server / 1e3)
    }
}

impl Idle {
    fn measure(stage: &Stage) -> Result<Self> {
        let ends = hold(stage, 1, IDLE_SECONDS).context("idle")?;
        Ok(Self {
            seconds: IDLE_SECONDS,
            client_cpu_ms: idle_cpu(&ends.client)?.as_secs_f64() * 1e3,
            server_cpu_ms: ends.server_idle_cpu.as_secs_f64() * 1e3,
        })
    }
}

impl Memory {
    fn measure(stage: &Stage) -> Result<Self> {
        let ends = hold(stage, CONNECTIONS, 1).context("memory")?;
        let each = |end| -> Result<f64> {
            let grown = resources(end, "all")?.memory_kib - resources(end, "before")?.memory_kib;
            Ok(grown as f64 / f64::from(CONNECTIONS))
        };
        Ok(Self {
            connections: CONNECTIONS,
            client_kib_each: each(&ends.client)?,
            server_kib_each: each(&ends.server)?,
            target_kib_each: MEMORY_KIB_TARGET,
        })
    }
}

impl Report {
    fn print(&self) {
        println!("Machine:   {}", self.machine);
        println!("Path:      {}", self.path);
        println!("Placement: {}", self.placement);
        println!("Figures:   medians of {} interleaved runs\n", self.runs);
        let mut table = empty_table();
        table.set_header([
            "on Weft",
            "result",
            "CPU us/message",
            "rival",
            "result",
            "CPU us/message",
            "Weft / rival",
            "target",
            "",
        ]);
        for comparison in &self.comparisons {
            let Comparison { unit, weft, rival, .. } = comparison;
            table.add_row([
                at(&weft.tool, &comparison.placements[0]),
                unit.show(weft.median),
                weft.cpu(),
                at(&rival.tool, &comparison.placements[1]),
                unit.show(rival.median),
                rival.cpu(),
                format!("{:.2}", comparison.ratio),
                comparison.target.clone(),
                if comparison.met { "met" } else { "MISSED" }.to_owned(),
            ]);
        }
        println!("{table}");
        println!("\nCPU: processor time per message, client + server, start and end included.");
        let Idle { seconds, client_cpu_ms, server_cpu_ms } = self.idle;
        println!(
            "Idle: a connected pair used {client_cpu_ms:.1} + {server_cpu_ms:.1} ms of processor \
             time in {seconds} s (client + server)."
        );
        let Memory { connections, client_kib_each, server_kib_each, target_kib_each } = self.memory;
        println!(
            "Memory: {connections} queue pairs in one process take {client_kib_each:.1} KiB each \
             (client), {server_kib_each:.1} KiB each (server); the target is {target_kib_each} KiB."
        );
    }
}

/// Returns the tool's name, followed by its placement if that differs from the usual one.
fn at(tool: &str, placement: &str) -> String {
    if placement.is_empty() { tool.to_owned() } else { format!("{tool}, {placement}") }
}

/// Measures each of `tools`, one after the other, in each run. Run 0 fills caches and allocates
/// memory; its samples are discarded. Returns the samples of each tool.
fn interleave<T: Copy + Display, S: Clone>(
    runs: u32,
    load: impl Display,
    tools: &[T],
    measure: impl Fn(T) -> Result<S>,
) -> Result<Vec<Vec<S>>> {
    let mut samples = vec![Vec::new(); tools.len()];
    for run in 0..=runs {
        for (&tool, samples) in tools.iter().zip(&mut samples) {
            eprintln!("run {run} of {runs}: {load}: {tool}");
            let sample = measure(tool)?;
            if run > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

/// Prints what is above the table of a report.
fn print_heading(machine: &str, path: &str, runs: u32) {
    println!("Machine:   {machine}");
    println!("Path:      {path}");
    println!("Figures:   medians of {runs} interleaved runs\n");
}

/// Returns a table without columns, in the style of all reports.
fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}

/// Prints a report as JSON, or as `print` does.
fn show<R: Serialize>(report: &R, is_json: bool, print: fn(&R)) -> Result<()> {
    if is_json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print(report);
    }
    Ok(())
}

/// Returns the median: the middle value, or the mean of the two middle values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
