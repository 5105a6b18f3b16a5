//! `make bench BENCH=--transfer`: times copies by `weft cp` and by other programs. All files are in
//! memory.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use weft_lab::copies::{Load, Place, Sample, Tool};
use weft_lab::machine;

use crate::median;

/// Returns the comparisons: the load, Weft's tool, and the tools that it is compared with.
fn groups(large: Load) -> [(Load, Tool, &'static [Tool]); 4] {
    use Tool::{Cp, Iperf3, RsyncToDaemon, Scp, Weft, WeftToServer};
    [
        (large, Weft, &[Cp]),
        (Load::Small, Weft, &[Cp]),
        (large, WeftToServer, &[RsyncToDaemon, Scp, Iperf3]),
        (Load::Small, WeftToServer, &[RsyncToDaemon, Scp]),
    ]
}

#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(serialize_with = "as_text")]
    load: Load,
    weft: Series,
    rival: Series,
    /// Median over the runs of the rival's time divided by Weft's: above 1, Weft is faster.
    ratio: f64,
}

fn as_text<S: serde::Serializer>(load: &Load, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(load)
}

#[derive(Debug, Serialize)]
struct Series {
    tool: String,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    comparisons: Vec<Comparison>,
}

/// Measures all comparisons and prints the report.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let large = Load::large()?;
    let place = Place::new(&[large, Load::Small])?;
    let mut comparisons = Vec::new();
    for (load, weft, rivals) in groups(large) {
        let tools = [&[weft], rivals].concat();
        let mut samples = vec![Vec::new(); tools.len()];
        // Run 0 fills caches and allocates memory. Its samples are discarded.
        for run in 0..=runs {
            for (tool, samples) in tools.iter().zip(&mut samples) {
                eprintln!("run {run} of {runs}: {load}: {tool}");
                let sample = place.measure(load, *tool)?;
                if run > 0 {
                    samples.push(sample);
                }
            }
        }
        let series = |index: usize| Series {
            tool: tools[index].to_string(),
            samples: samples[index].clone(),
        };
        comparisons.extend((1..tools.len()).map(|rival| {
            let pairs = samples[0].iter().zip(&samples[rival]);
            let ratio = median(pairs.map(|(weft, rival)| rival.seconds / weft.seconds));
            Comparison { load, weft: series(0), rival: series(rival), ratio }
        }));
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    if is_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

impl Report {
    fn print(&self) {
        println!("Machine:   {}", self.machine);
        println!("Path:      files in memory; servers over loopback, free to move between cores");
        println!("Figures:   medians of {} interleaved runs\n", self.runs);
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "load",
            "on Weft",
            "result",
            "CPU",
            "rival",
            "result",
            "CPU",
            "Weft / rival",
        ]);
        for Comparison { load, weft, rival, ratio } in &self.comparisons {
            table.add_row([
                load.to_string(),
                weft.tool.clone(),
                load.show(weft.median(|it| it.seconds)),
                load.show_cpu(weft.median(|it| it.cpu_seconds)),
                rival.tool.clone(),
                load.show(rival.median(|it| it.seconds)),
                load.show_cpu(rival.median(|it| it.cpu_seconds)),
                format!("{ratio:.2}"),
            ]);
        }
        println!("{table}");
        println!("\nCPU: processor time of both ends, start and end included.");
    }
}

impl Series {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(of))
    }
}
