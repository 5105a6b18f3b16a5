//! A sample as rows and columns, for a printed table and for a live screen.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::sample::{Direction, Id, Rate, Rates, Sample, SampleEnd};
use crate::output::printable;

/// Rows under headings. Every row has as many cells as there are headings.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) headings: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// The default column to sort by.
    pub(crate) main_column: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Count(u64),
    Bytes(u64),
    /// Bytes per second; `None` while there is only one sample.
    ByteRate(Option<f64>),
    /// Any other number per second.
    Rate(Option<f64>),
}

impl Grid {
    /// Returns one row for each connection, with its rates if they are known, and its counters. The
    /// most important columns come first, because a narrow screen cuts off the rest.
    pub(crate) fn of_connections(sample: &Sample, rates: Option<&HashMap<Id, Rates>>) -> Self {
        let rates_known = rates.is_some();
        let mut headings = vec!["CLIENT", "SERVER"];
        if rates_known {
            headings.extend(["TO SERVER/s", "TO CLIENT/s", "MSG/s", "MSG/s BACK"]);
        }
        headings.extend(["VIA", "STATE", "WHY", "FLOW", "STALLS", "WAKEUPS", "ZERO-COPY"]);
        headings.extend(["TO SERVER", "TO CLIENT", "MSGS", "MSGS BACK", "ADDRESSES"]);
        let rows = sample.connections.iter().map(|connection| {
            let (client, server) = (&connection.client, &connection.server);
            let mut row = vec![Cell::Text(name(client)), Cell::Text(name(server))];
            if let Some(rates) = rates {
                let rates = rates.get(&connection.id);
                let (there, back) = (rates.map(|r| r.to_server), rates.map(|r| r.to_client));
                row.extend([
                    Cell::ByteRate(there.map(|rate| rate.bytes)),
                    Cell::ByteRate(back.map(|rate| rate.bytes)),
                    Cell::Rate(there.map(|rate| rate.messages)),
                    Cell::Rate(back.map(|rate| rate.messages)),
                ]);
            }
            let (there, back) = (&connection.to_server, &connection.to_client);
            row.extend([
                Cell::Text(connection.transport().to_owned()),
                Cell::Text(connection.state.name().to_owned()),
                Cell::Text(connection.state.why().unwrap_or("-").to_owned()),
                Cell::Text(connection.flow.to_owned()),
                Cell::Count(there.stalls + back.stalls),
                Cell::Count(there.wakeups + back.wakeups),
                Cell::Bytes(there.zero_copy_bytes + back.zero_copy_bytes),
                Cell::Bytes(there.bytes),
                Cell::Bytes(back.bytes),
                Cell::Count(there.messages),
                Cell::Count(back.messages),
                Cell::Text(format!("{} > {}", client.address, server.address)),
            ]);
            row
        });
        let main = if rates_known { "TO SERVER/s" } else { "TO SERVER" };
        Self::new(headings, rows.collect(), main)
    }

    /// Returns one row for each process, which adds up its connections.
    pub(crate) fn of_processes(sample: &Sample, rates: Option<&HashMap<Id, Rates>>) -> Self {
        let mut processes: BTreeMap<u32, Process> = BTreeMap::new();
        for connection in &sample.connections {
            let rates = rates.and_then(|rates| rates.get(&connection.id));
            let (there, back) = (connection.to_server, connection.to_client);
            let (rate_there, rate_back) = (rates.map(|r| r.to_server), rates.map(|r| r.to_client));
            let (client, server) = (&connection.client, &connection.server);
            for (end, sent, received) in [
                (client, (there, rate_there), (back, rate_back)),
                (server, (back, rate_back), (there, rate_there)),
            ] {
                if end.pid != 0 {
                    processes.entry(end.pid).or_default().add(end, sent, received);
                }
            }
        }
        let headings = vec![
            "PID",
            "PROGRAM",
            "CONNECTIONS",
            "SENT/s",
            "RECEIVED/s",
            "MSG/s SENT",
            "MSG/s RECEIVED",
            "SENT",
            "RECEIVED",
            "ZERO-COPY",
            "STALLS",
            "WAKEUPS",
        ];
        let rows = processes.into_iter().map(|(pid, process)| process.row(pid)).collect();
        Self::new(headings, rows, if rates.is_some() { "SENT/s" } else { "SENT" })
    }

