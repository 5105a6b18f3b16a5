//! `make bench BENCH=--fabric`: measures `weft-fabric` beside calls of the engine.

use anyhow::Result;
use serde::Serialize;
use weft_lab::fabric_loads::{FabricLoad, FabricLoads, FabricSample, Goal};
use weft_lab::{NamespacePair, machine, namespaces_denied};

use crate::{empty_table, interleave, median, print_heading, show};

#[derive(Debug, Serialize)]
struct Row {
    /// Whether it is between network namespaces.
    is_between: bool,
    load: String,
    way: String,
    samples: Vec<FabricSample>,
    /// Median over the runs of the time divided by that of the engine's calls.
    ratio: f64,
    goal: Option<Goal>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    rows: Vec<Row>,
}

/// Measures all loads and prints the report.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let programs = FabricLoads::new()?;
    let pair = match namespaces_denied() {
        None => Some(NamespacePair::new()?),
        Some(reason) => {
            eprintln!("Nothing is measured between namespaces: {reason}.");
            None
        }
    };
    let between = if pair.is_some() { &FabricLoad::BETWEEN[..] } else { &[] };
    let mut rows = Vec::new();
    let places = FabricLoad::ALL.iter().map(|&load| (load, None));
    for (load, pair) in places.chain(between.iter().map(|&load| (load, pair.as_ref()))) {
        let all = interleave(runs, load, load.ways, |way| programs.measure(load, way, pair))?;
        for (&way, samples) in load.ways.iter().zip(&all) {
            let times = samples.iter().map(|it| it.nanoseconds);
            let pairs = || times.clone().zip(all[0].iter().map(|engine| engine.nanoseconds));
            let ratio = median(pairs().map(|(it, engine)| it / engine));
            let more = median(pairs().map(|(it, engine)| it - engine));
            let goal = match pair {
                None => load.goal(way, median(times.clone()), ratio, more),
                Some(_) => FabricLoad::goal_between(way, ratio),
            };
            rows.push(Row {
                is_between: pair.is_some(),
                load: load.to_string(),
                way: way.to_string(),
                samples: samples.clone(),
                ratio,
                goal,
            });
        }
    }
    let report = Report { machine: machine::describe(), runs, rows };
    show(&report, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        let path = "each process on a core of its own; on one host by shared memory, except \
                    datagrams; between namespaces by TCP and UDP";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header(["", "load", "by", "us", "ratio", "CPU us", "goal", ""]);
        for Row { is_between, load, way, samples, ratio, goal } in &self.rows {
            let of = |value: fn(&FabricSample) -> f64| median(samples.iter().map(value)) / 1e3;
            let cpu = [of(|it| it.client_cpu), of(|it| it.server_cpu)];
            let is_met = goal.map(|goal| if goal.is_met { "met" } else { "MISSED" });
            let place = if *is_between { "between namespaces" } else { "one host" };
            table.add_row([
                place.to_owned(),
                load.clone(),
                way.clone(),
                format!("{:.3}", of(|it| it.nanoseconds)),
                format!("{ratio:.2}"),
                format!("{:.3} + {:.3}", cpu[0], cpu[1]),
                goal.map_or_else(String::new, |goal| goal.text.to_owned()),
                is_met.unwrap_or_default().to_owned(),
            ]);
        }
        println!("{table}");
        println!("\nCPU: processor time of an operation, client + server.");
        for Row { load, samples, .. } in &self.rows {
            let bytes = median(samples.iter().map(|it| it.bytes));
            if bytes != 0.0 {
                println!("Memory: {load}: {bytes:.0} bytes each.");
            }
        }
    }
}
