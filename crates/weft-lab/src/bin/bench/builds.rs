//! Measures two builds of Weft in alternating runs.

use std::path::Path;

use anyhow::Result;
use weft_lab::measure::{Bench, Placement, Tool};
use weft_lab::use_build;

use crate::groups::{Group, Target};
use crate::{Comparison, Series, median};

/// Runs each tool on Weft with the build whose `dist` directory is `before`, and with this one.
pub(crate) fn compare<'a>(
    bench: &Bench<'_>,
    groups: impl Iterator<Item = &'a Group>,
    runs: u32,
    before: &Path,
) -> Result<Vec<Comparison>> {
    let mut tools: Vec<(Placement, Tool)> = Vec::new();
    for group in groups {
        let place = group.placement.unwrap_or(bench.placement);
        for &(tool, _) in group.subjects {
            if !tools.contains(&(place, tool)) {
                tools.push((place, tool));
            }
        }
    }
    let mut comparisons = Vec::new();
    for (place, tool) in tools {
        let shown = if place == bench.placement { String::new() } else { place.to_string() };
        let (mut now, mut then) = (Vec::new(), Vec::new());
        for run in 1..=runs {
            eprintln!("run {run} of {runs}: {tool}");
            use_build(Some(before));
            let earlier = bench.at(place).run(tool);
            use_build(None);
            match earlier {
                Ok(sample) => then.push(sample),
                Err(error) => eprintln!("the build before fails: {error:#}"),
            }
            now.push(bench.at(place).run(tool)?);
        }
        if then.len() < now.len() {
            eprintln!("left out: {tool}: the build before fails");
            continue;
        }
        let ratio = median(now.iter().zip(&then).map(|(now, then)| now.value / then.value));
        let target = Target::no_worse(tool.unit());
        comparisons.push(Comparison {
            unit: tool.unit(),
            weft: Series::new(tool, &now),
            rival: Series { tool: "the build before".to_owned(), ..Series::new(tool, &then) },
            placements: [shown, String::new()],
            ratio,
            target: target.to_string(),
            met: target.is_met(ratio, 0.0),
        });
    }
    Ok(comparisons)
}
