//! Machines with several nodes, as files describe them: where the blocks of requests are. The
//! numbers point in the direction of the published ones; there is no such machine here.

use proptest::prelude::*;
use weft_testing::seeds;

use super::*;
use crate::limits::{CACHE_BLOCK_LEN, CACHE_GROUP, PARTITIONS_PER_NODE};

const TWO: &str = include_str!("machines/two.txt");
const FOUR: &str = include_str!("machines/four.txt");
/// Gigabytes a second from the memory of the own node, and from that of others, of the machine with
/// four nodes in the published measurements.
const LOCAL: f64 = 18.9;
const REMOTE: f64 = 3.2;

fn layout(machine: &str) -> Layout {
    let nodes = Topology::parse(machine).unwrap().nodes();
    Layout {
        block_len: CACHE_BLOCK_LEN,
        group: CACHE_GROUP,
        partitions_per_node: PARTITIONS_PER_NODE,
        nodes,
    }
}

/// The bytes of a request at each node.
fn shares(layout: &Layout, unit: u32, range: Range<u64>) -> Vec<u64> {
    let mut shares = vec![0; layout.nodes];
    for piece in layout.pieces(range) {
        shares[layout.node(layout.partition(Key { unit, number: piece.number }))] +=
            piece.len as u64;
    }
    shares
}

fn any_layout() -> impl Strategy<Value = Layout> {
    (1..=8_usize, 1..=8_usize, 1..=40_u64, 9..=16_u32).prop_map(
        |(nodes, partitions_per_node, group, shift)| Layout {
            block_len: 1 << shift,
            group,
            partitions_per_node,
            nodes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The pieces of a request are the request, the chosen node has most of it, and few partitions
    /// have it.
    #[test]
    fn a_request_is_divided_by_blocks_and_gathered_where_most_of_it_is(
        layout in any_layout(),
        unit in 0..9_u32,
        start in 0..1_u64 << 40,
        len in 0..1_u64 << 20,
    ) {
        let range = start..start + len;
        let mut end = range.start;
        let mut partitions = HashSet::new();
        let mut blocks = 0;
        for piece in layout.pieces(range.clone()) {
            prop_assert_eq!(piece.number * layout.block_len as u64 + piece.at as u64, end);
            prop_assert!(piece.len > 0 && piece.at + piece.len <= layout.block_len);
            end += piece.len as u64;
            partitions.insert(layout.partition(Key { unit, number: piece.number }));
            blocks += 1;
        }
        prop_assert_eq!(end, range.end);
        let partitions_max = u64::div_ceil(u64::saturating_sub(blocks, 1), layout.group) + 1;
        prop_assert!(partitions.len() as u64 <= partitions_max);
        let shares = shares(&layout, unit, range.clone());
        prop_assert_eq!(shares.iter().sum::<u64>(), len);
        let closest = layout.closest(unit, range);
        prop_assert_eq!(shares[closest], *shares.iter().max().unwrap());
    }
}

/// What 2,000 requests of random places find.
struct Found {
    /// The share of bytes at the node that gathers them, if that is the closest one.
    closest: f64,
    /// The same if a thread of any node does.
    random: f64,
    /// Partitions that a request uses.
    partitions: f64,
}

fn simulate(layout: &Layout, len: u64, seed: u64) -> Found {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let (mut closest, mut other, mut partitions) = (0, 0, 0);
    let count = 2_000;
    for _ in 0..count {
        let unit = random(8) as u32;
        let start = random(1 << 26) * 512;
        let range = start..start + len;
        let shares = shares(layout, unit, range.clone());
        closest += shares[layout.closest(unit, range.clone())];
        other += shares[random(layout.nodes as u64) as usize];
        let used: HashSet<usize> = layout
            .pieces(range)
            .map(|piece| layout.partition(Key { unit, number: piece.number }))
            .collect();
        partitions += used.len();
    }
    let share = |bytes: u64| bytes as f64 / (len * count) as f64;
    let partitions = partitions as f64 / count as f64;
    Found { closest: share(closest), random: share(other), partitions }
}

#[test]
fn most_bytes_are_local_where_requests_are_gathered_by_their_blocks() {
    seeds::run(3, |seed| {
        for machine in [TWO, FOUR] {
            let layout = layout(machine);
            let even = 1.0 / layout.nodes as f64;
            for len in [4 << 10, 64 << 10, 512 << 10] {
                let found = simulate(&layout, len, seed);
                if found.closest < 0.75 || (found.random - even).abs() > 0.05 {
                    return Some(format!("{len}: {} and {}", found.closest, found.random));
                }
            }
        }
        None
    });
}

#[test]
fn memory_is_read_faster_than_from_pages_of_all_nodes_at_the_published_speeds() {
    let speed = |local: f64| local * LOCAL + (1.0 - local) * REMOTE;
    // The published figures: 7.1 for pages of all nodes, 17.32 where nine tenths are local.
    assert!((speed(0.25) - 7.1).abs() < 0.1 && (speed(0.9) - 17.32).abs() < 0.1);
    let found = simulate(&layout(FOUR), 512 << 10, 1);
    assert!(speed(found.closest) > 2.0 * speed(found.random), "{}", found.closest);
}

#[test]
fn neighbours_in_one_partition_need_fewer_locks() {
    // The published case: blocks of 4 KiB, requests of 512 KiB, groups of 128 blocks.
    let published = |group| Layout { block_len: 4 << 10, group, ..layout(FOUR) };
    let [single, grouped] = [1, 128].map(|group| simulate(&published(group), 512 << 10, 1));
    // There are 64 partitions: each of 128 blocks is in another one, until all are used.
    assert_eq!(single.partitions, 64.0);
    assert!(grouped.partitions <= 2.0, "{}", grouped.partitions);
    assert!(simulate(&layout(FOUR), 512 << 10, 1).partitions < 1.6);
}

#[test]
fn blocks_are_spread_evenly_over_all_partitions() {
    let layout = layout(FOUR);
    let mut counts = vec![0_u64; layout.partitions()];
    for number in 0..layout.partitions() as u64 * CACHE_GROUP * 3 {
        counts[layout.partition(Key { unit: 5, number })] += 1;
    }
    assert!(counts.iter().all(|&count| count == CACHE_GROUP * 3), "{counts:?}");
    // The first blocks of units are at different nodes.
    let first = |unit| layout.node(layout.partition(Key { unit, number: 0 }));
    assert_eq!([0, 1, 2, 3].map(first), [0, 1, 2, 3]);
}

#[test]
fn a_cache_has_the_size_that_is_asked_for() {
    let cache = |nodes, len| {
        let topology = Topology::parse(nodes).unwrap();
        Cache::new(topology, len).map(|cache| (cache.partitions.len(), cache.len()))
    };
    assert_eq!(cache("node cpus=0", 80 << 20).unwrap(), (16, 80 << 20));
    assert_eq!(cache("node cpus=0", 16 << 20).unwrap(), (4, 16 << 20));
    assert_eq!(cache("node cpus=0", 1 << 20).unwrap(), (1, 1 << 20));
    assert_eq!(cache("node cpus=0\nnode cpus=1023", 1 << 20).unwrap(), (2, 1 << 20));
    assert!(cache("node cpus=0", 100 << 10).is_err());
    assert!(cache("node cpus=0", u64::MAX).is_err());
}
