//! Which registered memory peers of this host can map.
//!
//! A region that peers may access is made a shared segment when it is registered, if that is safe
//! (see [`Adopted::adopt`]), and private memory again when the last region in it is deregistered.
//! While it is exchanged, nobody may write to it; so memory of which a part is registered already,
//! to which a peer's message may come at any time, is left alone.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use weft_sys::{Adopted, Forkable, Lock, Region};

use super::policy::{Choice, choice};
use crate::access::Access;

/// Regions longer than this, in bytes, stay where they are: copying them takes long.
pub(super) const LEN_MAX: usize = 1 << 30;
/// How many registered regions are looked at to find out that none overlaps a new one.
const LOOKS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Ranges {
    /// Registered regions: start and serial number, and length.
    registered: BTreeMap<(usize, u64), usize>,
    serial: u64,
    /// The longest ever registered.
    longest: usize,
    adopted: Vec<Weak<Adopted>>,
}

static RANGES: Forkable<Lock<Ranges>> = Forkable::new(|| Lock::new(Ranges::default()));

/// The part of one memory region in this.
#[derive(Debug)]
pub(crate) struct Adoption {
    id: (usize, u64),
    /// Every adopted range of which the region has a part: none of them may be given back before.
    holds: Vec<Arc<Adopted>>,
    mappable: bool,
}

impl Adoption {
    /// Remembers a region that is being registered, and adopts its memory if peers may access it
    /// and nothing is against it.
    pub(crate) fn of(region: &Region, access: Access) -> Self {
        let writing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let is_remote = access.intersects(writing | Access::REMOTE_READ);
        let mut ranges = RANGES.get().lock();
        let mut holds = ranges.adopted_in(region);
        if holds.is_empty() && is_remote && is_wanted(region.len()) && !ranges.overlaps(region) {
            let adopted = Adopted::adopt(region, access.intersects(writing));
            if let Ok(adopted) = adopted {
                ranges.adopted.retain(|other| other.strong_count() != 0);
                ranges.adopted.push(Arc::downgrade(&adopted));
                holds.push(adopted);
            }
        }
        // Who maps a segment has all of it, with the rights that it was made with.
        let mappable = is_remote
            && holds.len() == 1
            && holds.iter().all(|adopted| {
                lies_in(adopted, region) && adopted.is_writable() == access.intersects(writing)
            });
        Self { id: ranges.remember(region), holds, mappable }
    }

    /// What peers that may access the region can map of it.
    pub(crate) fn mappable(&self) -> Option<Arc<Adopted>> {
        self.holds.first().filter(|_| self.mappable).map(Arc::clone)
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        // Under the lock, so that no region is registered in memory that is being given back.
        let mut ranges = RANGES.get().lock();
        ranges.registered.remove(&self.id);
        self.holds.clear();
    }
}

impl Ranges {
    fn remember(&mut self, region: &Region) -> (usize, u64) {
        self.serial += 1;
        let id = (region.addr(), self.serial);
        self.registered.insert(id, region.len());
        self.longest = self.longest.max(region.len());
        id
    }

    fn adopted_in(&self, region: &Region) -> Vec<Arc<Adopted>> {
        let live = self.adopted.iter().filter_map(Weak::upgrade);
        live.filter(|adopted| overlap(adopted, region)).collect()
    }

    /// Whether a part of a region is registered already; true if that is hard to find out.
    fn overlaps(&self, region: &Region) -> bool {
        let (start, end) = (region.addr(), region.addr() + region.len());
        let first = (start.saturating_sub(self.longest), 0);
        let mut near = self.registered.range(first..(end, 0));
        near.by_ref().take(LOOKS_MAX).any(|(&(at, _), &len)| at + len > start)
            || near.next().is_some()
    }
}

fn overlap(adopted: &Adopted, region: &Region) -> bool {
    adopted.addr() < region.addr() + region.len() && region.addr() < adopted.addr() + adopted.len()
}

fn lies_in(adopted: &Adopted, region: &Region) -> bool {
    let end = region.addr() + region.len();
    adopted.addr() >= region.addr() && adopted.addr() + adopted.len() <= end
}

/// `WEFT_ADOPT=0` leaves all memory where it is.
fn is_wanted(len: usize) -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        choice() != Choice::Forbidden && std::env::var("WEFT_ADOPT").as_deref() != Ok("0")
    });
    *wanted && len <= LEN_MAX
}
