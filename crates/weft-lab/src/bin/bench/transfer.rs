//! `make bench BENCH=--transfer`: times copies by `weft cp` and by other programs. All files are in
//! memory.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use weft_lab::copies::{Load, Place, Sample, Tool};
use weft_lab::{NamespacePair, PathSettings, machine, namespaces_denied};

use crate::plots::{Bar, Figure, page};
use crate::{empty_table, interleave, median, print_heading, show};

/// The round trip of the long path, and the share of packets that the lossy one loses.
const ROUND_TRIP: Duration = Duration::from_millis(50);
const LOSS: f64 = 0.001;
const MIB: usize = 1 << 20;

/// The path between the two ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Loopback,
    /// Two network namespaces.
    Between,
    /// A round trip of 50 ms, and BBR at both ends.
    Long,
    /// The same, which loses packets, and Reno at both ends: namespaces may not have CUBIC as their
    /// own.
    Lossy,
}

impl Path {
    const ALL: [Self; 4] = [Self::Loopback, Self::Between, Self::Long, Self::Lossy];

    fn pair(self) -> Result<Option<NamespacePair>> {
        let settings = PathSettings { round_trip: ROUND_TRIP, loss: 0.0, seed: 1 };
        match self {
            Self::Loopback => Ok(None),
            Self::Between => NamespacePair::new().map(Some),
            Self::Long => NamespacePair::over_long_path(&settings, "bbr").map(Some),
            Self::Lossy => {
                let settings = PathSettings { loss: LOSS, ..settings };
                NamespacePair::over_long_path(&settings, "reno").map(Some)
            }
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Between => "two namespaces",
            Self::Long => "50 ms",
            Self::Lossy => "50 ms, 0.1 % lost",
        })
    }
}

/// Weft's tool, and the tools that it is compared with, each with its load.
#[derive(Debug)]
struct Group {
    path: Path,
    weft: (Tool, Load),
    rivals: Vec<(Tool, Load)>,
}

/// Returns the comparisons. `large` is the load of one file.
fn groups(large: Load) -> Vec<Group> {
    use Tool::{
        Cp, Cubic, GridFtp, Iperf3, Nuttcp, Rclone, RsyncBySsh, RsyncToDaemon, Scp, TarBySsh, Weft,
        WeftByMemory, WeftDirect, WeftInClear, WeftRelay, WeftToNull, WeftToServer,
    };
    let group = |path, weft, load, rivals: &[Tool]| Group {
        path,
        weft: (weft, load),
        rivals: rivals.iter().map(|&rival| (rival, load)).collect(),
    };
    let small = [Load::Small(20_000), Load::Small(100_000)];
    // On a long path slow tools copy less, because their rate does not depend on the size.
    let [slow, lossy] = [256, 16].map(|mib| Load::Large(mib * MIB));
    // Fast ones copy more, so that connecting does not count.
    let long = match large {
        Load::Large(len) => Load::Large(2 * len),
        Load::Small(_) | Load::Changed(_) => large,
    };
    let changed = Load::Changed(256 * MIB);
    vec![
        group(Path::Loopback, Weft, large, &[Cp]),
        group(Path::Loopback, Weft, small[0], &[Cp]),
        group(Path::Loopback, WeftByMemory, large, &[WeftToServer, WeftInClear]),
        group(Path::Loopback, WeftToNull, large, &[Iperf3]),
        group(Path::Between, WeftToNull, large, &[Iperf3]),
        group(Path::Between, WeftInClear, large, &[WeftToServer, RsyncToDaemon, GridFtp]),
        group(Path::Between, WeftToServer, changed, &[RsyncToDaemon]),
        group(Path::Between, WeftDirect, large, &[WeftRelay]),
        group(Path::Between, WeftDirect, small[0], &[WeftRelay]),
        group(
            Path::Loopback,
            WeftToServer,
            large,
            &[RsyncToDaemon, RsyncBySsh, TarBySsh, Scp, Rclone, GridFtp, Iperf3],
        ),
        group(Path::Loopback, WeftToServer, small[0], &[Scp]),
        group(Path::Loopback, WeftToServer, small[1], &[RsyncToDaemon, RsyncBySsh, TarBySsh, Scp]),
        Group {
            path: Path::Long,
            weft: (WeftToServer, long),
            rivals: vec![
                (WeftInClear, long),
                (Scp, slow),
                (RsyncBySsh, slow),
                (Rclone, slow),
                (GridFtp, long),
                (Nuttcp, long),
            ],
        },
        Group {
            path: Path::Lossy,
            weft: (WeftToServer, long),
            rivals: vec![(Cubic, lossy), (Scp, lossy), (GridFtp, slow)],
        },
    ]
}

#[derive(Debug, Serialize)]
struct Comparison {
    #[serde(serialize_with = "as_text")]
    path: Path,
    weft: Series,
    rival: Series,
    /// Median over the runs of Weft's rate divided by the rival's: above 1, Weft is faster.
    ratio: f64,
}

fn as_text<T: fmt::Display, S: serde::Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(it)
}

#[derive(Debug, Serialize)]
struct Series {
    tool: String,
    #[serde(serialize_with = "as_text")]
    load: Load,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    runs: u32,
    comparisons: Vec<Comparison>,
}

