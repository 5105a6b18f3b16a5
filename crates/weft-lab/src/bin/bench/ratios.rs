//! `--ratios FILE`: fails if a row is much worse than the ratio on record.
//!
//! The file has a line for each row: the ratio of Weft's result to the rival's, and the row's name.
//! Lines that begin with `#` are comments.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use weft_lab::measure::{Bench, Unit};

use crate::groups::{GROUPS_OF_ONE_HOST, GROUPS_OF_SOCKETS, Group};
use crate::{Comparison, at, compare};

/// How much worse than on record a ratio may be.
const TOLERANCE: f64 = 1.3;
/// A row fails if it is that much worse in so many tries.
const TRIES: u32 = 3;

/// A ratio on record.
#[derive(Debug, Clone, PartialEq)]
struct Recorded {
    ratio: f64,
    row: String,
}

/// The ratios found for a row that is on record.
#[derive(Debug)]
struct Found {
    recorded: Recorded,
    ratios: Vec<f64>,
    is_met: bool,
}

impl Found {
    fn print(&self) {
        let Self { recorded: Recorded { ratio, row }, ratios, is_met } = self;
        let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
        let result = if *is_met { "" } else { ", WORSE" };
        println!("{row}: {} (on record: {ratio}){result}", ratios.join(", "));
    }
}

impl Comparison {
    /// Returns the name of its row in a file of ratios.
    fn row(&self) -> String {
        let [weft, rival] = &self.placements;
        format!("{} | {}", at(&self.weft.tool, weft), at(&self.rival.tool, rival))
    }
}

/// Returns the name that [`Comparison::row`] would have for each subject of a group.
fn rows_of(group: &Group, bench: &Bench<'_>) -> impl Iterator<Item = String> {
    let [weft, rival] = group.placements(bench.placement);
    let rival = at(&group.baseline.to_string(), &rival);
    group
        .subjects
        .iter()
        .map(move |(tool, _)| format!("{} | {rival}", at(&tool.to_string(), &weft)))
}

/// Measures the rows that `file` names, those that are worse up to three times.
pub(crate) fn check(bench: &Bench<'_>, runs: u32, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let recorded = parse(&text)?;
    let mut found = Vec::new();
    for group in GROUPS_OF_SOCKETS.iter().chain(&GROUPS_OF_ONE_HOST) {
        let rows: Vec<String> = rows_of(group, bench).collect();
        let wanted: Vec<_> = recorded.iter().filter(|one| rows.contains(&one.row)).collect();
        if wanted.is_empty() {
            continue;
        }
        if let Some(why) = group.baseline.denied() {
            eprintln!("left out: {}: {why}", group.baseline);
            continue;
        }
        let of_group = check_group(bench, group, runs, &wanted)?;
        of_group.iter().for_each(Found::print);
        found.extend(of_group);
    }
    let worse = found.iter().filter(|row| !row.is_met).count();
    ensure!(worse == 0, "{worse} of {} rows are worse by more than 30 %", found.len());
    Ok(())
}

fn check_group(
    bench: &Bench<'_>,
    group: &Group,
    runs: u32,
    wanted: &[&Recorded],
) -> Result<Vec<Found>> {
    let new = |&recorded: &&Recorded| Found {
        recorded: recorded.clone(),
        ratios: Vec::new(),
        is_met: false,
    };
    let mut found: Vec<Found> = wanted.iter().map(new).collect();
    for _ in 0..TRIES {
        for comparison in compare(bench, group, runs)? {
            let row = comparison.row();
            let of_row = |one: &&mut Found| !one.is_met && one.recorded.row == row;
            if let Some(one) = found.iter_mut().find(of_row) {
                one.ratios.push(comparison.ratio);
                one.is_met = !is_worse(comparison.unit, comparison.ratio, one.recorded.ratio);
            }
        }
        if found.iter().all(|one| one.is_met) {
            break;
        }
    }
    Ok(found)
}

/// Whether a ratio is much worse than the one on record.
fn is_worse(unit: Unit, ratio: f64, recorded: f64) -> bool {
    match unit {
        Unit::BytesPerSecond | Unit::MessagesPerSecond => ratio * TOLERANCE < recorded,
        Unit::Nanoseconds => ratio > recorded * TOLERANCE,
    }
}

fn parse(text: &str) -> Result<Vec<Recorded>> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let recorded = lines.map(|line| {
        let (ratio, row) = line.split_once(' ').with_context(|| format!("no row in {line:?}"))?;
        let ratio: f64 = ratio.parse().with_context(|| format!("no ratio in {line:?}"))?;
        ensure!(ratio.is_finite() && ratio > 0.0, "no ratio in {line:?}");
        Ok(Recorded { ratio, row: row.trim().to_owned() })
    });
    recorded.collect()
}

#[cfg(test)]
mod tests {
    use weft_lab::Stage;
    use weft_lab::measure::Placement;

    use super::*;

    const ON_RECORD: &str = include_str!("../../../../../scripts/ratios.txt");

    #[test]
    fn each_row_on_record_is_measured() {
        let bench = Bench { stage: &Stage::loopback(), placement: Placement::Pinned };
        let groups = || GROUPS_OF_SOCKETS.iter().chain(&GROUPS_OF_ONE_HOST);
        let rows: Vec<String> = groups().flat_map(|group| rows_of(group, &bench)).collect();
        let recorded = parse(ON_RECORD).expect("a file of ratios");
        assert!(!recorded.is_empty());
        for Recorded { row, .. } in recorded {
            assert_eq!(rows.iter().filter(|one| **one == row).count(), 1, "{row:?} in {rows:#?}");
        }
    }

    #[test]
    fn lower_rate_and_longer_time_are_worse() {
        for rate in [Unit::BytesPerSecond, Unit::MessagesPerSecond] {
            assert!(is_worse(rate, 1.53, 2.0));
            assert!(!is_worse(rate, 1.54, 2.0) && !is_worse(rate, 9.0, 2.0));
        }
        assert!(is_worse(Unit::Nanoseconds, 0.131, 0.1));
        assert!(!is_worse(Unit::Nanoseconds, 0.129, 0.1));
        assert!(!is_worse(Unit::Nanoseconds, 0.01, 0.1));
    }

    #[test]
    fn lines_without_a_ratio_or_a_row_are_refused() {
        assert_eq!(
            parse("# comment\n\n0.5 a | b, c\n").expect("a row"),
            [Recorded { ratio: 0.5, row: "a | b, c".to_owned() }]
        );
        for text in ["x a | b", "0.5", "0 a | b", "-1 a | b", "nan a | b", "inf a | b"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
