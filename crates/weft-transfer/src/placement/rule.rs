//! The rule that decides where a copy runs.

use std::fmt;

use super::topology::{Cpus, Node, Topology, cpu_list};

/// The network device of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name of its interface.
    pub name: String,
    /// Its node, if the kernel knows it.
    pub node: Option<u32>,
}

/// Where a copy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Where the kernel puts its threads.
    Anywhere(Reason),
    /// On some nodes.
    Bound {
        /// The name of the device's interface.
        device: String,
        /// The nodes, that of the device first.
        nodes: Vec<u32>,
        /// All their processors.
        cpus: Cpus,
    },
}

/// Why a copy is not bound to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The copy has no network device.
    NoDevice,
    /// The machine has one node, or the kernel shows none.
    OneNode,
    /// The process may not use all processors, so somebody has placed it.
    Chosen,
    /// The kernel does not know the node of this device.
    UnknownNode(String),
    /// The copy needs the processors of all nodes.
    AllNodes,
    /// The kernel refuses, with this error.
    Refused(String),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound { device, nodes, cpus } => {
                write!(f, "{}, those of node {}", cpu_list(cpus), nodes[0])?;
                for node in &nodes[1..] {
                    write!(f, " and {node}")?;
                }
                write!(f, ", as {device} is on node {}", nodes[0])
            }
            Self::Anywhere(reason) => write!(f, "all, as {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("the data goes through no network device of this copy"),
            Self::OneNode => f.write_str("this machine has one NUMA node"),
            Self::Chosen => f.write_str("this process is restricted to some of them already"),
            Self::UnknownNode(device) => write!(f, "the NUMA node of {device} is not known"),
            Self::AllNodes => f.write_str("the threads need those of all NUMA nodes"),
            Self::Refused(error) => write!(f, "the kernel does not bind threads: {error}"),
        }
    }
}