/// A tool with its load.
#[derive(Clone, Copy, Debug)]
struct Measured(Tool, Load);

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.0, self.1)
    }
}

impl Group {
    fn measured(&self) -> Vec<Measured> {
        let all = [&[self.weft], &self.rivals[..]].concat();
        all.into_iter().map(|(tool, load)| Measured(tool, load)).collect()
    }

    fn measure(&self, place: &Place, runs: u32) -> Result<Vec<Comparison>> {
        let measured = self.measured();
        let samples = interleave(runs, self.path, &measured, |Measured(tool, load)| {
            place.measure(load, tool)
        })?;
        let series = |index: usize| Series {
            tool: measured[index].0.to_string(),
            load: measured[index].1,
            samples: samples[index].clone(),
        };
        Ok((1..measured.len())
            .map(|rival| {
                let size = measured[0].1.amount() / measured[rival].1.amount();
                let pairs = samples[0].iter().zip(&samples[rival]);
                let ratio = median(pairs.map(|(weft, rival)| size * rival.seconds / weft.seconds));
                Comparison { path: self.path, weft: series(0), rival: series(rival), ratio }
            })
            .collect())
    }
}

/// Measures the comparisons whose path, load or tools contain `only`, prints the report, and
/// writes a page with plots if that is wanted.
pub(crate) fn run(
    runs: u32,
    only: Option<&str>,
    html: Option<&std::path::Path>,
    is_json: bool,
) -> Result<()> {
    let mut groups = groups(Load::large()?);
    if let Some(text) = only {
        let has = |path: Path, measured| format!("{path}: {measured}").contains(text);
        for group in &mut groups {
            let (path, (tool, load)) = (group.path, group.weft);
            if !has(path, Measured(tool, load)) {
                group.rivals.retain(|&(tool, load)| has(path, Measured(tool, load)));
            }
        }
        groups.retain(|group| !group.rivals.is_empty());
    }
    let mut comparisons = Vec::new();
    for path in Path::ALL {
        let groups: Vec<&Group> = groups.iter().filter(|group| group.path == path).collect();
        if groups.is_empty() {
            continue;
        }
        if path != Path::Loopback
            && let Some(why) = namespaces_denied()
        {
            eprintln!("left out: {path}: {why}");
            continue;
        }
        let loads = groups.iter().flat_map(|group| group.measured());
        let loads: BTreeSet<Load> = loads.map(|Measured(_, load)| load).collect();
        let place = Place::between(path.pair()?, &loads.into_iter().collect::<Vec<_>>())?;
        for group in groups {
            comparisons.extend(group.measure(&place, runs)?);
        }
    }
    let report = Report { machine: machine::describe(), runs, comparisons };
    if let Some(file) = html {
        fs::write(file, report.page()).with_context(|| file.display().to_string())?;
    }
    show(&report, is_json, Report::print)
}

impl Report {
    fn page(&self) -> String {
        let mut figures: Vec<Figure> = Vec::new();
        for Comparison { path, weft, rival, .. } in &self.comparisons {
            let title = format!("{path}: {}", weft.load);
            let is_next = |figure: &Figure| {
                figure.title == title
                    && figure.bars.first().is_some_and(|bar| bar.tool == weft.name())
            };
            if !figures.last().is_some_and(is_next) {
                figures.push(Figure { title, bars: vec![weft.bar()] });
            }
            if let Some(figure) = figures.last_mut() {
                figure.bars.push(rival.bar());
            }
        }
        let about = format!("{}; {} interleaved runs", self.machine, self.runs);
        page(&about, &figures)
    }

    fn print(&self) {
        let path = "files in memory; both ends free to move between cores";
        print_heading(&self.machine, path, self.runs);
        let mut table = empty_table();
        table.set_header([
            "path",
            "load",
            "on Weft",
            "result",
            "CPU",
            "rival",
            "result",
            "CPU",
            "Weft / rival",
        ]);
        for Comparison { path, weft, rival, ratio } in &self.comparisons {
            let of_rival = match rival.load == weft.load {
                true => rival.tool.clone(),
                false => format!("{}, {}", rival.tool, rival.load),
            };
            table.add_row([
                path.to_string(),
                weft.load.to_string(),
                weft.tool.clone(),
                weft.rate(),
                weft.cpu(),
                of_rival,
                rival.rate(),
                rival.cpu(),
                format!("{ratio:.2}"),
            ]);
        }
        println!("{table}");
        println!("\nCPU: processor time of both ends, start and end included.");
    }
}

impl Series {
    fn name(&self) -> String {
        self.tool.replace('`', "")
    }

    fn bar(&self) -> Bar {
        let rates = self.samples.iter().map(|it| self.load.amount() / it.seconds);
        let range =
            [rates.clone().fold(f64::INFINITY, f64::min), rates.clone().fold(0.0, f64::max)];
        let text = format!("{}, CPU {}", self.rate(), self.cpu());
        Bar { tool: self.name(), rate: median(rates), range, text }
    }

    fn rate(&self) -> String {
        self.load.show(median(self.samples.iter().map(|it| it.seconds)))
    }

    fn cpu(&self) -> String {
        self.load.show_cpu(median(self.samples.iter().map(|it| it.cpu_seconds)))
    }
}
