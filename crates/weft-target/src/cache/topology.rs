//! The NUMA nodes of a machine: an input, so that a machine can be described in a file.

use std::fs;
use std::path::Path;

use thiserror::Error;

use crate::limits::{CPUS_MAX, NODES_MAX};

/// Where the kernel describes the nodes of this machine.
const NODES: &str = "/sys/devices/system/node";

/// The nodes of a machine that have processors. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The processors of each node, by their numbers.
    nodes: Vec<Vec<usize>>,
}

/// A description that cannot be understood.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct TopologyError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Topology {
    /// A machine whose processors all reach its memory in the same way.
    #[must_use]
    pub fn of_one_node() -> Self {
        Self { nodes: vec![Vec::new()] }
    }

    /// This machine, as the kernel describes it. One node if the kernel does not.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::of_directory(Path::new(NODES)).unwrap_or_else(Self::of_one_node)
    }

    fn of_directory(directory: &Path) -> Option<Self> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(directory).ok()?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) else {
                continue;
            };
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            let cpus = cpus(list.trim())?;
            // A node that has only memory runs no thread.
            if !cpus.is_empty() {
                nodes.push((number, cpus));
            }
        }
        nodes.sort();
        nodes.truncate(NODES_MAX);
        // Without a choice of nodes no thread is bound to one.
        (nodes.len() > 1).then(|| Self { nodes: nodes.into_iter().map(|(_, cpus)| cpus).collect() })
    }

    /// Parses a description: a line `node cpus=LIST` for each node, where a list is as in
    /// `0-3,8`. Empty lines and those that begin with `#` are left out.
    ///
    /// # Errors
    ///
    /// If a line is another one, if a processor is at two nodes, or if there is no node or too
    /// many.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let mut nodes: Vec<Vec<usize>> = Vec::new();
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            last = index + 1;
            let error = |what| TopologyError { line: index + 1, what };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let list = line
                .strip_prefix("node cpus=")
                .ok_or_else(|| error("it is not `node cpus=LIST`"))?;
            let cpus = cpus(list).filter(|cpus| !cpus.is_empty());
            let cpus = cpus.ok_or_else(|| error("a list of processors is like 0-3,8"))?;
            if nodes.iter().flatten().any(|cpu| cpus.contains(cpu)) {
                return Err(error("a processor is at two nodes"));
            }
            if nodes.len() == NODES_MAX {
                return Err(error("there are too many nodes"));
            }
            nodes.push(cpus);
        }
        if nodes.is_empty() {
            return Err(TopologyError { line: last, what: "there is no node" });
        }
        Ok(Self { nodes })
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The processors of a node. Empty if threads of the node need not be bound.
    #[must_use]
    pub fn cpus(&self, node: usize) -> &[usize] {
        &self.nodes[node]
    }

    /// The processors of all nodes.
    #[must_use]
    pub fn all(&self) -> Vec<Vec<usize>> {
        self.nodes.clone()
    }

    /// The node of a processor.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: usize) -> Option<usize> {
        self.nodes.iter().position(|cpus| cpus.contains(&cpu))
    }
}

/// The numbers of a list such as `0-3,8`. An empty list has none.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_described_by_a_line_for_each_node() {
        let two = Topology::parse("# two\n\nnode cpus=0-1,4\nnode cpus=2-3\n").unwrap();
        assert_eq!((two.nodes(), two.cpus(0), two.cpus(1)), (2, &[0, 1, 4][..], &[2, 3][..]));
        assert_eq!(
            (two.node_of_cpu(3), two.node_of_cpu(4), two.node_of_cpu(5)),
            (Some(1), Some(0), None)
        );
        for (text, line) in [
            ("", 0),
            ("#\n", 1),
            ("node cpus=", 1),
            ("node cpus=3-1", 1),
            ("node cpus=0\nnode cpus=0", 2),
            ("node cpus=1-99999999999", 1),
            ("node cpus=-1", 1),
            ("\nnodes", 2),
        ] {
            assert_eq!(Topology::parse(text).unwrap_err().line, line, "{text:?}");
        }
    }

    #[test]
    fn nodes_are_read_from_the_kernel() {
        let folder = tempfile();
        for (node, list) in [("node1", "2-3\n"), ("node0", "0-1\n"), ("node2", "\n"), ("power", "")]
        {
            fs::create_dir(folder.join(node)).unwrap();
            fs::write(folder.join(node).join("cpulist"), list).unwrap();
        }
        let read = Topology::of_directory(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read, Topology::parse("node cpus=0-1\nnode cpus=2-3").unwrap());
        assert_eq!(Topology::of_directory(Path::new("/nonexistent")), None);
        assert!(Topology::of_this_machine().nodes() > 0);
    }

    fn tempfile() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("weft-nodes-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }
}
