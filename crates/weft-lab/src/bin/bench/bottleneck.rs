//! `make bench BENCH=--fair`: measures what copies leave of a narrow path to another connection.

use anyhow::Result;
use serde::Serialize;
use weft_lab::copies::{Beside, Bottleneck, Shares};
use weft_lab::machine;

use crate::{empty_table, interleave, median, print_heading, show};

const ALL: [Beside; 5] = [
    Beside::Nothing,
    Beside::Iperf3,
    Beside::Weft(&["--fair-share"]),
    Beside::Weft(&["--congestion=reno"]),
    Beside::Weft(&[]),
];

#[derive(Debug, Serialize)]
struct Row {
    beside: String,
    samples: Vec<Shares>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    path: String,
    runs: u32,
    rows: Vec<Row>,
}

/// Measures all and prints the report.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let path = Bottleneck::new()?;
    let samples = interleave(runs, "iperf3 beside", &ALL, |beside| path.measure(beside))?;
    let rows = ALL.iter().zip(samples);
    let rows = rows.map(|(beside, samples)| Row { beside: beside.to_string(), samples });
    let (machine, path) = (machine::describe(), Bottleneck::describe());
    show(&Report { machine, path, runs, rows: rows.collect() }, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        print_heading(&self.machine, &self.path, self.runs);
        let mut table = empty_table();
        table.set_header(["one connection of `iperf3` beside", "its rate", "its share", "all"]);
        for Row { beside, samples } in &self.rows {
            let of = |value: fn(&Shares) -> f64| median(samples.iter().map(value));
            table.add_row([
                beside.clone(),
                format!("{:.1} MB/s", of(|it| it.connection) / 1e6),
                format!("{:.0} %", of(|it| it.connection / it.all) * 1e2),
                format!("{:.1} MB/s", of(|it| it.all) / 1e6),
            ]);
        }
        println!("{table}");
    }
}
