//! Counters of a unit, and the times that its commands took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kind of a command: its use of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It sent blocks to the initiator.
    Read,
    /// It wrote blocks of the initiator.
    Write,
    /// It did something else.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// Its name in what is shown to users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// Times of up to this many nanoseconds, as a power of two, are in the first bucket.
const FIRST_BITS: u32 = 8;
/// Each doubling of the time is divided into this many buckets, as a power of two.
const PART_BITS: u32 = 4;
const PARTS: usize = 1 << PART_BITS;
/// Doublings. Times that are longer, more than a minute, are in the last bucket.
const DOUBLINGS: usize = 28;
const BUCKETS: usize = 1 + DOUBLINGS * PARTS + 1;

/// The bucket of a time. Bounds belong to the bucket below.
fn bucket(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_sub(1);
    if nanos >> FIRST_BITS == 0 {
        return 0;
    }
    let bits = nanos.ilog2();
    let part = (nanos >> (bits - PART_BITS)) as usize % PARTS;
    (1 + (bits - FIRST_BITS) as usize * PARTS + part).min(BUCKETS - 1)
}

/// The longest time in a bucket. `None` for the last one.
fn bound(bucket: usize) -> Option<Duration> {
    let nanos = match bucket.checked_sub(1) {
        None => 1 << FIRST_BITS,
        Some(index) if bucket < BUCKETS - 1 => {
            let bits = FIRST_BITS + (index / PARTS) as u32;
            ((PARTS + index % PARTS + 1) as u64) << (bits - PART_BITS)
        }
        Some(_) => return None,
    };
    Some(Duration::from_nanos(nanos))
}

/// Counts commands of a unit. Its readers need no order with anything else.
#[derive(Debug, Default)]
pub(super) struct Meter {
    kinds: [Counters; Kind::ALL.len()],
}

#[derive(Debug)]
struct Counters {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        let [nanos, bytes, failed] = [0; 3].map(AtomicU64::new);
        Self { buckets, nanos, bytes, failed }
    }
}

/// A command that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its kind.
    pub kind: Kind,
    /// From its arrival until its status was ready to be sent.
    pub time: Duration,
    /// The bytes of blocks that it moved between medium and initiator.
    pub bytes: u64,
    /// Its status is not GOOD.
    pub is_failed: bool,
}

impl Meter {
    /// Counts a command.
    pub(super) fn count(&self, ended: Ended) {
        let counters = &self.kinds[ended.kind as usize];
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&counters.buckets[bucket(ended.time)], 1);
        add(&counters.nanos, u64::try_from(ended.time.as_nanos()).unwrap_or(u64::MAX));
        add(&counters.bytes, ended.bytes);
        if ended.is_failed {
            add(&counters.failed, 1);
        }
    }

    /// Returns the counters of each kind.
    pub(super) fn stats(&self) -> Vec<KindStats> {
        let stats = |kind: Kind| {
            let counters = &self.kinds[kind as usize];
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            KindStats {
                kind,
                bytes: get(&counters.bytes),
                failed: get(&counters.failed),
                time: Duration::from_nanos(get(&counters.nanos)),
                buckets: counters.buckets.iter().map(get).collect(),
            }
        };
        Kind::ALL.into_iter().map(stats).collect()
    }
}

/// A unit's counters of the commands of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindStats {
    /// The kind.
    pub kind: Kind,
    /// The bytes of blocks that were moved between medium and initiators.
    pub bytes: u64,
    /// Commands whose status was not GOOD.
    pub failed: u64,
    /// The time of all commands together.
    pub time: Duration,
    buckets: Vec<u64>,
}

impl KindStats {
    /// Commands that have ended.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The buckets that have commands, in ascending order: the longest time of each, which is at
    /// most a sixteenth longer than the shortest, and how many commands it has. The last one, for
    /// more than a minute, has no longest time.
    #[must_use]
    pub fn buckets(&self) -> Vec<(Option<Duration>, u64)> {
        let counts = self.buckets.iter().copied().enumerate().filter(|(_, count)| *count > 0);
        counts.map(|(number, count)| (bound(number), count)).collect()
    }

    /// Times, each twice the one before, and how many commands took at most as long.
    #[must_use]
    pub fn within(&self) -> Vec<(Duration, u64)> {
        let count = |last: usize| self.buckets[..=last].iter().sum();
        let lasts = (0..BUCKETS - 1).step_by(PARTS);
        lasts.filter_map(|last| Some((bound(last)?, count(last)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_with_its_bound() {
        let mut before = 0;
        for bucket_number in 0..BUCKETS - 1 {
            let bound = bound(bucket_number).unwrap().as_nanos() as u64;
            assert!(bound > before);
            // Buckets are narrow: a bound is not far from the times.
            assert!(bucket_number == 0 || bound - before <= before / 16);
            for nanos in [before + 1, bound] {
                assert_eq!(bucket(Duration::from_nanos(nanos)), bucket_number, "{nanos}");
            }
            before = bound;
        }
        assert_eq!(bucket(Duration::from_nanos(before + 1)), BUCKETS - 1);
        assert_eq!((bucket(Duration::ZERO), bucket(Duration::MAX)), (0, BUCKETS - 1));
        assert!(before > Duration::from_secs(60).as_nanos() as u64);
    }

    #[test]
    fn commands_are_counted_by_their_kinds_and_times() {
        let meter = Meter::default();
        let reads = || meter.stats().remove(0);
        assert_eq!((reads().kind, reads().buckets()), (Kind::Read, Vec::new()));
        for micros in 1..=1_000 {
            let time = Duration::from_micros(micros);
            meter.count(Ended { kind: Kind::Read, time, bytes: 2, is_failed: micros > 990 });
        }
        let stats = reads();
        assert_eq!((stats.commands(), stats.bytes, stats.failed), (1_000, 2_000, 10));
        assert_eq!(stats.time, Duration::from_micros(500_500));
        let within = stats.within();
        assert!(within.windows(2).all(|two| two[1].0 == 2 * two[0].0 && two[0].1 <= two[1].1));
        assert!(within.contains(&(Duration::from_nanos(1 << 17), 131)));
        assert_eq!(within.last().unwrap().1, 1_000);
        assert_eq!((meter.stats()[1].commands(), meter.stats()[1].buckets()), (0, Vec::new()));
        let time = Duration::MAX;
        meter.count(Ended { kind: Kind::Write, time, bytes: 0, is_failed: false });
        assert_eq!(meter.stats()[1].buckets(), [(None, 1)]);
        let buckets = stats.buckets();
        assert!(buckets.is_sorted() && buckets.iter().all(|(_, count)| *count > 0));
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 1_000);
    }
}
