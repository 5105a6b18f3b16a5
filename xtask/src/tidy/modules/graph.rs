//! The modules of a crate, the uses between them, and the cycles of these uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::source::Source;

/// A module with its own file.
#[derive(Debug)]
pub(super) struct Module {
    /// Path from the crate's root; empty for the root itself.
    pub(super) path: Vec<String>,
    pub(super) file: PathBuf,
    source: Source,
}

/// A use of one module by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The line of the first use.
    pub(super) line: usize,
}

/// All modules of a crate. The root comes first.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) modules: Vec<Module>,
    index: BTreeMap<Vec<String>, usize>,
}

impl Graph {
    /// Reads a crate, starting at its root file.
    ///
    /// # Errors
    /// If a file cannot be read, or a module has no file.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut graph = Self { modules: Vec::new(), index: BTreeMap::new() };
        let folder = root.parent().unwrap_or(root);
        graph.add(Vec::new(), root, folder)?;
        Ok(graph)
    }

    fn add(&mut self, path: Vec<String>, file: &Path, folder: &Path) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let source = Source::parse(&text);
        let children = source.children.clone();
        self.index.insert(path.clone(), self.modules.len());
        self.modules.push(Module { path: path.clone(), file: file.to_owned(), source });
        for child in children {
            let inner = folder.join(&child);
            let files = [folder.join(format!("{child}.rs")), inner.join("mod.rs")];
            let found = files.iter().find(|file| file.is_file());
            let found = found.ok_or_else(|| format!("{}: no file of {child}", file.display()))?;
            let child_path: Vec<String> = path.iter().cloned().chain([child]).collect();
            self.add(child_path, found, &inner)?;
        }
        Ok(())
    }

    pub(super) fn name(&self, module: usize) -> String {
        let path = &self.modules[module].path;
        if path.is_empty() { "the root".into() } else { path.join("::") }
    }

    /// Returns the uses between modules, one for each pair.
    pub(super) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            let mut seen = BTreeSet::new();
            for used in &module.source.uses {
                let to = self.resolve(from, &used.path, 0);
                if let Some(to) = to.filter(|&to| to != from && seen.insert(to)) {
                    edges.push(Edge { from, to, line: used.line });
                }
            }
        }
        edges
    }

    /// Returns the module that declares the item that a path in `from` names, or `None` for an item
    /// of another crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        // Stops at imports that refer to each other.
        const DEPTH_MAX: usize = 16;
        if depth > DEPTH_MAX {
            return None;
        }
        let mut current = self.modules[from].path.clone();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => current.clear(),
            Some("self") => {}
            Some("super") => {
                current.pop()?;
            }
            Some(first) => {
                let source = &self.modules[from].source;
                let is_child = source.children.iter().any(|child| child == first);
                if !is_child {
                    let import = source.imports.get(first).filter(|import| *import != path)?;
                    // `use a::b;` and then `b::c` is `a::b::c`.
                    let whole: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
                    return self.resolve(from, &whole, depth + 1);
                }
                return self.descend(current, rest, depth);
            }
            None => return None,
        }
        rest = &rest[1..];
        while let Some("super") = rest.first().map(String::as_str) {
            current.pop()?;
            rest = &rest[1..];
        }
        self.descend(current, rest, depth)
    }

    /// Follows the names in `rest`, starting at the module `current`.
    fn descend(&self, mut current: Vec<String>, rest: &[String], depth: usize) -> Option<usize> {
        for (at, name) in rest.iter().enumerate() {
            let index = *self.index.get(&current)?;
            current.push(name.clone());
            if self.index.contains_key(&current) {
                continue;
            }
            let source = &self.modules[index].source;
            if source.items.contains(name) {
                return Some(index);
            }
            // A re-exported name belongs to the module that declares it.
            if let Some(import) = source.imports.get(name) {
                let whole: Vec<String> = import.iter().chain(&rest[at + 1..]).cloned().collect();
                // A re-exported name of another crate counts as the module's own.
                return self.resolve(index, &whole, depth + 1).or(Some(index));
            }
            let reexported = source.globs.iter().find_map(|glob| {
                let module = self.resolve(index, glob, depth + 1)?;
                self.modules[module].source.items.contains(name).then_some(module)
            });
            return reexported.or(Some(index));
        }
        self.index.get(&current).copied()
    }

    /// Returns whether the edge leads from a module to one of its ancestors whose file only
    /// declares and assembles. Such an edge closes no cycle.
    fn leads_to_assembly(&self, edge: &Edge) -> bool {
        let outer = &self.modules[edge.to];
        self.modules[edge.from].path.starts_with(&outer.path) && !outer.source.has_logic
    }

    /// Returns the cycles: groups of modules that use one another, each sorted.
    pub(super) fn cycles(&self, edges: &[Edge]) -> Vec<Vec<usize>> {
        let edges: Vec<&Edge> = edges.iter().filter(|edge| !self.leads_to_assembly(edge)).collect();
        let reach = |start: usize, forward: bool| {
            let mut found = BTreeSet::from([start]);
            let mut open = vec![start];
            while let Some(at) = open.pop() {
                for edge in &edges {
                    let (from, to) =
                        if forward { (edge.from, edge.to) } else { (edge.to, edge.from) };
                    if from == at && found.insert(to) {
                        open.push(to);
                    }
                }
            }
            found
        };
        let mut cycles = Vec::new();
        let mut done: BTreeSet<usize> = BTreeSet::new();
        for start in 0..self.modules.len() {
            if done.contains(&start) {
                continue;
            }
            let cycle: Vec<usize> =
                reach(start, true).intersection(&reach(start, false)).copied().collect();
            done.extend(&cycle);
            if cycle.len() > 1 {
                cycles.push(cycle);
            }
        }
        cycles
    }
}
