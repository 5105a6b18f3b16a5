//! `make bench`: Weft beside TCP over the same path, run in turns, medians of several runs.

use anyhow::{Context as _, Result};
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;
use weft_lab::measure::{Bench, Placement, Sample, Tool, Unit};
use weft_lab::resources::{hold, idle_cpu, resources};
use weft_lab::{Stage, machine, namespaces_denied};

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

    /// Stay on loopback even with the right to make network namespaces
    #[arg(long)]
    loopback: bool,

    /// Print JSON, with the values of every run
    #[arg(long)]
    json: bool,
}

/// What is aimed at for the ratio of Weft to TCP.
#[derive(Debug, Clone, Copy)]
enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// A measurement of a rival and those of Weft that it is the measure of.
struct Group {
    baseline: Tool,
    /// Where the baseline runs, if not where the subjects do.
    baseline_placement: Option<Placement>,
    /// Where the subjects run, if not where the user says.
    placement: Option<Placement>,
    subjects: &'static [(Tool, Target)],
}

impl Group {
    /// Where Weft's ends and the rival's run, if not where the user says.
    fn placements(&self, usual: Placement) -> [String; 2] {
        let weft = self.placement.unwrap_or(usual);
        let rival = self.baseline_placement.unwrap_or(weft);
        [weft, rival].map(|place| if place == usual { String::new() } else { place.to_string() })
    }

    const fn of(baseline: Tool, subjects: &'static [(Tool, Target)]) -> Self {
        Self { baseline, baseline_placement: None, placement: None, subjects }
    }
}

const TCP_LATENCY: Tool = Tool::QperfLatency { test: "tcp_lat", bytes: 8 };
const DATAGRAMS: Group = Group::of(
    Tool::QperfLatency { test: "udp_lat", bytes: 8 },
    &[(
        Tool::PerftestLatency { program: "ib_send_lat", options: "-c UD -s 8 -n 30000" },
        Target::AtMost(1.0),
    )],
);

const MESSAGE_RATE: &[(Tool, Target)] = &[(
    Tool::PerftestBandwidth {
        program: "ib_send_bw",
        options: "-s 64 -t 128 -n 3000000",
        unit: Unit::MessagesPerSecond,
    },
    Target::AtLeast(5.0),
)];

const GROUPS: [Group; 5] = [
    Group::of(
        Tool::Iperf3 { bytes: 65_536 },
        &[
            (
                Tool::PerftestBandwidth {
                    program: "ib_write_bw",
                    options: "-s 65536 -n 30000",
                    unit: Unit::BytesPerSecond,
                },
                Target::AtLeast(0.9),
            ),
            (
                Tool::PerftestBandwidth {
                    program: "ib_send_bw",
                    options: "-s 65536 -n 30000",
                    unit: Unit::BytesPerSecond,
                },
                Target::AtLeast(0.9),
            ),
        ],
    ),
    Group::of(
        TCP_LATENCY,
        &[
            (
                Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000" },
                Target::AtMost(1.1),
            ),
            (
                Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000 -e" },
                Target::AtMost(1.3),
            ),
        ],
    ),
    Group::of(Tool::Iperf3NoDelay { bytes: 64 }, MESSAGE_RATE),
    Group::of(Tool::QperfTcpBandwidth { bytes: 64, unit: Unit::MessagesPerSecond }, MESSAGE_RATE),
    DATAGRAMS,
];

const SEND_LATENCY: Tool =
    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 200000" };
const WRITE_LATENCY: Tool =
    Tool::PerftestLatency { program: "ib_write_lat", options: "-s 8 -n 200000" };

const fn bandwidth(program: &'static str, options: &'static str) -> Tool {
    Tool::PerftestBandwidth { program, options, unit: Unit::BytesPerSecond }
}

const fn rate(program: &'static str) -> Tool {
    let options = "-s 64 -t 128 -n 3000000";
    Tool::PerftestBandwidth { program, options, unit: Unit::MessagesPerSecond }
}

const fn ucx_bandwidth(options: &'static str) -> Tool {
    Tool::Ucx { test: "tag_bw", options, unit: Unit::BytesPerSecond }
}

const WRITE_64K: Tool = bandwidth("ib_write_bw", "-s 65536 -n 100000");
const READ_64K: Tool = bandwidth("ib_read_bw", "-s 65536 -n 100000");
const WRITE_1M: Tool = bandwidth("ib_write_bw", "-s 1048576 -n 10000");
const READ_1M: Tool = bandwidth("ib_read_bw", "-s 1048576 -n 10000");
const WRITE_16M: Tool = bandwidth("ib_write_bw", "-s 16777216 -n 300");
const READ_16M: Tool = bandwidth("ib_read_bw", "-s 16777216 -n 300");

