//! Which registered memory peers of this host can map.
//!
//! A region that peers may access is made a shared segment when it is registered, if that is safe
//! (see [`RemappedPages::remap`]), and private memory again when the last region in it is
//! deregistered. While it is exchanged, nobody may write to it; so memory that a region reaches by
//! its address already, to which a peer's message may come at any time, is left alone.
//!
//! A region that has pages of a segment means these pages from then on, whatever becomes of the
//! program's addresses: that is what a registration means with hardware. So no region is found by
//! its address: for each registration the kernel says which segments are there now.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use weft_sys::{Forkable, Lock, Region, RemappedPages, View, is_alone, remappable, views};

use super::policy::{Choice, choice};
use crate::access::Access;
use crate::limits::{REMAP_LEN_MAX, REMAP_LOOKS_MAX};

/// Who may do this changes memory.
const WRITING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

#[derive(Debug, Default)]
struct Ranges {
    /// What regions reach by its address: start and serial number, and length.
    by_address: BTreeMap<(usize, u64), usize>,
    serial: u64,
    /// The longest of these ever.
    longest: usize,
    segments: Vec<Arc<RemappedPages>>,
}

static RANGES: Forkable<Lock<Ranges>> = Forkable::new(|| Lock::new(Ranges::default()));

/// The part of one memory region in this.
#[derive(Debug)]
pub(crate) struct Remapping {
    by_address: SmallVec<[(usize, u64); 1]>,
    /// The parts that are segments, in order: none of these may be given back before.
    views: Vec<View>,
    region: Region,
    access: Access,
}

/// How peers reach a region.
#[derive(Debug)]
pub(crate) struct Reach {
    /// The first byte's address, for what is reached by its address.
    pub(super) addr: u64,
    /// The part that is reached in another way.
    pub(super) pages: Option<Pages>,
}

/// The part of a region that is pages of a segment.
#[derive(Debug)]
pub(super) struct Pages {
    /// Where in the region it begins.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Where we have these pages.
    pub(super) addr: u64,
    /// The segment, if these are all of its pages and the region grants what it lets everybody do.
    pub(super) segment: Option<Arc<RemappedPages>>,
}

impl Remapping {
    /// Remembers a region that is being registered, and remaps its memory as shared if peers may
    /// access it and nothing is against it.
    pub(crate) fn of(region: &Region, access: Access) -> Self {
        let may_remap = access.intersects(WRITING | Access::REMOTE_READ) && is_wanted(region.len());
        let mut ranges = RANGES.get().lock();
        ranges.restore_unused();
        let mut found = views(&ranges.segments, region);
        let pages = (may_remap && found.is_empty()).then(|| remappable(region)).flatten();
        if let Some(pages) = pages.filter(|pages| !ranges.overlaps(pages))
            && let Ok(segment) = RemappedPages::remap(&pages, access.intersects(WRITING))
        {
            ranges.segments.push(segment);
            found = views(&ranges.segments, region);
        }
        let mut by_address = SmallVec::new();
        for part in parts(region, &found).filter(|part| part.is_by_address) {
            by_address.push(ranges.remember(&part.region));
        }
        Self { by_address, views: found, region: *region, access }
    }

    /// Where the region's bytes are, in order.
    pub(crate) fn extents(&self) -> SmallVec<[Region; 1]> {
        parts(&self.region, &self.views).map(|part| part.region).collect()
    }

    /// How peers that may access the region reach it. `None` if only this process finds its way.
    pub(crate) fn reach(&self) -> Option<Reach> {
        let addr = self.region.addr() as u64;
        let view = match &self.views[..] {
            [] => return Some(Reach { addr, pages: None }),
            [view] => view,
            _ => return None,
        };
        // Who maps a segment has all of it, with the rights that it was made with.
        let segment = &view.segment;
        let fits =
            segment.is_whole(&view.own) && segment.is_writable() == self.access.intersects(WRITING);
        let pages = Pages {
            start: (view.addr - self.region.addr()) as u64,
            len: view.own.len() as u64,
            addr: view.own.addr() as u64,
            segment: fits.then(|| Arc::clone(segment)),
        };
        Some(Reach { addr, pages: Some(pages) })
    }
}

impl Drop for Remapping {
    fn drop(&mut self) {
        // Under the lock, so that no region is registered in memory that is being given back.
        let mut ranges = RANGES.get().lock();
        for id in &self.by_address {
            ranges.by_address.remove(id);
        }
        self.views.clear();
        ranges.restore_unused();
    }
}

impl Ranges {
    fn remember(&mut self, region: &Region) -> (usize, u64) {
        self.serial += 1;
        let id = (region.addr(), self.serial);
        self.by_address.insert(id, region.len());
        self.longest = self.longest.max(region.len());
        id
    }

    /// Gives back what no region has a part of. What cannot be given back now stays shared, and is
    /// found again if it is registered again.
    fn restore_unused(&mut self) {
        // Among other threads hardly anything can be given back but what the program has unmapped:
        // one is tried at a time, for that takes a look at all mappings.
        let mut tries = if is_alone().unwrap_or(false) { usize::MAX } else { 1 };
        let mut refused = Vec::new();
        let mut segments = std::mem::take(&mut self.segments);
        segments.retain(|segment| {
            if Arc::strong_count(segment) != 1 || tries == 0 {
                return true;
            }
            tries -= 1;
            if segment.restore(|pages| self.overlaps(pages)).is_err() {
                refused.push(Arc::clone(segment));
            }
            false
        });
        // The others have their turn first.
        segments.append(&mut refused);
        self.segments = segments;
    }

    /// Whether a part of some pages is reached by its address; true if that is hard to find out.
    fn overlaps(&self, pages: &Range<usize>) -> bool {
        let first = (pages.start.saturating_sub(self.longest), 0);
        let mut near = self.by_address.range(first..(pages.end, 0));
        near.by_ref().take(REMAP_LOOKS_MAX).any(|(&(at, _), &len)| at + len > pages.start)
            || near.next().is_some()
    }
}

/// A part of a region, where we have it.
struct Part {
    region: Region,
    is_by_address: bool,
}

/// Views and what lies before, between and behind them. An empty region is one part.
fn parts<'a>(region: &'a Region, views: &'a [View]) -> impl Iterator<Item = Part> + 'a {
    let mut at = 0;
    let ends = views.iter().map(Some).chain([None]);
    ends.flat_map(move |view| {
        let start = view.map_or(region.len(), |view| view.addr - region.addr());
        let is_gap = start > at || region.is_empty();
        let gap = is_gap.then(|| region.part(at, start - at)).flatten();
        at = start + view.map_or(0, |view| view.own.len());
        let gap = gap.map(|region| Part { region, is_by_address: true });
        let own = view.map(|view| Part { region: view.own, is_by_address: false });
        [gap, own].into_iter().flatten()
    })
}

/// `WEFT_REMAP=0` leaves all memory where it is.
fn is_wanted(len: usize) -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        choice() != Choice::Forbidden && std::env::var("WEFT_REMAP").as_deref() != Ok("0")
    });
    *wanted && len <= REMAP_LEN_MAX
}
