//! `weft stat`: prints the connections and their counters, once or repeatedly.

use std::io;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::grid::{Cell, Grid, short};
use super::sample::{Sample, Totals};
use super::source;
use crate::args::StatArgs;
use crate::output;

/// Prints the connections of this user, or the processes that own them.
///
/// # Errors
///
/// If standard output cannot be written.
pub(crate) fn stat(args: &StatArgs) -> Result<()> {
    let Some(interval) = args.watch else {
        return output::print(&render(args, &source::sample(), None));
    };
    watch(args, interval)
}

/// Prints the activity of each interval, until standard output is closed.
fn watch(args: &StatArgs, interval: Duration) -> Result<()> {
    let mut earlier = source::sample();
    loop {
        thread::sleep(interval);
        let sample = source::sample();
        match output::write(&render(args, &sample, Some(&earlier))) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result.context("cannot write to standard output")?,
        }
        earlier = sample;
    }
}

fn render(args: &StatArgs, sample: &Sample, earlier: Option<&Sample>) -> String {
    let rates = earlier.map(|earlier| sample.rates(earlier));
    if args.json {
        let value = sample.to_json(rates.as_ref());
        // In watch mode each document is one line.
        return if earlier.is_some() { format!("{value}\n") } else { format!("{value:#}\n") };
    }
    let mut grid = match args.processes {
        true => Grid::of_processes(sample, rates.as_ref()),
        false => Grid::of_connections(sample, rates.as_ref()),
    };
    grid.sort(grid.main_column, false);
    let mut text = String::new();
    if !grid.rows.is_empty() {
        text.push_str(&format!("{}\n\n", table(&grid).trim_fmt()));
    }
    text.push_str(&format!("{}\n", summary(sample)));
    if earlier.is_some() {
        text.push('\n');
    }
    text
}

fn table(grid: &Grid) -> comfy_table::Table {
    let mut table = output::table([]);
    table.set_header(&grid.headings);
    for row in &grid.rows {
        table.add_row(row.iter().map(Cell::to_string));
    }
    for (index, cell) in grid.rows.first().into_iter().flatten().enumerate() {
        if let Some(column) = table.column_mut(index).filter(|_| cell.is_number()) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    table
}

/// Returns the line below the table: how many connections are open, and the totals of all.
pub(super) fn summary(sample: &Sample) -> String {
    let Totals { offered, joined, bytes, fallbacks, .. } = &sample.totals;
    let open = sample.connections.len();
    let mut text = format!(
        "{open} open; since the start: {offered} offered, {joined} joined, {} through memory",
        short(*bytes as f64, "B")
    );
    if !fallbacks.is_empty() {
        let reasons: Vec<_> =
            fallbacks.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        text.push_str(&format!("; on TCP: {}", reasons.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::Value;

    use super::super::sample::tests::{connection, sample};
    use super::*;

    #[test]
    fn text_has_connections_and_totals() {
        let start = Instant::now();
        let before = sample(start, vec![connection(1, 0)]);
        let after = sample(start + Duration::from_secs(1), vec![connection(1, 4_000)]);
        let once = render(&StatArgs::default(), &after, None);
        for part in ["redis-cli[101]", "127.0.0.1:6379", "4.00 kB", "7 offered", "peer 2"] {
            assert!(once.contains(part), "{part} in {once}");
        }
        let watched = render(&StatArgs::default(), &after, Some(&before));
        assert!(watched.contains("MSG/s") && watched.ends_with("\n\n"), "{watched}");
        let processes = StatArgs { processes: true, ..StatArgs::default() };
        assert!(render(&processes, &after, None).contains("CONNECTIONS"));
        assert!(!render(&StatArgs::default(), &sample(start, Vec::new()), None).contains("CLIENT"));
    }

    #[test]
    fn watched_json_is_one_document_per_line() {
        let start = Instant::now();
        let before = sample(start, vec![connection(1, 0)]);
        let after = sample(start + Duration::from_secs(1), vec![connection(1, 4_000)]);
        let args = StatArgs { json: true, ..StatArgs::default() };
        let text = render(&args, &after, Some(&before));
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["connections"][0]["rates"]["bytes"]["to_server"], 4_000.0);
    }
}
