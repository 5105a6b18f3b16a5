//! `make bench BENCH=--tuples`: measures `weft tuples serve` beside Redis.

use anyhow::Result;
use serde::Serialize;
use weft_lab::machine;
use weft_lab::tuple_servers::{TupleLoad, TupleSample, TupleServers};

use crate::{empty_table, interleave, median, print_heading, show};

#[derive(Debug, Serialize)]
struct Row {
    load: String,
    server: String,
    samples: Vec<TupleSample>,
    /// Median over the runs of the result divided by Redis'.
    ratio: f64,
    is_time: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    rows: Vec<Row>,
}

/// Measures all loads and prints the report.
pub(crate) fn run(runs: u32, is_json: bool) -> Result<()> {
    let programs = TupleServers::new()?;
    let mut rows = Vec::new();
    for load in TupleLoad::ALL {
        let servers = load.servers();
        let all = interleave(runs, load, servers, |server| programs.measure(load, server))?;
        for (server, samples) in servers.iter().zip(&all) {
            let pairs = samples.iter().zip(&all[0]);
            rows.push(Row {
                load: load.to_string(),
                server: server.to_string(),
                samples: samples.clone(),
                ratio: median(pairs.map(|(it, redis)| it.result / redis.result)),
                is_time: load.is_time(),
            });
        }
    }
    let report = Report { machine: machine::describe(), runs, rows };
    show(&report, is_json, Report::print)
}

impl Report {
    fn print(&self) {
        let path = "loopback or shared memory, free to move between cores";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header(["load", "server", "result", "CPU us", "ratio to Redis"]);
        for Row { load, server, samples, ratio, is_time } in &self.rows {
            let result = median(samples.iter().map(|it| it.result));
            let cpu = median(samples.iter().map(|it| it.cpu_micros));
            let (result, cpu) = if *is_time {
                (format!("{result:.1} us"), String::new())
            } else {
                (format!("{result:.0}/s"), format!("{cpu:.2}"))
            };
            let ratio = format!("{ratio:.2}");
            table.add_row([load.clone(), server.clone(), result, cpu, ratio]);
        }
        println!("{table}");
        println!("\nCPU: processor time of the server for each operation.");
    }
}