/// Decides where a copy runs that would have so many threads for files.
///
/// It is bound to the node of its device. If that has fewer processors than the copy has threads
/// for files, the nearest nodes are added, until there are enough or there are no others. A
/// process that may not use all processors stays as it is.
#[must_use]
pub fn place(
    topology: &Topology,
    device: Option<&Device>,
    allowed: &Cpus,
    threads: usize,
) -> Placement {
    let Some(device) = device else { return Placement::Anywhere(Reason::NoDevice) };
    let all = topology.0.iter().filter(|(_, node)| !node.cpus.is_empty());
    let mut nearest: Vec<(&u32, &Node)> = all.collect();
    if nearest.len() < 2 {
        return Placement::Anywhere(Reason::OneNode);
    }
    if nearest.iter().any(|(_, node)| !node.cpus.is_subset(allowed)) {
        return Placement::Anywhere(Reason::Chosen);
    }
    let own = device.node.and_then(|number| topology.0.get_key_value(&number));
    let Some((number, own)) = own.filter(|(_, node)| !node.cpus.is_empty()) else {
        return Placement::Anywhere(Reason::UnknownNode(device.name.clone()));
    };
    nearest.sort_by_key(|(other, _)| {
        (*other != number, own.distances.get(other).copied().unwrap_or(u32::MAX), **other)
    });
    let (mut nodes, mut cpus, count) = (Vec::new(), Cpus::new(), nearest.len());
    for (number, node) in nearest {
        if cpus.len() >= threads && !nodes.is_empty() {
            break;
        }
        nodes.push(*number);
        cpus.extend(&node.cpus);
    }
    if nodes.len() == count {
        return Placement::Anywhere(Reason::AllNodes);
    }
    Placement::Bound { device: device.name.clone(), nodes, cpus }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// Returns nodes with these numbers of processors, in a row: the distance grows with the
    /// difference of the numbers.
    fn row(lens: &[usize]) -> Topology {
        let (mut nodes, mut next) = (BTreeMap::new(), 0);
        for (number, len) in (0..).zip(lens) {
            let distances = (0..lens.len() as u32).map(|to| (to, 10 + 10 * to.abs_diff(number)));
            let cpus = (next..next + len).collect();
            nodes.insert(number, Node { cpus, distances: distances.collect() });
            next += len;
        }
        Topology(nodes)
    }

    fn all(topology: &Topology) -> Cpus {
        topology.0.values().flat_map(|node| node.cpus.iter().copied()).collect()
    }

    fn device(node: impl Into<Option<u32>>) -> Device {
        Device { name: "eth0".into(), node: node.into() }
    }

    fn placed(topology: &Topology, node: impl Into<Option<u32>>, threads: usize) -> Placement {
        place(topology, Some(&device(node)), &all(topology), threads)
    }

    fn bound(nodes: &[u32], cpus: impl IntoIterator<Item = usize>) -> Placement {
        let cpus = cpus.into_iter().collect();
        Placement::Bound { device: "eth0".into(), nodes: nodes.to_vec(), cpus }
    }

    #[test]
    fn two_nodes_have_the_copy_where_the_device_is() {
        let two = row(&[16, 16]);
        assert_eq!(placed(&two, 0, 8), bound(&[0], 0..16));
        assert_eq!(placed(&two, 1, 8), bound(&[1], 16..32));
        let text = "16-31, those of node 1, as eth0 is on node 1";
        assert_eq!(placed(&two, 1, 8).to_string(), text);
    }

    #[test]
    fn four_small_nodes_are_joined_by_distance() {
        let four = row(&[4, 4, 4, 4]);
        assert_eq!(placed(&four, 3, 8), bound(&[3, 2], 8..16));
        assert_eq!(placed(&four, 1, 12), bound(&[1, 0, 2], 0..12));
        assert_eq!(placed(&four, 1, 13), Placement::Anywhere(Reason::AllNodes));
        let text = "8-15, those of node 3 and 2, as eth0 is on node 3";
        assert_eq!(placed(&four, 3, 8).to_string(), text);
        // A node with memory only.
        let with_memory = row(&[4, 0, 4, 4]);
        assert_eq!(placed(&with_memory, 0, 8), bound(&[0, 2], 0..8));
    }

    #[test]
    fn doubt_leaves_the_copy_where_it_is() {
        let two = row(&[8, 8]);
        let anywhere = Placement::Anywhere;
        assert_eq!(placed(&row(&[16]), 0, 8), anywhere(Reason::OneNode));
        assert_eq!(placed(&Topology::default(), 0, 8), anywhere(Reason::OneNode));
        assert_eq!(placed(&row(&[8, 0]), 0, 8), anywhere(Reason::OneNode));
        for node in [None, Some(2)] {
            assert_eq!(placed(&two, node, 8), anywhere(Reason::UnknownNode("eth0".into())));
        }
        assert_eq!(placed(&row(&[8, 0, 8]), 1, 8), anywhere(Reason::UnknownNode("eth0".into())));
        assert_eq!(place(&two, None, &all(&two), 8), anywhere(Reason::NoDevice));
        let some = (0..15).collect();
        assert_eq!(place(&two, Some(&device(0)), &some, 8), anywhere(Reason::Chosen));
    }

    proptest! {
        #[test]
        fn bound_copies_have_whole_near_nodes_and_enough_processors(
            lens in prop::collection::vec(0_usize..6, 1..6),
            node in 0_u32..6,
            threads in 1_usize..9,
        ) {
            let topology = row(&lens);
            let placement = placed(&topology, node, threads);
            prop_assert_eq!(&placement, &placed(&topology, node, threads));
            if let Placement::Bound { nodes, cpus, .. } = placement {
                prop_assert_eq!(nodes[0], node);
                prop_assert!(cpus.len() >= threads);
                prop_assert!(cpus.len() < all(&topology).len());
                let distance = |other: &u32| other.abs_diff(node);
                let farthest = nodes.iter().map(distance).max();
                for (number, Node { cpus: own, .. }) in &topology.0 {
                    let is_in = !own.is_empty() && own.is_subset(&cpus);
                    prop_assert_eq!(nodes.contains(number), is_in);
                    if !own.is_empty() && !nodes.contains(number) {
                        prop_assert!(Some(distance(number)) >= farthest);
                    }
                }
                // The last node was needed.
                let last = nodes.last().map_or(0, |last| topology.0[last].cpus.len());
                prop_assert!(nodes.len() == 1 || cpus.len() - last < threads);
            }
        }
    }
}
