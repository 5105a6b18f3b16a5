//! `make bench BENCH=--target`: measures `weft target` beside tgt.

use anyhow::Result;
use serde::Serialize;
use weft_lab::block::{Load, Sample, Storage, Target};
use weft_lab::machine;

use crate::{empty_table, interleave, median, print_heading, show};

#[derive(Debug, Serialize)]
struct Comparison {
    load: String,
    weft: Vec<Sample>,
    tgt: Vec<Sample>,
    /// Median over the runs of Weft's rate divided by tgt's: above 1, Weft is faster.
    ratio: f64,
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
    let storage = Storage::start()?;
    let mut comparisons = Vec::new();
    for load in Load::ALL {
        let targets = [Target::Weft, Target::Tgt];
        let samples = interleave(runs, load, &targets, |target| storage.measure(load, target))?;
        let pairs = samples[0].iter().zip(&samples[1]);
        let ratio = median(pairs.map(|(weft, tgt)| weft.rate / tgt.rate));
        let [weft, tgt] = [0, 1].map(|target| samples[target].clone());
        comparisons.push(Comparison { load: load.to_string(), weft, tgt, ratio, show: load });
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    show(&report, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        let path = "loopback, a file in memory, free to move between cores";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header(["load", "weft target", "CPU", "tgtd", "CPU", "Weft / tgtd"]);
        for Comparison { load, weft, tgt, ratio, show } in &self.comparisons {
            let rate = |samples: &[Sample]| show.show(median(samples.iter().map(|it| it.rate)));
            let cpu = |samples: &[Sample]| {
                format!("{:.1} us", median(samples.iter().map(|it| it.cpu_micros)))
            };
            let ratio = format!("{ratio:.2}");
            table.add_row([load.clone(), rate(weft), cpu(weft), rate(tgt), cpu(tgt), ratio]);
        }
        println!("{table}");
        println!("\nCPU: processor time of the target for each request.");
    }
}
