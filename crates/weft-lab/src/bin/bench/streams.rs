//! `make bench BENCH=--pipeline`: measures streams of `weft pipeline` beside `timely` and beside
//! TCP alone.

use anyhow::Result;
use serde::Serialize;
use weft_lab::machine;
use weft_lab::streams::{Load, Streams};

use crate::{empty_table, interleave, median, print_heading, show};

#[derive(Debug, Serialize)]
struct Comparison {
    load: String,
    weft: Vec<f64>,
    rival: Vec<f64>,
    /// Median over the runs of Weft's result divided by the rival's.
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
    let streams = Streams::new()?;
    let mut comparisons = Vec::new();
    for load in Load::ALL {
        let samples = interleave(runs, load, &["weft pipeline", load.rival()], |tool| {
            if tool == load.rival() { streams.rival(load) } else { streams.weft(load) }
        })?;
        let ratio = median(samples[0].iter().zip(&samples[1]).map(|(weft, rival)| weft / rival));
        let [weft, rival] = [0, 1].map(|tool| samples[tool].clone());
        comparisons.push(Comparison { load: load.to_string(), weft, rival, ratio, show: load });
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    show(&report, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        let path = "two processes, loopback, free to move between cores";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header(["load", "weft pipeline", "rival", "result", "Weft / rival"]);
        for Comparison { load, weft, rival, ratio, show } in &self.comparisons {
            let result = |samples: &[f64]| show.show(median(samples.iter().copied()));
            let of_rival = show.rival().to_owned();
            table.add_row([
                load.clone(),
                result(weft),
                of_rival,
                result(rival),
                format!("{ratio:.2}"),
            ]);
        }
        println!("{table}");
        println!("\nThe ratio of a delay is better below 1, that of a rate above 1.");
        println!(
            "The rate of Weft includes the start of its processes; that of `timely` does not."
        );
    }
}
