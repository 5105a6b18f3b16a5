//! The network: the fate of datagrams between two hosts.

use std::collections::HashMap;

use super::setup::Setup;

/// The paths between hosts, one for each direction.
#[derive(Debug, Default)]
pub(super) struct Net {
    /// Until when each path is busy with earlier datagrams.
    busy_until: HashMap<(usize, usize), u64>,
    /// Until when each path is cut.
    cut_until: HashMap<(usize, usize), u64>,
}

impl Net {
    /// The arrival times of a datagram of `len` bytes, one for each copy of it.
    pub(super) fn send(
        &mut self,
        rng: &mut fastrand::Rng,
        setup: &Setup,
        now: u64,
        path: (usize, usize),
        len: usize,
    ) -> Vec<u64> {
        let busy = self.busy_until.entry(path).or_default();
        let start = now.max(*busy);
        if start - now > setup.queue {
            return Vec::new();
        }
        *busy = start + len as u64 * 1_000_000 / setup.bandwidth;
        let leaves = *busy;
        let cut = self.is_cut(now, path);
        let mut arrivals = Vec::new();
        loop {
            if !cut && rng.u32(..1000) >= setup.loss {
                arrivals.push(leaves + setup.delay + rng.u64(..=setup.jitter));
            }
            if rng.u32(..1000) >= setup.repeats {
                return arrivals;
            }
        }
    }

    pub(super) fn cut(&mut self, path: (usize, usize), until: u64) {
        self.cut_until.insert(path, until);
    }

    fn is_cut(&self, now: u64, path: (usize, usize)) -> bool {
        self.cut_until.get(&path).is_some_and(|&until| now < until)
    }
}
