//! Memory that the carrier reads and writes while an operation is under way.
//!
//! # Safety
//! `Pages` owns a mapping and the registration of all of it. The registration grants no right to
//! peers, except that a Read of an iWARP device needs it: then it ends with the Read. It is made
//! for the first operation, and ends when the memory is shared, because peers cannot map memory
//! with two registrations. The carrier accesses the mapping only as an operation of this process
//! says, from its posting until its completion, or until the queue pair has been destroyed.
//! Meanwhile no reference to the bytes exists: a [`Buffer`] is inside a [`Lent`], which offers
//! none, and so is a [`Place`]. Peers access the memory only as a
//! [`SharedBuffer`](crate::SharedBuffer) says, which has the buffer inside, too, and copies. The
//! registration ends, and the carrier then waits for accesses in progress, before the mapping is
//! removed; if it does not end, the mapping stays.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_engine::wr::Sge;
use weft_sys::{Region, Unused, bind_to_node};

use crate::bounds;
use crate::carrier::{Domain, Registration};
use crate::error::{Error, Result};
use crate::placement::{HugePages, Placement};

/// Bytes of a huge page, to whose multiples a buffer of huge pages is rounded up.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of the mapping for a buffer; `None` for more than can be.
fn mapped(len: usize, placement: Placement) -> Option<usize> {
    let is_huge = placement.huge_pages != HugePages::No;
    len.max(1).checked_next_multiple_of(if is_huge { HUGE_PAGE } else { page_size() })
}

fn failed(errno: Errno) -> Error {
    Error::system("register memory", errno)
}

/// A mapping of anonymous memory, registered for operations of this process.
struct Pages {
    start: NonNull<u8>,
    region: Region,
    domain: Domain,
    placement: Placement,
    /// The registration for operations of this process, while there is one.
    registration: Option<Registration>,
}

// SAFETY: the mapping and the registration belong to the process, not to a thread.
unsafe impl Send for Pages {}
// SAFETY: `&Pages` gives out addresses and copies of values only.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(domain: &Domain, len: usize, placement: Placement) -> Result<Self> {
        let huge = placement.huge_pages;
        let mapped = mapped(len, placement).ok_or(Error::Memory { len })?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = match huge {
            HugePages::Reserved => MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            HugePages::No | HugePages::Wanted => MapFlags::PRIVATE,
        };
        // SAFETY: the kernel chooses the address of the new mapping, which replaces none.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) };
        let start = start.map_err(|errno| match huge {
            HugePages::Reserved => Error::system("allocate huge pages", errno),
            HugePages::No | HugePages::Wanted => Error::Memory { len },
        })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Error::Memory { len })?;
        let address = start.as_ptr() as usize;
        // SAFETY: the mapping is readable and writable until this value is dropped, which ends all
        // uses of the region before; see the module's comment for who uses it.
        let region = unsafe { Region::new(address, len) };
        // The kernel's mappings do not wrap around.
        let region = region.ok_or(Error::Memory { len })?;
        let domain = domain.clone();
        let pages = Self { start, region, domain, placement, registration: None };
        pages.place()?;
        Ok(pages)
    }

    /// Has pages, none of which has been touched, come from where they are wanted.
    fn place(&self) -> Result<()> {
        if let Some(node) = self.placement.node {
            let start = self.start.as_ptr() as usize;
            let bound = bind_to_node(&(start..start + self.mapped()), node);
            bound.map_err(|errno| Error::system("allocate memory on this NUMA node", errno))?;
        }
        let start = self.start.as_ptr().cast();
        match self.placement.huge_pages {
            HugePages::No => {}
            HugePages::Wanted => {
                // Without huge pages it has no effect, and the buffer works as well.
                // SAFETY: the advice concerns this mapping only, and does not change its contents.
                let _ = unsafe { madvise(start, self.mapped(), Advice::LinuxHugepage) };
            }
            HugePages::Reserved => {
                // The kernel has set so many aside, but perhaps on another node, or beyond what
                // this group of processes may use: then it ends the process that touches one.
                // SAFETY: the call touches this mapping's pages, and does not change their
                // contents.
                let taken = unsafe { madvise(start, self.mapped(), Advice::LinuxPopulateWrite) };
                taken.map_err(|errno| Error::system("allocate huge pages", errno))?;
            }
        }
        Ok(())
    }

    /// Registers the memory, unless it is registered; for a Read, if it is to bring bytes.
    fn register(&mut self, is_for_read: bool) -> Result<()> {
        let must_expose = is_for_read && self.domain.reads_need_writes();
        if must_expose && !self.is_exposed() {
            self.end_registration()?;
        }
        if self.registration.is_none() {
            let mut access = Access::LOCAL_WRITE;
            access.set(Access::REMOTE_WRITE, must_expose);
            let registration = self.domain.register(self.region, access);
            self.registration = Some(registration.map_err(failed)?);
        }
        Ok(())
    }

    /// Whether the registration lets peers write, as the Reads of some devices need it.
    fn is_exposed(&self) -> bool {
        self.registration.as_ref().is_some_and(Registration::is_exposed)
    }

    /// Ends the registration, if there is one.
    fn end_registration(&mut self) -> Result<()> {
        if let Some(registration) = &self.registration {
            registration.end().map_err(failed)?;
        }
        self.registration = None;
        Ok(())
    }

    /// What is registered so that peers access a range.
    fn shared_part(&self, range: &Range<usize>) -> Option<Region> {
        let part = self.region.part(range.start, range.len())?;
        let is_to_the_end = range.end == self.region.len() && !range.is_empty();
        if !is_to_the_end || !range.start.is_multiple_of(page_size()) {
            return Some(part);
        }
        // Whole pages, which peers can map. Nothing is behind the buffer in its last page.
        // SAFETY: the mapping is readable and writable until this value is dropped, which ends all
        // uses of the region before; see the module's comment for who uses it.
        unsafe { Region::new(part.addr(), self.mapped() - range.start) }
    }

    /// Bytes of the mapping.
    fn mapped(&self) -> usize {
        // `new` has made so many.
        mapped(self.region.len(), self.placement).unwrap_or_default()
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// A piece of it for a work request. The range lies inside, which the callers have checked.
    fn piece(&self, range: &Range<usize>) -> Sge {
        let addr = self.address() + range.start as u64;
        // A range is in memory, and work requests check that they have less than 4 GiB.
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        // The carrier refuses a key of nothing.
        let lkey = self.registration.as_ref().map_or(0, Registration::local_key);
        Sge { addr, length, lkey }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.end_registration().is_ok() {
            // SAFETY: this value owns the mapping, and neither the carrier nor a reference uses it.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped()) };
        }
    }
}

