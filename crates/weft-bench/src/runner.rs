//! Runs the cases of benchmarks in rounds, and takes the medians of their results.

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Common;
use crate::machine::Machine;
use crate::process;
use crate::report::{Document, Measured, Row, Settings, Table};
use crate::session::{self, Outcome, Place};
use crate::stats::median;
use crate::suite::{Benchmark, Case, Value};

/// Default number of rounds.
const ROUNDS: u32 = 3;

/// Runs the benchmarks one after another.
///
/// # Errors
/// If a measurement fails.
pub(crate) fn run(benchmarks: &[Benchmark], common: &Common) -> Result<Document> {
    let rounds = common.rounds.unwrap_or(ROUNDS) as usize;
    let total: usize = benchmarks.iter().map(|benchmark| benchmark.cases.len()).sum();
    if total == 0 {
        bail!("none of the requested combinations can be measured");
    }
    let cores = match (common.no_pin, &common.cores[..]) {
        (true, _) => Vec::new(),
        (_, []) => process::cores()?,
        (_, chosen) => chosen.to_vec(),
    };
    let place = Place { connect: common.connect, cores };
    let progress = progress(total * rounds)?;
    let tables = benchmarks.iter().map(|benchmark| measure(benchmark, rounds, &place, &progress));
    let tables = tables.collect::<Result<Vec<_>>>()?;
    progress.finish_and_clear();
    let settings = Settings {
        rounds,
        cores: place.cores,
        server: place.connect.map_or_else(|| "this host".to_owned(), |at| at.to_string()),
        congestion: common.congestion.clone(),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Document { version, machine: Machine::here(), settings, benchmarks: tables })
}

/// Returns a progress bar on standard error, which is hidden unless that is a terminal.
fn progress(length: usize) -> Result<ProgressBar> {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left  {msg}")?;
    Ok(ProgressBar::with_draw_target(Some(length as u64), target).with_style(style))
}

/// Measures a benchmark. Every case has its turn in each round, so that changes over time affect
/// all cases alike.
fn measure(
    benchmark: &Benchmark,
    rounds: usize,
    place: &Place,
    progress: &ProgressBar,
) -> Result<Table> {
    let mut results: Vec<Vec<(Outcome, Vec<Value>)>> = vec![Vec::new(); benchmark.cases.len()];
    for _ in 0..rounds {
        for (case, results) in benchmark.cases.iter().zip(&mut results) {
            progress.set_message(format!("{} {}", benchmark.name, case.over.name()));
            let outcome = session::run(&case.plan, place).with_context(|| {
                let (over, x) = (case.over.name(), case.x);
                format!("{} over {over} at {} {x}", benchmark.name, benchmark.axis.name)
            })?;
            let values = (benchmark.read)(case, &outcome);
            results.push((outcome, values));
            progress.inc(1);
        }
    }
    let rows = benchmark.cases.iter().zip(&results);
    let rows = rows.map(|(case, of_case)| {
        let baseline = baseline_of(case, &benchmark.cases).map(|index| &results[index][..]);
        row(case, of_case, baseline, benchmark.primary)
    });
    Ok(Table {
        name: benchmark.name.to_owned(),
        about: benchmark.about.to_owned(),
        axis: benchmark.axis.name.to_owned(),
        axis_unit: benchmark.axis.unit.to_owned(),
        primary: benchmark.primary.to_owned(),
        rows: rows.collect(),
    })
}

/// Returns the plain sockets to compare a case with: the first ones with the same position and
/// variant, preferably with the same way of waiting.
fn baseline_of(case: &Case, cases: &[Case]) -> Option<usize> {
    if case.over.is_plain() {
        return None;
    }
    let like = |other: &&(usize, &Case)| {
        other.1.over.is_plain() && other.1.x == case.x && other.1.variant == case.variant
    };
    let baselines: Vec<_> = cases.iter().enumerate().collect();
    let same_wait = |other: &&(usize, &Case)| other.1.wait == case.wait;
    let found =
        baselines.iter().filter(like).find(same_wait).or_else(|| baselines.iter().find(like));
    found.map(|(index, _)| *index)
}

fn row(
    case: &Case,
    results: &[(Outcome, Vec<Value>)],
    baseline: Option<&[(Outcome, Vec<Value>)]>,
    primary: &str,
) -> Row {
    let first = results.first().map_or(&[][..], |(_, values)| values);
    let of = |results: &[(Outcome, Vec<Value>)], name: &str| -> Vec<f64> {
        let found = results.iter().filter_map(|(_, values)| {
            values.iter().find(|value| value.name == name).map(|value| value.value)
        });
        found.collect()
    };
    let values = first.iter().map(|value| {
        let rounds = of(results, value.name);
        let (name, unit) = (value.name.to_owned(), value.unit.to_owned());
        Measured { name, unit, median: median(&rounds), rounds }
    });
    let ratio = baseline.map(|baseline| {
        let pairs = of(results, primary).into_iter().zip(of(baseline, primary));
        median(
            &pairs
                .filter(|pair| pair.1 > 0.0)
                .map(|(own, baseline)| own / baseline)
                .collect::<Vec<_>>(),
        )
    });
    let report = results.last().and_then(|(outcome, _)| outcome.clients.first());
    Row {
        over: case.over.name().to_owned(),
        transport: report.map(|report| report.transport.clone()).unwrap_or_default(),
        congestion: report.and_then(|report| report.congestion.clone()),
        operation: case.operation.name().to_owned(),
        wait: case.wait.name().to_owned(),
        variant: case.variant.to_owned(),
        x: case.x as u64,
        values: values.collect(),
        ratio: ratio.filter(|ratio| *ratio > 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operation, Over, Wait};
    use crate::session::Plan;

    fn case(over: Over, wait: Wait, x: usize) -> Case {
        let plan =
            Plan { environment: Vec::new(), server: None, clients: Vec::new(), beside: Vec::new() };
        Case { over, operation: Operation::Send, wait, variant: "", x, plan }
    }

    #[test]
    fn baseline_of_a_transport_is_a_socket_with_the_same_size() {
        let cases = [
            case(Over::Rc, Wait::Cpu, 8),
            case(Over::TcpSockets, Wait::Poll, 8),
            case(Over::TcpSockets, Wait::Events, 8),
            case(Over::TcpSockets, Wait::Events, 64),
        ];
        assert_eq!(
            baseline_of(&cases[0], &cases),
            Some(1),
            "no socket waits like this, so the first one"
        );
        assert_eq!(baseline_of(&case(Over::Rc, Wait::Events, 8), &cases), Some(2));
        assert_eq!(baseline_of(&case(Over::Rc, Wait::Events, 9), &cases), None);
        assert_eq!(baseline_of(&cases[1], &cases), None);
    }

    #[test]
    fn row_has_medians_and_the_median_of_ratios() {
        let results = |values: [f64; 3]| {
            let outcome = Outcome { server: None, clients: Vec::new() };
            let value = |value| vec![Value { name: "p50", unit: "us", value }];
            values.map(|at| (outcome.clone(), value(at))).to_vec()
        };
        let (own, baseline) = (results([1.0, 9.0, 2.0]), results([2.0, 3.0, 8.0]));
        let row = row(&case(Over::Rc, Wait::Poll, 8), &own, Some(&baseline), "p50");
        assert_eq!((row.values[0].median, row.ratio), (2.0, Some(0.5)));
        assert_eq!(row.values[0].rounds, [1.0, 9.0, 2.0]);
    }
}