/// On one host, where memory is shared.
const GROUPS_OF_ONE_HOST: [Group; 13] = [
    Group::of(
        Tool::Ucx { test: "tag_lat", options: "-s 8 -n 300000", unit: Unit::Nanoseconds },
        &[(SEND_LATENCY, Target::AtMost(1.0)), (WRITE_LATENCY, Target::AtMost(1.0))],
    ),
    Group::of(
        Tool::FabricShm { bytes: 8 },
        &[(SEND_LATENCY, Target::AtMost(1.0)), (WRITE_LATENCY, Target::AtMost(1.0))],
    ),
    Group::of(
        TCP_LATENCY,
        &[(SEND_LATENCY, Target::AtMost(0.02)), (WRITE_LATENCY, Target::AtMost(0.02))],
    ),
    // TCP is at its best where no core has to be woken.
    Group {
        baseline_placement: Some(Placement::Together),
        ..Group::of(
            TCP_LATENCY,
            &[(SEND_LATENCY, Target::AtMost(0.125)), (WRITE_LATENCY, Target::AtMost(0.125))],
        )
    },
    Group {
        placement: Some(Placement::Together),
        ..Group::of(
            TCP_LATENCY,
            &[
                (
                    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000" },
                    Target::AtMost(1.0),
                ),
                (
                    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000 -e" },
                    Target::AtMost(1.0),
                ),
            ],
        )
    },
    Group::of(
        Tool::Ucx { test: "tag_bw", options: "-s 64 -n 3000000", unit: Unit::MessagesPerSecond },
        &[(rate("ib_send_bw"), Target::AtLeast(1.0)), (rate("ib_write_bw"), Target::AtLeast(1.0))],
    ),
    Group::of(
        ucx_bandwidth("-s 65536 -n 100000"),
        &[(WRITE_64K, Target::AtLeast(1.0)), (READ_64K, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 65_536 },
        &[(WRITE_64K, Target::AtLeast(0.7)), (READ_64K, Target::AtLeast(0.7))],
    ),
    Group::of(
        ucx_bandwidth("-s 1048576 -n 10000"),
        &[(WRITE_1M, Target::AtLeast(1.0)), (READ_1M, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 1 << 20 },
        &[(WRITE_1M, Target::AtLeast(0.9)), (READ_1M, Target::AtLeast(0.9))],
    ),
    Group::of(
        ucx_bandwidth("-s 16777216 -n 300"),
        &[(WRITE_16M, Target::AtLeast(1.0)), (READ_16M, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 16 << 20 },
        &[(WRITE_16M, Target::AtLeast(0.9)), (READ_16M, Target::AtLeast(0.9))],
    ),
    DATAGRAMS,
];

/// Connections that share a process, for what each one costs.
const CONNECTIONS: u32 = 1000;
const MEMORY_KIB_TARGET: f64 = 20.0;
const IDLE_SECONDS: u32 = 3;

fn main() -> Result<()> {
    let args = Args::parse();
    let stays = args.loopback || args.one_host;
    let stage = if stays { Stage::loopback() } else { Stage::best()? };
    let fallback = namespaces_denied().filter(|_| !stays);
    if let Some(why) = fallback {
        eprintln!("Falling back to loopback: {why}");
    }
    let bench = Bench { stage: &stage, placement: args.placement };
    let mut comparisons = Vec::new();
    let groups: &[Group] = if args.one_host { &GROUPS_OF_ONE_HOST } else { &GROUPS };
    for group in groups {
        comparisons.extend(compare(&bench, group, args.runs)?);
    }
    let report = Report {
        machine: machine::describe(),
        path: bench.stage.describe(),
        placement: bench.placement.to_string(),
        runs: args.runs,
        comparisons,
        idle: Idle::measure(bench.stage)?,
        memory: Memory::measure(bench.stage)?,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
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
    /// Where Weft's ends and where the rival's ran.
    placements: [String; 2],
    /// Median over the runs of the ratio within each run, which drifts of the machine spare.
    ratio: f64,
    target: String,
    met: bool,
}

/// All runs of one tool.
#[derive(Debug, Serialize)]
struct Series {
    tool: String,
    median: f64,
    values: Vec<f64>,
    /// Medians, in nanoseconds of processor time.
    client_cpu_ns_per_message: f64,
    server_cpu_ns_per_message: f64,
}

/// Processor time of one connected pair that has nothing to do.
#[derive(Debug, Serialize)]
struct Idle {
    seconds: u32,
    client_cpu_ms: f64,
    server_cpu_ms: f64,
}

/// Memory of a process per connected queue pair, the program's own buffers left out.
#[derive(Debug, Serialize)]
struct Memory {
    connections: u32,
    client_kib_each: f64,
    server_kib_each: f64,
    target_kib_each: f64,
}

/// Measures the rival and then each subject, again and again, so that all see the same machine.
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
        Comparison {
            unit: tool.unit(),
            weft: Series::new(*tool, samples),
            rival: Series::new(group.baseline, &baseline),
            placements: group.placements(bench.placement),
            ratio,
            target: target.to_string(),
            met: target.is_met(ratio),
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
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
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

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

/// A tool, and where it ran if that is not where the others did.
fn at(tool: &str, placement: &str) -> String {
    if placement.is_empty() { tool.to_owned() } else { format!("{tool}, {placement}") }
}

/// The middle value, or the mean of the two in the middle.
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
    fn median_of_odd_and_even() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
