//! Makes registered memory mappable for peers of this host.
//!
//! A region that peers may access is remapped as a shared segment when it is registered, if that is
//! safe (see [`RemappedPages::remap`]), and becomes private memory again when the last region in it
//! is deregistered. No thread may write to the pages while they are replaced; so memory that
//! another region reaches by its address, to which a peer's message may arrive at any time, is left
//! alone.
//!
//! A region in a segment refers to the segment's pages from then on, whatever happens to the
//! program's addresses: with hardware a registration means that, too. So regions are not found by
//! address: at each registration the kernel is asked which segments are mapped there now.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use weft_sys::{Forkable, Lock, Region, RemappedPages, Unused, View, is_alone, remappable, views};

use super::policy::{Choice, choice};
use crate::access::Access;
use crate::limits::{REMAP_LEN_MAX, REMAP_LOOKS_MAX};

/// Rights to change memory.
const WRITING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

#[derive(Debug, Default)]
struct Ranges {
    /// Ranges that regions reach by address: start and serial number, and length.
    by_address: BTreeMap<(usize, u64), usize>,
    serial: u64,
    /// Length of the longest range ever.
    longest: usize,
    segments: Vec<Arc<RemappedPages>>,
}

static RANGES: Forkable<Lock<Ranges>> = Forkable::new(|| Lock::new(Ranges::default()));

/// The remapped and the other parts of one memory region.
#[derive(Debug)]
pub(crate) struct Remapping {
    by_address: SmallVec<[(usize, u64); 1]>,
    /// The parts that are in segments, in order. They keep the segments from being restored.
    views: Vec<View>,
    region: Region,
    access: Access,
}

/// How peers reach a region directly.
#[derive(Debug)]
pub(crate) struct Reach {
    /// The first byte's address, for parts that are reached by address.
    pub(super) addr: u64,
    /// The part that is in a segment.
    pub(super) pages: Option<Pages>,
}

/// The part of a region that consists of pages of a segment.
#[derive(Debug)]
pub(super) struct Pages {
    /// The offset of its start in the region.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The address of these pages in this process.
    pub(super) addr: u64,
    /// The segment, if it has exactly these pages and its write protection matches the region's
    /// rights.
    pub(super) segment: Option<Arc<RemappedPages>>,
}

impl Remapping {
    /// Registers the memory of a region, and remaps it as shared if peers may access it and that is
    /// safe.
    pub(crate) fn of(region: &Region, access: Access, unused: Option<&Unused>) -> Self {
        let may_remap = access.intersects(WRITING | Access::REMOTE_READ) && is_wanted(region.len());
        let mut ranges = RANGES.get().lock();
        ranges.restore_unused();
        let mut found = views(&ranges.segments, region);
        let pages = (may_remap && found.is_empty()).then(|| remappable(region)).flatten();
        if let Some(pages) = pages.filter(|pages| !ranges.overlaps(pages))
            && let Ok(segment) = RemappedPages::remap(&pages, access.intersects(WRITING), unused)
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

    /// The memory of the region, extent by extent.
    pub(crate) fn extents(&self) -> SmallVec<[Region; 1]> {
        parts(&self.region, &self.views).map(|part| part.region).collect()
    }

    /// Whether a part of the region is in a segment, which a peer may have mapped.
    pub(crate) fn is_shared(&self) -> bool {
        !self.views.is_empty()
    }

    /// How peers reach the region directly; `None` if only this process can reach it.
    pub(crate) fn reach(&self) -> Option<Reach> {
        let addr = self.region.addr() as u64;
        let view = match &self.views[..] {
            [] => return Some(Reach { addr, pages: None }),
            [view] => view,
            _ => return None,
        };
        // A peer that maps a segment gets all of it, with the segment's own write protection.
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
        // Hold the lock, so that no region is registered in memory that is being restored.
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

    /// Restores the segments that no region uses. A segment that cannot be restored now stays
    /// shared, and is found again by the next registration.
    fn restore_unused(&mut self) {
        // While there are other threads, hardly anything can be restored except what the program
        // has unmapped. Then try one segment at a time, because each reads all mappings.
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
        // Put the refused ones last, so that the others are tried first.
        segments.append(&mut refused);
        self.segments = segments;
    }

    /// Whether a part of `pages` is reached by its address. Also true if that is expensive to find
    /// out.
    fn overlaps(&self, pages: &Range<usize>) -> bool {
        let first = (pages.start.saturating_sub(self.longest), 0);
        let mut near = self.by_address.range(first..(pages.end, 0));
        near.by_ref().take(REMAP_LOOKS_MAX).any(|(&(at, _), &len)| at + len > pages.start)
            || near.next().is_some()
    }
}

/// A part of a region, at its address in this process.
struct Part {
    region: Region,
    is_by_address: bool,
}

/// The views of a region and the gaps before, between and behind them. An empty region is one part.
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

/// Whether a region of `len` bytes may be remapped; `WEFT_REMAP=0` forbids it.
fn is_wanted(len: usize) -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        choice() != Choice::Forbidden && std::env::var("WEFT_REMAP").as_deref() != Ok("0")
    });
    *wanted && len <= REMAP_LEN_MAX
}