    fn new(headings: Vec<&'static str>, rows: Vec<Vec<Cell>>, main: &str) -> Self {
        let main_column = headings.iter().position(|&heading| heading == main).unwrap_or_default();
        Self { headings, rows, main_column }
    }

    /// Sorts the rows by a column: numbers in descending and text in ascending order, or
    /// `reversed`.
    pub(crate) fn sort(&mut self, column: usize, reversed: bool) {
        self.rows.sort_by(|a, b| {
            let order = a[column].order(&b[column]);
            if reversed { order.reverse() } else { order }
        });
    }
}

/// The sums over all connections of a process.
#[derive(Default)]
struct Process {
    program: String,
    connections: u64,
    sent: Direction,
    received: Direction,
    rates: Option<(Rate, Rate)>,
}

impl Process {
    fn add(
        &mut self,
        end: &SampleEnd,
        (sent, sending): (Direction, Option<Rate>),
        (received, receiving): (Direction, Option<Rate>),
    ) {
        self.program.clone_from(&end.program);
        self.connections += 1;
        self.sent.add(sent);
        self.received.add(received);
        if let (Some(sending), Some(receiving)) = (sending, receiving) {
            let rates = self.rates.get_or_insert_default();
            rates.0.add(sending);
            rates.1.add(receiving);
        }
    }

    fn row(self, pid: u32) -> Vec<Cell> {
        let (sending, receiving) = (self.rates.map(|r| r.0), self.rates.map(|r| r.1));
        vec![
            Cell::Count(pid.into()),
            Cell::Text(printable(&self.program)),
            Cell::Count(self.connections),
            Cell::ByteRate(sending.map(|rate| rate.bytes)),
            Cell::ByteRate(receiving.map(|rate| rate.bytes)),
            Cell::Rate(sending.map(|rate| rate.messages)),
            Cell::Rate(receiving.map(|rate| rate.messages)),
            Cell::Bytes(self.sent.bytes),
            Cell::Bytes(self.received.bytes),
            Cell::Bytes(self.sent.zero_copy_bytes + self.received.zero_copy_bytes),
            // Only its sending direction: the process waited for room, and woke its peer.
            Cell::Count(self.sent.stalls),
            Cell::Count(self.sent.wakeups),
        ]
    }
}

/// Formats an end as `program[pid]`.
fn name(end: &SampleEnd) -> String {
    match end.pid {
        0 => "-".to_owned(),
        pid => format!("{}[{pid}]", printable(&end.program)),
    }
}

impl Cell {
    pub(crate) fn is_number(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(own), Self::Text(other)) => own.cmp(other),
            _ => other.number().total_cmp(&self.number()),
        }
    }

    /// Unknown values sort below 0.
    fn number(&self) -> f64 {
        match self {
            Self::Text(_) => -1.0,
            Self::Count(value) | Self::Bytes(value) => *value as f64,
            Self::ByteRate(value) | Self::Rate(value) => value.unwrap_or(-1.0),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Count(count) => count.fmt(f),
            Self::Bytes(bytes) => f.write_str(&short(*bytes as f64, "B")),
            Self::ByteRate(Some(rate)) => f.write_str(&short(*rate, "B")),
            Self::Rate(Some(rate)) => f.write_str(&short(*rate, "")),
            Self::ByteRate(None) | Self::Rate(None) => f.write_str("-"),
        }
    }
}

