//! The NUMA nodes of a machine, as sysfs shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::limits::{CPUS_MAX, LOWER_DEVICES_MAX};

/// Numbers of processors.
pub type Cpus = BTreeSet<usize>;

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its processors; none if it has only memory.
    pub cpus: Cpus,
    /// The distances from it to other nodes, by their numbers. The kernel counts 10 for a node
    /// itself.
    pub distances: BTreeMap<u32, u32>,
}

/// The nodes of a machine, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology(pub BTreeMap<u32, Node>);

impl Topology {
    /// Reads the topology from a sysfs that is mounted on `sysfs`.
    ///
    /// # Errors
    /// If a file cannot be read, or contains something else than the kernel writes. A kernel
    /// without NUMA has no such directory.
    pub fn read(sysfs: &Path) -> io::Result<Self> {
        let folder = sysfs.join("devices/system/node");
        let mut nodes = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            let text = |file: &str| fs::read_to_string(entry.path().join(file));
            let cpus = cpus(&text("cpulist")?).ok_or_else(|| invalid("cpulist"))?;
            nodes.insert(number, (cpus, text("distance")?));
        }
        // The distances of a node are in the order of the nodes' numbers.
        let numbers: Vec<u32> = nodes.keys().copied().collect();
        let mut all = BTreeMap::new();
        for (number, (cpus, distances)) in nodes {
            let distances: Result<Vec<u32>, _> =
                distances.split_whitespace().map(str::parse).collect();
            let distances = distances.ok().filter(|all| all.len() == numbers.len());
            let distances = distances.ok_or_else(|| invalid("distance"))?;
            let distances = numbers.iter().copied().zip(distances).collect();
            all.insert(number, Node { cpus, distances });
        }
        Ok(Self(all))
    }
}

fn invalid(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{file} of a node is not as expected"))
}

/// Parses a list of processors such as `0-3,8`.
fn cpus(list: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Writes processors as a list such as `0-3,8`.
#[must_use]
pub fn cpu_list(cpus: &Cpus) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

/// Returns the node of a network interface's device. A bond, a bridge or a VLAN has that of the
/// devices below it, if they have the same. `None` if the kernel does not know it.
#[must_use]
pub fn interface_node(sysfs: &Path, interface: &str) -> Option<u32> {
    node_of(&sysfs.join("class/net").join(interface), LOWER_DEVICES_MAX)
}

fn node_of(interface: &Path, levels: u32) -> Option<u32> {
    if let Ok(text) = fs::read_to_string(interface.join("device/numa_node")) {
        // It is -1 if the kernel does not know it.
        return text.trim().parse().ok();
    }
    let levels = levels.checked_sub(1)?;
    let mut found = None;
    for entry in fs::read_dir(interface).ok()? {
        let entry = entry.ok()?;
        if entry.file_name().to_string_lossy().starts_with("lower_") {
            let node = node_of(&entry.path(), levels)?;
            if *found.get_or_insert(node) != node {
                return None;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(sysfs: &Path, file: &str, text: &str) {
        let path = sysfs.join(file);
        fs::create_dir_all(path.parent().expect("beneath")).expect("room");
        fs::write(path, text).expect("room");
    }

    #[test]
    fn nodes_are_read_with_gaps_in_their_numbers() {
        let sysfs = tempfile::tempdir().expect("a folder");
        assert!(Topology::read(sysfs.path()).is_err(), "a kernel without NUMA");
        for (node, cpus, distances) in [(0, "0-1,4\n", "10 20 30\n"), (2, "2-3", "20 10 30")] {
            write(sysfs.path(), &format!("devices/system/node/node{node}/cpulist"), cpus);
            write(sysfs.path(), &format!("devices/system/node/node{node}/distance"), distances);
        }
        write(sysfs.path(), "devices/system/node/node7/cpulist", "\n");
        write(sysfs.path(), "devices/system/node/node7/distance", "30 30 10\n");
        write(sysfs.path(), "devices/system/node/online", "0,2,7\n");
        let Topology(nodes) = Topology::read(sysfs.path()).expect("a topology");
        assert_eq!(nodes[&0].cpus, Cpus::from([0, 1, 4]));
        assert_eq!(nodes[&2].distances, BTreeMap::from([(0, 20), (2, 10), (7, 30)]));
        assert!(nodes[&7].cpus.is_empty());
        write(sysfs.path(), "devices/system/node/node7/distance", "30 30\n");
        assert!(Topology::read(sysfs.path()).is_err());
    }

    #[test]
    fn this_machine_can_be_read() {
        if let Ok(Topology(nodes)) = Topology::read(Path::new("/sys")) {
            assert!(nodes.values().any(|node| !node.cpus.is_empty()));
        }
    }

    #[test]
    fn interface_has_the_node_of_its_device_or_of_those_below() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text| write(sysfs.path(), &format!("class/net/{file}"), text);
        write("eth0/device/numa_node", "1\n");
        write("eth1/device/numa_node", "-1\n");
        write("bond0/lower_eth0/device/numa_node", "1\n");
        write("bond0/lower_eth2/device/numa_node", "1\n");
        write("vlan/lower_bond0/lower_eth0/device/numa_node", "1\n");
        write("bond1/lower_eth0/device/numa_node", "1\n");
        write("bond1/lower_eth3/device/numa_node", "0\n");
        write("veth/mtu", "1500\n");
        for (interface, node) in [
            ("eth0", Some(1)),
            ("eth1", None),
            ("bond0", Some(1)),
            ("vlan", Some(1)),
            ("bond1", None),
            ("veth", None),
            ("none", None),
        ] {
            assert_eq!(interface_node(sysfs.path(), interface), node, "{interface}");
        }
    }

    #[test]
    fn lists_that_the_kernel_does_not_write_are_refused() {
        for list in ["3-1", "a", "1-", "-1", "0-99999999999", "0 1", "4096"] {
            assert_eq!(cpus(list), None, "{list}");
        }
        assert_eq!(cpus("\n"), Some(Cpus::new()));
    }

    proptest! {
        #[test]
        fn lists_round_trip(all in prop::collection::btree_set(0..CPUS_MAX, 0..40)) {
            prop_assert_eq!(cpus(&cpu_list(&all)), Some(all));
        }
    }
}
