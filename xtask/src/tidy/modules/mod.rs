//! Checks the layers of each crate's modules, and the cycles among the modules.
//!
//! The documentation of a crate's root module lists the crate's layers under `# Layers`, in a block
//! of text: one layer a line, the highest first. A module uses modules of its own line and of the
//! lines below. In addition, modules of any depth must not use one another in a cycle. A module
//! that uses its own parent closes no cycle if the parent's file only declares and assembles: no
//! function there has a loop or more than a few statements.

mod graph;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::allowances::{self, Allowance};
use super::crates;
use graph::Graph;

/// The result of checking one crate.
#[derive(Debug)]
pub(super) struct Report {
    name: &'static str,
    layers: Vec<Vec<String>>,
    modules: usize,
    upward: usize,
    cycles: Vec<usize>,
}

impl Report {
    pub(super) fn print(&self, shows_layers: bool) {
        let Self { name, layers, modules, upward, .. } = self;
        let (in_cycles, cycles) = (self.cycles.iter().sum::<usize>(), self.cycles.len());
        println!(
            "{name}: {modules} modules in {} layers, {in_cycles} modules in {cycles} cycles, \
             {upward} uses of higher layers",
            layers.len(),
        );
        for layer in layers.iter().filter(|_| shows_layers) {
            println!("    {}", layer.join(" "));
        }
    }
}

/// Checks all crates.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<Vec<Report>, String> {
    crates::folders()
        .map(|(name, folder)| {
            let source = root.join(folder).join("src");
            let library = source.join("lib.rs");
            let file = if library.is_file() { library } else { source.join("main.rs") };
            check_crate(name, &file, allowances::of(name), findings)
        })
        .collect()
}

fn check_crate(
    name: &'static str,
    root: &Path,
    allowance: Allowance,
    findings: &mut Vec<String>,
) -> Result<Report, String> {
    let graph = Graph::read(root)?;
    let text = fs::read_to_string(root).map_err(|e| format!("{}: {e}", root.display()))?;
    let layers = layers(&text);
    check_list(&graph, &layers, root, findings);

    let edges = graph.edges();
    let layer_of = |module: usize| {
        let first = graph.modules[module].path.first()?;
        layers.iter().position(|layer| layer.contains(first))
    };
    let mut upward = Vec::new();
    for edge in &edges {
        if let (Some(from), Some(to)) = (layer_of(edge.from), layer_of(edge.to))
            && to < from
        {
            let file = graph.modules[edge.from].file.display();
            let (user, used) = (graph.name(edge.from), graph.name(edge.to));
            upward.push(format!("{file}:{}: {user} uses {used} of a higher layer", edge.line));
        }
    }
    let cycles = graph.cycles(&edges);
    let in_cycles = cycles.iter().map(Vec::len).sum();
    let mut cyclic = Vec::new();
    for cycle in &cycles {
        let members: BTreeSet<usize> = cycle.iter().copied().collect();
        cyclic.push(format!("{name}: modules that use one another in a cycle:"));
        for edge in edges.iter().filter(|e| members.contains(&e.from) && members.contains(&e.to)) {
            let file = graph.modules[edge.from].file.display();
            cyclic.push(format!("    {file}:{}: uses {}", edge.line, graph.name(edge.to)));
        }
    }
    let report = Report {
        name,
        layers,
        modules: graph.modules.len(),
        upward: upward.len(),
        cycles: cycles.iter().map(Vec::len).collect(),
    };
    let counts = [
        ("uses of higher layers", allowance.upward, upward.len(), upward),
        ("modules in cycles", allowance.in_cycles, in_cycles, cyclic),
    ];
    for (what, allowed, count, details) in counts {
        allowances::compare(name, what, allowed, count, details, findings);
    }
    Ok(report)
}

/// Returns the layers that a root module's documentation lists, the highest first.
fn layers(text: &str) -> Vec<Vec<String>> {
    let docs = text.lines().map_while(|line| line.strip_prefix("//!"));
    let block = docs.skip_while(|line| line.trim() != "# Layers");
    let block = block.skip_while(|line| !line.trim().starts_with("```")).skip(1);
    block
        .take_while(|line| !line.trim().starts_with("```"))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect()
}

/// Reports modules of the root that are not in exactly one layer, and names in layers that are not
/// modules.
fn check_list(graph: &Graph, layers: &[Vec<String>], root: &Path, findings: &mut Vec<String>) {
    let mut listed = BTreeSet::new();
    for name in layers.iter().flatten() {
        if !listed.insert(name) {
            findings.push(format!("{}: {name} stands in two layers", root.display()));
        }
    }
    let modules: BTreeSet<&String> =
        graph.modules.iter().filter(|module| module.path.len() == 1).map(|m| &m.path[0]).collect();
    for name in modules.difference(&listed) {
        findings.push(format!("{}: {name} is in no layer of `# Layers`", root.display()));
    }
    for name in listed.difference(&modules) {
        findings.push(format!("{}: {name} of `# Layers` is no module", root.display()));
    }
}

#[cfg(test)]
mod tests;