/// Formats `value` with three significant digits and a decimal prefix.
pub(crate) fn short(value: f64, unit: &str) -> String {
    let mut value = value;
    let mut prefixes = ["", "k", "M", "G", "T", "P", "E"].into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    // A value that would be rounded to 1000 gets the next prefix.
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let digits = match (prefix, value) {
        ("", _) => 0,
        (_, ..9.995) => 2,
        (_, ..99.95) => 1,
        _ => 0,
    };
    let number = format!("{value:.digits$}");
    if prefix.is_empty() && unit.is_empty() { number } else { format!("{number} {prefix}{unit}") }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::sample::State;
    use super::super::sample::tests::{connection, sample};
    use super::*;

    fn column(grid: &Grid, heading: &str) -> Vec<String> {
        let index = grid.headings.iter().position(|own| *own == heading).unwrap();
        grid.rows.iter().map(|row| row[index].to_string()).collect()
    }

    #[test]
    fn each_connection_is_a_row() {
        let start = Instant::now();
        let mut silent = connection(2, 0);
        silent.client.program = "evil\u{1b}[2J".into();
        silent.state = State::Offered;
        silent.server.pid = 0;
        let before = sample(start, vec![connection(1, 0)]);
        let after = sample(start + Duration::from_secs(1), vec![connection(1, 2_500), silent]);
        let rates = after.rates(&before);
        let mut grid = Grid::of_connections(&after, Some(&rates));
        assert!(grid.rows.iter().all(|row| row.len() == grid.headings.len()));
        assert_eq!(column(&grid, "TO SERVER/s"), ["2.50 kB", "0 B"]);
        assert_eq!(column(&grid, "MSG/s"), ["25", "0"]);
        assert_eq!(column(&grid, "CLIENT")[1], "evil\u{fffd}[2J[102]");
        assert_eq!(column(&grid, "SERVER"), ["redis-server[10]", "-"]);
        assert_eq!(column(&grid, "VIA"), ["shm", "tcp"]);
        assert_eq!(column(&grid, "WHY"), ["-", "unanswered"]);
        assert_eq!(column(&grid, "ADDRESSES")[0], "127.0.0.1:40001 > 127.0.0.1:6379");
        grid.sort(grid.main_column, true);
        assert_eq!(column(&grid, "TO SERVER/s"), ["0 B", "2.50 kB"]);

        let grid = Grid::of_connections(&after, None);
        assert!(grid.rows.iter().all(|row| row.len() == grid.headings.len()));
        assert!(!grid.headings.contains(&"MSG/s"));
    }

    #[test]
    fn processes_add_up_their_connections() {
        let start = Instant::now();
        let mut second = connection(2, 0);
        second.to_client.bytes = 5_000;
        second.to_client.stalls = 3;
        let all = sample(start, vec![connection(1, 1_000), second]);
        let mut grid = Grid::of_processes(&all, None);
        assert!(grid.rows.iter().all(|row| row.len() == grid.headings.len()));
        assert_eq!(column(&grid, "PID"), ["10", "101", "102"]);
        assert_eq!(column(&grid, "CONNECTIONS"), ["2", "1", "1"]);
        assert_eq!(column(&grid, "SENT"), ["6.00 kB", "1.00 kB", "0 B"]);
        assert_eq!(column(&grid, "RECEIVED"), ["1.00 kB", "1.00 kB", "5.00 kB"]);
        assert_eq!(column(&grid, "STALLS"), ["3", "0", "0"]);
        assert_eq!(column(&grid, "SENT/s"), ["-", "-", "-"]);
        grid.sort(1, false);
        assert_eq!(column(&grid, "PROGRAM"), ["redis-cli", "redis-cli", "redis-server"]);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (999.7, "1.00 kB"),
            (1_234.0, "1.23 kB"),
            (99_960.0, "100 kB"),
            (12_345_678.0, "12.3 MB"),
            (3.5e9, "3.50 GB"),
            (2e21, "2000 EB"),
        ] {
            assert_eq!(short(value, "B"), text);
        }
        assert_eq!(short(42.4, ""), "42");
        assert_eq!(short(4_200.0, ""), "4.20 k");
    }
}
