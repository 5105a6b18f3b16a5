//! The parameters of one run, derived from the seed.

use weft_wire::mpa::negotiate::{Negotiated, RtrKind};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Number of connections, all between the same two hosts.
    pub(super) pairs: usize,
    /// Whether the peers acknowledge to each other.
    pub(super) weft: bool,
    pub(super) crc: bool,
    /// Whether each host wants markers.
    pub(super) markers: [bool; 2],
    /// Whether each host takes its receives from one shared queue.
    pub(super) srq: [bool; 2],
    /// Whether each host uses one completion queue for everything.
    pub(super) one_cq: [bool; 2],
    pub(super) initiators: [bool; 2],
    pub(super) rtr: Option<RtrKind>,
    pub(super) mulpdu: usize,
    /// Bytes that one direction of the network holds.
    pub(super) pipe: usize,
    /// Largest number of bytes that the network delivers at once.
    pub(super) chunk: usize,
    /// Longest message in bytes that the network carries in reasonable time.
    pub(super) len_max: usize,
    pub(super) receive_len: usize,
    pub(super) send_len: usize,
    /// Read and atomic depth of both sides.
    pub(super) depth: u8,
    pub(super) max_send_wr: u32,
    pub(super) max_sge: usize,
    /// Number of send requests in the whole run.
    pub(super) posts: usize,
    /// The weight of each action.
    pub(super) weights: [u32; ACTIONS],
    /// Ticks after which a sender stops waiting for a receive.
    pub(super) rnr_ticks: Option<u64>,
    /// Whether faults are injected, at most one on each connection.
    pub(super) faults: bool,
}

/// Number of different actions of the schedule.
pub(super) const ACTIONS: usize = 8;

impl Setup {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let weft = rng.u8(..4) != 0;
        let pairs = [1, 1, 1, 2, 3, 5][rng.usize(..6)];
        let pipe = [100, 5000, 200_000, 1 << 20][rng.usize(..4)];
        let chunk = [1, 7, 100, 1500, 70_000, 1 << 20][rng.usize(..6)];
        let len_max = (chunk.min(pipe) * 100).clamp(1000, 100 << 10);
        let receive_len = [64, 1000, 8 << 10, 8 << 10, 50 << 10][rng.usize(..5)].min(len_max);
        let initiators = if rng.bool() { [true, true] } else { [true, false] };
        let kinds = [RtrKind::Write, RtrKind::Send, RtrKind::Read];
        let rtr = (initiators == [true, false]).then(|| kinds[rng.usize(..3)]);
        let mut weights = [0; ACTIONS];
        weights.fill_with(|| rng.u32(1..20));
        // Holding the network and draining are rare.
        weights[5] = rng.u32(0..3);
        weights[6] = rng.u32(0..2);
        weights[7] = rng.u32(0..2);
        Self {
            pairs,
            weft,
            crc: rng.bool(),
            markers: [rng.u8(..4) == 0, rng.u8(..4) == 0],
            srq: [rng.u8(..3) == 0, rng.u8(..3) == 0],
            one_cq: [rng.bool(), rng.bool()],
            initiators,
            rtr,
            mulpdu: [60, 536, 1460, 8900, 32 << 10][rng.usize(..5)],
            pipe,
            chunk,
            len_max,
            receive_len,
            send_len: [8, 200, 5000, receive_len][rng.usize(..4)].min(receive_len),
            depth: [1, 2, 16][rng.usize(..3)],
            max_send_wr: [2, 16, 64][rng.usize(..3)],
            max_sge: rng.usize(1..=4),
            posts: rng.usize(10..150),
            weights,
            rnr_ticks: (rng.u8(..6) == 0).then(|| rng.u64(50..2000)),
            faults: rng.u8(..3) == 0,
        }
    }

    /// A run in which only the network's behaviour varies.
    pub(super) fn plain(rng: &mut fastrand::Rng) -> Self {
        let setup = Self::new(rng);
        Self {
            weft: true,
            crc: false,
            markers: [false; 2],
            faults: false,
            rnr_ticks: None,
            ..setup
        }
    }

    /// The result of the negotiation at an end on `host`.
    pub(super) fn negotiated(&self, host: usize) -> Negotiated {
        Negotiated {
            revision: 2,
            crc: self.crc,
            tx_markers: self.markers[1 - host],
            rx_markers: self.markers[host],
            ird: self.depth.into(),
            ord: self.depth.into(),
            rtr: self.rtr,
            peer_private_data: Vec::new(),
        }
    }
}
