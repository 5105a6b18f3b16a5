//! `make bench BENCH=--target`: measures `weft target` beside tgt and nbdkit.

use anyhow::Result;
use serde::Serialize;
use weft_lab::block::{Load, Sample, Storage, Target};
use weft_lab::machine;

use crate::{empty_table, interleave, median, print_heading, show};

/// What is measured, and beside what.
const ROWS: [(Load, Target, Option<Target>); 12] = [
    (Load::RandomReads(32), Target::Weft, Some(Target::Tgt)),
    (Load::RandomReads(1), Target::Weft, Some(Target::Tgt)),
    (Load::PolledReads, Target::Weft, Some(Target::Tgt)),
    (Load::LargeReads, Target::Weft, Some(Target::Tgt)),
    (Load::LargeWrites, Target::Weft, Some(Target::Tgt)),
    (Load::ScatteredReads, Target::Weft, Some(Target::Nbdkit)),
    (Load::RandomReads(32), Target::Iser, Some(Target::Weft)),
    (Load::RandomReads(1), Target::Iser, Some(Target::Weft)),
    (Load::LargeReads, Target::Iser, Some(Target::Weft)),
    (Load::NullReads(1), Target::Weft, None),
    (Load::NullReads(8), Target::Weft, None),
    (Load::NullReads(64), Target::Weft, None),
];

/// A target with what was measured.
#[derive(Debug, Serialize)]
struct Measured {
    target: Target,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Comparison {
    load: String,
    ours: Measured,
    rival: Option<Measured>,
    /// Median over the runs of our rate divided by the rival's: above 1, ours is faster.
    ratio: Option<f64>,
    #[serde(skip)]
    show: Load,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    comparisons: Vec<Comparison>,
}

/// Measures all loads and prints the report.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let storage = Storage::start()?.with_others()?;
    let mut comparisons = Vec::new();
    for (load, ours, rival) in ROWS {
        let targets: Vec<Target> = [Some(ours), rival].into_iter().flatten().collect();
        let samples = interleave(runs, load, &targets, |target| storage.measure(load, target))?;
        let mut measured = targets.into_iter().zip(samples);
        let mut next = || measured.next().map(|(target, samples)| Measured { target, samples });
        let (Some(ours), rival) = (next(), next()) else { continue };
        let ratio = rival.as_ref().map(|rival| {
            let pairs = ours.samples.iter().zip(&rival.samples);
            median(pairs.map(|(ours, rival)| ours.rate / rival.rate))
        });
        comparisons.push(Comparison { load: load.to_string(), ours, rival, ratio, show: load });
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    show(&report, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        let path = "loopback (iSER: shared memory), a file in memory, free to move between cores";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header(["load", "target", "result", "CPU", "beside", "result", "CPU", "ratio"]);
        for Comparison { load, ours, rival, ratio, show } in &self.comparisons {
            let cells = |Measured { target, samples }: &Measured| {
                let rate = show.show(median(samples.iter().map(|it| it.rate)));
                let cpu = median(samples.iter().map(|it| it.cpu_micros));
                [target.to_string(), rate, format!("{cpu:.1} us")]
            };
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let rival = rival.as_ref().map(cells).unwrap_or_default();
            let row = [load.clone()].into_iter().chain(cells(ours)).chain(rival).chain([ratio]);
            table.add_row(row);
        }
        println!("{table}");
        println!("\nCPU: processor time of the target for each request.");
    }
}