/// Registered, page-aligned memory of this process, made by [`crate::Fabric::alloc`]. It begins
/// with zeros, and reads and writes like a slice.
///
/// An operation takes it and returns it with the completion, so that nobody touches the bytes
/// meanwhile. To let peers read or write it, [share](Self::share) it.
pub struct Buffer {
    pages: Pages,
}

impl Buffer {
    pub(crate) fn new(domain: &Domain, len: usize, placement: Placement) -> Result<Self> {
        Ok(Self { pages: Pages::new(domain, len, placement)? })
    }

    /// Where its memory is, as [`Fabric::alloc_placed`](crate::Fabric::alloc_placed) was asked.
    /// When [sharing ends](crate::SharedBuffer::end) the buffer that comes back may be another one:
    /// if that could not be placed so, this says it.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.pages.placement
    }

    /// The range within the buffer; `None` if it is not inside, or is longer than an operation can
    /// be (4 GiB less a byte).
    pub(crate) fn range(&self, range: &impl RangeBounds<usize>) -> Option<Range<usize>> {
        let in_bytes = |bound: Bound<&usize>| bound.map(|&at| at as u64);
        let range = (in_bytes(range.start_bound()), in_bytes(range.end_bound()));
        let range = bounds::within(&range, self.pages.region.len() as u64)?;
        let is_short = u32::try_from(range.end - range.start).is_ok();
        is_short.then_some(range.start as usize..range.end as usize)
    }

    /// Registers the buffer for operations of this process.
    pub(crate) fn prepare(&mut self, is_for_read: bool) -> Result<()> {
        self.pages.register(is_for_read)
    }

    /// Registers a part for peers, and ends the registration for this process. The range lies
    /// inside.
    pub(crate) fn register(
        &mut self,
        range: &Range<usize>,
        access: Access,
    ) -> Result<Registration> {
        self.pages.end_registration()?;
        let part = self.pages.shared_part(range).ok_or(Error::Range { len: self.len() })?;
        // SAFETY: `&mut self` is the only way to the bytes; no operation and no registration has
        // them, because the buffer would be inside it.
        let unused = unsafe { Unused::new() };
        self.pages.domain.register_unused(part, access, unused).map_err(failed)
    }

    /// The buffer for a program whose operation has not begun.
    pub(crate) fn unused(mut self) -> Self {
        if self.pages.is_exposed() && self.pages.end_registration().is_err() {
            return self.replaced();
        }
        self
    }

    /// Another buffer with a copy of the bytes, for one that a broken device keeps open for peers.
    /// The process ends if there is no memory for it.
    #[cold]
    pub(crate) fn replaced(self) -> Self {
        let copy = self.copied();
        std::mem::forget(self);
        copy
    }

    /// Another buffer with a copy of the bytes, placed as this one if there is memory. The process
    /// ends if there is no memory at all.
    pub(crate) fn copied(&self) -> Self {
        let with = |placement| Self::new(&self.pages.domain, self.pages.region.len(), placement);
        let placed = with(self.pages.placement).or_else(|_| with(Placement::default()));
        let Ok(mut copy) = placed else { std::process::abort() };
        self.pages.region.fill(&mut copy);
        copy
    }

    /// Whether peers of this host could map the range if it were in pages of its own, and cannot
    /// where it is.
    pub(crate) fn needs_other_pages(&self, range: &Range<usize>) -> bool {
        let is_whole = |at: usize| at.is_multiple_of(page_size());
        let is_mappable = is_whole(range.start) && (is_whole(range.end) || range.end == self.len());
        self.pages.domain.maps_pages() && !is_mappable
    }

    /// A new buffer of the same fabric, on the same node, in pages that peers can map.
    pub(crate) fn another(&self, len: usize) -> Result<Self> {
        let placement = Placement { huge_pages: HugePages::No, ..self.pages.placement };
        Self::new(&self.pages.domain, len, placement)
    }

    /// The memory as a region, which is copied from and to.
    pub(crate) fn region(&self) -> Region {
        self.pages.region
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.pages.address()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes, initialised by the kernel, and lives as long as
        // `self`. No operation is under way and no peer has a right, since the buffer would be
        // inside a `Lent` or a `SharedBuffer`; so nobody writes.
        unsafe { std::slice::from_raw_parts(self.pages.start.as_ptr(), self.pages.region.len()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.pages.start.as_ptr(), self.pages.region.len());
        // SAFETY: the mapping has so many bytes, initialised by the kernel, and lives as long as
        // `self`, which is borrowed exclusively. No operation is under way and no peer has a right,
        // since the buffer would be inside a `Lent` or a `SharedBuffer`; so nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// Something whose memory an operation uses. It can only be had back.
#[derive(Debug)]
pub(crate) struct Lent<T>(T);

impl Lent<Place> {
    /// The place, now that the operation has ended or its queue pair is destroyed.
    pub(crate) fn end(self) -> Place {
        self.0
    }
}

impl Lent<Buffer> {
    /// The buffer, now that the operation has ended or its queue pair is destroyed. `None` if a
    /// device keeps it open for peers: then it is not used again.
    pub(crate) fn end(mut self) -> Option<Buffer> {
        if self.0.pages.is_exposed() && self.0.pages.end_registration().is_err() {
            std::mem::forget(self);
            return None;
        }
        Some(self.0)
    }
}

impl Buffer {
    /// Lends a range, which lies inside, to an operation.
    pub(crate) fn lend(self, range: &Range<usize>) -> (Sge, Lent<Self>) {
        (self.pages.piece(range), Lent(self))
    }
}

/// Equal places in registered memory, each of which one [`Place`] owns.
pub(crate) struct Places {
    pages: Pages,
    stride: usize,
}

/// The right to one place. There is one for each, so its owner is alone with the bytes.
#[derive(Debug)]
pub(crate) struct Place {
    address: usize,
}

impl Places {
    /// `count` places of `stride` bytes, a multiple of eight.
    pub(crate) fn new(domain: &Domain, count: usize, stride: usize) -> Result<(Self, Vec<Place>)> {
        let len = count.checked_mul(stride).ok_or(Error::Memory { len: usize::MAX })?;
        let mut pages = Pages::new(domain, len, Placement::default())?;
        pages.register(false)?;
        let start = pages.start.as_ptr() as usize;
        let places = (0..count).map(|index| Place { address: start + index * stride }).collect();
        Ok((Self { pages, stride }, places))
    }

    /// Where the place begins in the pages.
    ///
    /// # Panics
    /// If the place is one of other pages.
    fn offset(&self, place: &Place) -> usize {
        let start = self.pages.start.as_ptr() as usize;
        let offset = place.address.wrapping_sub(start);
        assert!(offset < self.pages.region.len(), "a place of other memory");
        offset
    }

    /// The bytes of a place.
    pub(crate) fn bytes<'a>(&'a self, place: &'a Place) -> &'a [u8] {
        let start = self.pages.start.as_ptr().wrapping_add(self.offset(place));
        // SAFETY: the place lies inside the mapping (`offset` checks it; places begin at multiples
        // of the stride), which lives as long as `self`. The owner of the place is alone with it:
        // there is one value for each, and while the carrier uses the bytes it is inside a `Lent`.
        unsafe { std::slice::from_raw_parts(start, self.stride) }
    }

    /// The bytes of a place, to change them.
    pub(crate) fn bytes_mut<'a>(&'a self, place: &'a mut Place) -> &'a mut [u8] {
        let start = self.pages.start.as_ptr().wrapping_add(self.offset(place));
        // SAFETY: the place lies inside the mapping (`offset` checks it; places begin at multiples
        // of the stride), which lives as long as `self`. There is one value for each place, which
        // is borrowed exclusively, and while the carrier uses the bytes it is inside a `Lent`.
        unsafe { std::slice::from_raw_parts_mut(start, self.stride) }
    }

    /// Lends the first `len` bytes of a place to an operation.
    pub(crate) fn lend(&self, place: Place, len: usize) -> (Sge, Lent<Place>) {
        let offset = self.offset(&place);
        (self.pages.piece(&(offset..offset + len.min(self.stride))), Lent(place))
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Places({} of {} bytes)", self.pages.region.len() / self.stride, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fabric, Options, Rights};

    fn fabric() -> Fabric {
        Fabric::open(Options::default()).unwrap()
    }

    fn errno(result: Result<Buffer>) -> Option<Errno> {
        match result {
            Err(Error::System { cause, .. }) => Some(cause),
            _ => None,
        }
    }

    /// The policy of the mapping that begins at an address, as the kernel shows it.
    fn policy_at(address: u64) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let line = maps.lines().find(|line| line.starts_with(&format!("{address:x} ")))?;
        line.split(' ').nth(1).map(str::to_owned)
    }

    #[test]
    fn buffer_stays_on_its_node_while_it_is_shared() {
        let fabric = fabric();
        let placement = Placement { node: Some(0), ..Placement::default() };
        let mut buffer = match fabric.alloc_placed(10_000, placement) {
            // A kernel without NUMA, or a container that forbids it.
            Err(Error::System { cause: Errno::PERM | Errno::NOSYS, .. }) => return,
            buffer => buffer.unwrap(),
        };
        buffer.fill(7);
        assert_eq!(policy_at(buffer.address()).as_deref(), Some("bind:0"));
        let address = buffer.address();
        let shared = buffer.share(Rights::ALL, ..).unwrap();
        assert_eq!(policy_at(address).as_deref(), Some("bind:0"));
        let buffer = shared.end();
        assert_eq!(policy_at(buffer.address()).as_deref(), Some("bind:0"));
        assert_eq!(buffer.placement(), placement);
        assert!(buffer.iter().all(|&byte| byte == 7));
        let none = Placement { node: Some(1_000), ..Placement::default() };
        assert_eq!(errno(fabric.alloc_placed(10_000, none)), Some(Errno::INVAL));
    }

    #[test]
    fn reserved_huge_pages_are_there_or_refused() {
        let fabric = fabric();
        let placement = Placement { huge_pages: HugePages::Reserved, ..Placement::default() };
        // No machine has so many.
        assert_eq!(errno(fabric.alloc_placed(1 << 46, placement)), Some(Errno::NOMEM));
        let mut buffer = match fabric.alloc_placed(5_000, placement) {
            Err(Error::System { cause: Errno::NOMEM, .. }) => return,
            buffer => buffer.unwrap(),
        };
        assert_eq!((buffer.len(), buffer.address() % HUGE_PAGE as u64), (5_000, 0));
        buffer[4_999] = 1;
        let shared = buffer.share(Rights::ALL, 4_096..).unwrap();
        let buffer = shared.end();
        assert_eq!((buffer[4_999], buffer.placement()), (1, placement));
    }

    #[test]
    fn huge_pages_that_are_wanted_are_no_condition() {
        let placement = Placement { huge_pages: HugePages::Wanted, ..Placement::default() };
        let buffer = fabric().alloc_placed(3 << 20, placement).unwrap();
        assert!(buffer.len() == 3 << 20 && buffer.iter().all(|&byte| byte == 0));
        let shared = buffer.share(Rights::ALL, ..).unwrap();
        assert_eq!(shared.end().placement(), placement);
        let too_long = fabric().alloc_placed(usize::MAX, placement).map(drop);
        assert_eq!(too_long, Err(Error::Memory { len: usize::MAX }));
    }
}
