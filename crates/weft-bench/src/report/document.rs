//! The results of a run, which all forms of the report show.

use serde::Serialize;

use crate::machine::Machine;
use crate::plan::Over;

/// All results of a run. `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    /// Weft's version.
    pub(crate) version: String,
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) benchmarks: Vec<Table>,
}

/// The settings of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    /// The server's core, then the clients'; empty if the kernel chose.
    pub(crate) cores: Vec<usize>,
    /// The host of the server's end.
    pub(crate) server: String,
    /// TCP's congestion control, if one was chosen.
    pub(crate) congestion: Option<String>,
}

/// The results of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) about: String,
    /// The meaning of `Row::x`, and its unit.
    pub(crate) axis: String,
    pub(crate) axis_unit: String,
    /// The value that is compared and plotted.
    pub(crate) primary: String,
    pub(crate) rows: Vec<Row>,
}

/// The results of one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The transport that was requested.
    pub(crate) over: String,
    /// The transport that the connections really used.
    pub(crate) transport: String,
    pub(crate) congestion: Option<String>,
    pub(crate) operation: String,
    pub(crate) wait: String,
    pub(crate) variant: String,
    pub(crate) x: u64,
    pub(crate) values: Vec<Measured>,
    /// The primary value as a multiple of the plain sockets', median over the rounds.
    pub(crate) ratio: Option<f64>,
}

/// A value and its rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    pub(crate) rounds: Vec<f64>,
}

/// A property that distinguishes rows apart from the transport.
#[derive(Clone, Copy)]
pub(super) struct Label {
    pub(super) name: &'static str,
    pub(super) of: fn(&Row) -> &str,
}

pub(super) const LABELS: [Label; 3] = [
    Label { name: "operation", of: |row| &row.operation },
    Label { name: "wait", of: |row| &row.wait },
    Label { name: "kind", of: |row| &row.variant },
];

impl Document {
    /// Returns the machine and the settings as lines of text.
    pub(super) fn heading(&self) -> Vec<String> {
        let Settings { rounds, cores, server, congestion } = &self.settings;
        let cores = match &cores[..] {
            [] => "chosen by the kernel".to_owned(),
            [only] => format!("{only} for both ends"),
            [server, clients @ ..] => {
                let clients: Vec<_> = clients.iter().map(ToString::to_string).collect();
                format!("server {server}, clients {}", clients.join(","))
            }
        };
        let congestion = congestion.as_ref().unwrap_or(&self.machine.congestion);
        vec![
            format!(
                "weft {}, {} cores of {}, Linux {}",
                self.version, self.machine.cores, self.machine.cpu, self.machine.kernel
            ),
            format!(
                "server on {server}; cores: {cores}; congestion control {congestion}; medians of \
                 {rounds} rounds"
            ),
        ]
    }
}

impl Table {
    /// Returns the names of all values, in the order of their first appearance.
    pub(super) fn columns(&self) -> Vec<(&str, &str)> {
        let mut columns: Vec<(&str, &str)> = Vec::new();
        for value in self.rows.iter().flat_map(|row| &row.values) {
            if !columns.iter().any(|(name, _)| *name == value.name) {
                columns.push((&value.name, &value.unit));
            }
        }
        columns
    }

    /// Returns the names of the plotted values: the primary value, and its cost in processor time.
    pub(super) fn plotted(&self) -> impl Iterator<Item = &str> {
        let columns = self.columns().into_iter().map(|(name, _)| name);
        let cost = columns.into_iter().find(|name| name.ends_with("CPU"));
        std::iter::once(self.primary.as_str()).chain(cost)
    }

    /// Returns the labels that differ between rows, other than the position on the axis.
    pub(super) fn labels(&self) -> Vec<Label> {
        let differs = |label: &Label| {
            let mut texts = self.rows.iter().map(label.of);
            let first = texts.next();
            texts.any(|text| Some(text) != first)
        };
        LABELS.into_iter().filter(differs).collect()
    }

    /// Returns the name of a row's line in a plot.
    pub(super) fn series_of(&self, row: &Row) -> String {
        let labels = self.labels();
        let texts = labels.iter().map(|label| (label.of)(row)).filter(|text| !text.is_empty());
        std::iter::once(row.over.as_str()).chain(texts).collect::<Vec<_>>().join(" ")
    }

    /// Returns the header of the ratios' column; `None` if there are no plain sockets to compare
    /// with.
    pub(super) fn divisor(&self) -> Option<&'static str> {
        let (compared, plain): (Vec<_>, Vec<_>) =
            self.rows.iter().partition(|row| row.ratio.is_some());
        let all_tcp = plain.iter().all(|row| row.over == Over::TcpSockets.name());
        (!compared.is_empty()).then_some(if all_tcp { "/ TCP" } else { "/ sockets" })
    }
}

impl Row {
    pub(super) fn median(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|value| value.name == name).map(|value| value.median)
    }

    pub(super) fn ratio_text(&self) -> String {
        self.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
    }
}

/// Formats a number with about three significant digits.
pub(super) fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn document() -> Document {
        let machine = Machine {
            cpu: "a <fast> CPU".into(),
            cores: 2,
            kernel: "6.1".into(),
            congestion: "cubic".into(),
        };
        let row = |over: &str, x, median, ratio| Row {
            over: over.into(),
            transport: "tcp".into(),
            congestion: None,
            operation: "send".into(),
            wait: "poll".into(),
            variant: String::new(),
            x,
            values: vec![Measured {
                name: "p50".into(),
                unit: "us".into(),
                median,
                rounds: vec![median],
            }],
            ratio,
        };
        let rows = vec![
            row("rc", 8, 5.25, Some(0.5)),
            row("tcp-sockets", 8, 10.5, None),
            row("rc", 64, 6.0, Some(0.5)),
            row("tcp-sockets", 64, 1234.5, None),
        ];
        Document {
            version: "1.2.3".into(),
            machine,
            settings: Settings {
                rounds: 3,
                cores: vec![0, 1],
                server: "this host".into(),
                congestion: None,
            },
            benchmarks: vec![Table {
                name: "latency".into(),
                about: "About.".into(),
                axis: "size".into(),
                axis_unit: "B".into(),
                primary: "p50".into(),
                rows,
            }],
        }
    }

    #[test]
    fn numbers_have_about_three_digits() {
        assert_eq!([0.0, 1.234, 12.34, 1234.5].map(short), ["0", "1.23", "12.3", "1234"]);
    }

    #[test]
    fn heading_names_machine_and_settings() {
        let heading = document().heading().join("\n");
        for part in ["1.2.3", "Linux 6.1", "server 0, clients 1", "cubic", "3 rounds"] {
            assert!(heading.contains(part), "{part} in {heading}");
        }
    }
}
