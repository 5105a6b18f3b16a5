//! Peer processes that the kernel has lately shown to be alive.
//!
//! A killed process cannot publish the end of its connections, so that writers ask the kernel at
//! intervals. One answer holds for every connection whose other end is the same process's alone: a
//! process that lives closes its sockets by calls that its peers see.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of processes that are remembered; two with the same place forget each other.
const PLACES: usize = 64;
/// Process numbers are below 2 to this power (`PID_MAX_LIMIT`).
const PROCESS_BITS: u32 = 22;
/// The low bits of a time stamp that are not kept. What remains wraps after more than a day.
const STAMP_SHIFT: u32 = 6;

/// The processes and the times of the answers, each pair in one word. The numbers are those of one
/// registry, so that they mean the same processes.
#[derive(Debug)]
pub(crate) struct LivePeers([AtomicU64; PLACES]);

impl LivePeers {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; PLACES])
    }

    /// Records that a process was alive at a time ([`weft_sys::time_stamp`]).
    pub(crate) fn note(&self, process: u32, now: u64) {
        if let Some(place) = self.place(process) {
            place.store(word(process, now), Ordering::Relaxed);
        }
    }

    /// Whether a process was alive less than `within` stamps before `now`.
    pub(crate) fn lived(&self, process: u32, now: u64, within: u64) -> bool {
        let Some(place) = self.place(process) else { return false };
        let age = word(process, now).wrapping_sub(place.load(Ordering::Relaxed));
        // The low bits of the difference are 0 for the same process only.
        age & ((1 << PROCESS_BITS) - 1) == 0 && age >> PROCESS_BITS < within >> STAMP_SHIFT
    }

    fn place(&self, process: u32) -> Option<&AtomicU64> {
        (1..1 << PROCESS_BITS).contains(&process).then(|| &self.0[process as usize % PLACES])
    }
}

fn word(process: u32, stamp: u64) -> u64 {
    (stamp >> STAMP_SHIFT) << PROCESS_BITS | u64::from(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: u64 = 1 << 17;

    #[test]
    fn process_lives_for_a_while_after_the_answer() {
        for now in [0, 1 << 20, u64::MAX - 5] {
            let peers = LivePeers::new();
            assert!(!peers.lived(7, now, WITHIN), "never noted");
            peers.note(7, now);
            assert!(peers.lived(7, now, WITHIN));
            assert!(peers.lived(7, now.wrapping_add(WITHIN / 2), WITHIN));
            assert!(!peers.lived(7, now.wrapping_add(2 * WITHIN), WITHIN));
            assert!(!peers.lived(7, now.wrapping_sub(WITHIN), WITHIN), "noted later than now");
        }
    }

    #[test]
    fn processes_with_one_place_do_not_vouch_for_each_other() {
        let peers = LivePeers::new();
        let other = 7 + PLACES as u32;
        peers.note(7, 1 << 20);
        assert!(!peers.lived(other, 1 << 20, WITHIN));
        peers.note(other, 1 << 20);
        assert!(peers.lived(other, 1 << 20, WITHIN));
        assert!(!peers.lived(7, 1 << 20, WITHIN));
    }

    #[test]
    fn numbers_that_no_process_has_are_not_remembered() {
        let peers = LivePeers::new();
        for process in [0, 1 << PROCESS_BITS, u32::MAX] {
            peers.note(process, 1 << 20);
            assert!(!peers.lived(process, 1 << 20, WITHIN));
        }
    }
}
