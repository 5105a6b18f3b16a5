//! The parameters of one run, derived from the seed.

use crate::rd::limits::PEERS_MAX;

const SECOND: u64 = 1_000_000;

/// The parameters of a run. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) hosts: usize,
    pub(super) datagram_len: usize,
    pub(super) peers_max: usize,
    pub(super) receive_bytes: usize,
    /// Number of requests in the run, and the longest time between two.
    pub(super) posts: usize,
    pub(super) gap: u64,
    pub(super) len_max: usize,
    /// Per thousand datagrams.
    pub(super) loss: u32,
    pub(super) repeats: u32,
    pub(super) damage: u32,
    pub(super) delay: u64,
    pub(super) jitter: u64,
    /// Bytes per second of each direction between two hosts, and the length of its queue in time.
    pub(super) bandwidth: u64,
    pub(super) queue: u64,
    /// Whether programs stop taking events for a while.
    pub(super) slow: bool,
    /// Whether some requests cannot succeed.
    pub(super) wrong: bool,
    pub(super) partitions: bool,
    pub(super) restarts: bool,
    /// Whether there are pauses longer than a peer's state is kept.
    pub(super) pauses: bool,
}

impl Setup {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let datagram_len = [256, 600, 1452, 1452, 9000][rng.usize(..5)];
        let bandwidth = [1_000_000, 12_500_000, 1_000_000_000][rng.usize(..3)];
        let delay = [20, 1_000, 50_000, 300_000][rng.usize(..4)];
        let jitter = [0, delay / 10, delay, 3 * delay][rng.usize(..4)];
        let len_max = [200, 5_000, 60_000][rng.usize(..3)].min(bandwidth as usize / 20);
        Self {
            hosts: rng.usize(2..=4),
            datagram_len,
            peers_max: if rng.bool() { 3 } else { PEERS_MAX },
            receive_bytes: [70_000, 200_000, 16 << 20][rng.usize(..3)],
            posts: rng.usize(20..120),
            gap: [100, 10_000, SECOND / 2][rng.usize(..3)],
            len_max,
            loss: [0, 10, 50, 150][rng.usize(..4)],
            repeats: [0, 20, 100][rng.usize(..3)],
            damage: [0, 0, 20][rng.usize(..3)],
            delay,
            jitter,
            bandwidth,
            queue: [20_000, 200_000][rng.usize(..2)],
            slow: rng.bool(),
            wrong: rng.u8(..3) == 0,
            partitions: rng.u8(..3) == 0,
            restarts: rng.u8(..3) == 0,
            pauses: rng.u8(..3) == 0,
        }
    }
}
