//! Memory regions: ranges of the program's memory, and accesses to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use smallvec::SmallVec;
use weft_sys::{Lock, Region, Unused};

use crate::access::Access;
use crate::limits::MR_SIZE_MAX;
use crate::pd::{Pd, PdUser};
use crate::shm::{self, Reach, Remapping};
use crate::{Errno, Result};

/// Why an access to registered memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The key is not in use, or not any more.
    Key,
    /// The key belongs to another protection domain or queue pair.
    Domain,
    /// The range is not inside the region.
    Bounds,
    /// The region does not grant the right.
    Rights,
}

/// A memory region: a range of the program's memory, its keys and rights.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    /// Reference to the protection domain until deregistration.
    pd_user: Lock<Option<PdUser>>,
    region: Region,
    /// The address of the first byte in work requests; usually its virtual address.
    iova: u64,
    access: Access,
    key: AtomicU32,
    valid: AtomicBool,
    /// Accesses in progress, which deregistration waits for.
    pins: AtomicU32,
    /// Whether a peer has a grant for the key, which deregistration revokes.
    pub(crate) granted: AtomicBool,
    /// The extents of memory that hold the region's bytes, in order.
    extents: SmallVec<[Region; 1]>,
    /// Keeps the region, or parts of it, remapped as shared, so that peers can map it.
    remapping: Lock<Option<Remapping>>,
    /// Windows bound to this region; deregistration fails while there are any.
    pub(crate) windows: AtomicUsize,
    /// Notified of peers' writes.
    observer: Option<Arc<dyn Observer>>,
}

/// Receives a notification of each write of a peer to a region. (Verbs have no such call; some
/// adapters offer it as "notified writes".)
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Called after `len` bytes at `offset` from the region's start have been written. The thread
    /// that makes progress calls it, in the order of the writes; it must not wait.
    fn written(&self, offset: usize, len: usize);
}

impl Mr {
    /// Creates a region without a key.
    ///
    /// # Errors
    /// `EINVAL` if the region is too long.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        (observer, unused): (Option<Arc<dyn Observer>>, Option<Unused>),
    ) -> Result<Arc<Self>> {
        if region.len() as u64 > MR_SIZE_MAX || iova.checked_add(region.len() as u64).is_none() {
            return Err(Errno::INVAL);
        }
        let remapping = Remapping::of(&region, access, unused.as_ref());
        Ok(Arc::new(Self {
            extents: remapping.extents(),
            remapping: Lock::new(Some(remapping)),
            pd: Arc::clone(pd),
            pd_user: Lock::new(Some(pd.user())),
            region,
            iova: if access.contains(Access::ZERO_BASED) { 0 } else { iova },
            access,
            key: AtomicU32::new(0),
            valid: AtomicBool::new(true),
            pins: AtomicU32::new(0),
            granted: AtomicBool::new(false),
            windows: AtomicUsize::new(0),
            observer,
        }))
    }

    /// Checks that no window is bound to the region.
    ///
    /// # Errors
    /// `EBUSY` if a window is bound.
    pub(crate) fn check_unbound(&self) -> Result<()> {
        if self.windows.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Ends all access, and drops the reference to the protection domain.
    pub(crate) fn retire(&self) {
        self.end_access();
        *self.pd_user.lock() = None;
    }

    /// Ends all access: on return no access is in progress.
    //= rfc5040#section-8.1.1
    //# An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    //# after the ULP revokes remote access rights for an STag.
    pub(crate) fn end_access(&self) {
        self.valid.store(false, Ordering::SeqCst);
        if self.granted.load(Ordering::SeqCst) {
            shm::revoke(self.key());
        }
        self.wait_for_pins();
        *self.remapping.lock() = None;
    }

    /// Waits until no access is in progress. Each lasts for one copy at most.
    pub(crate) fn wait_for_pins(&self) {
        while self.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }

    /// Sets the key.
    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Release);
    }

    /// The local and remote key (they are the same).
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Whether a peer may have mapped a part of the memory. If it has, it keeps the mapping, and
    /// the memory stays shared after the registration as long as this process has other threads.
    #[must_use]
    pub fn is_mappable(&self) -> bool {
        self.remapping.lock().as_ref().is_some_and(Remapping::is_shared)
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The access rights that the region grants.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the region has an observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Whether the key is valid.
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.load(Ordering::SeqCst)
    }

    /// How peers reach the memory directly; `None` if they cannot.
    pub(crate) fn reach(&self) -> Option<Reach> {
        self.remapping.lock().as_ref().and_then(Remapping::reach)
    }

    /// The address of the first byte in work requests.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    pub(crate) fn len(&self) -> u64 {
        self.region.len() as u64
    }

    /// Pins `len` bytes at `addr` for one access.
    pub(crate) fn pin(&self, addr: u64, len: u64) -> std::result::Result<Pin<'_>, AccessError> {
        self.pins.fetch_add(1, Ordering::SeqCst);
        let mut pin = Pin { mr: self, offset: 0, len: 0 };
        if !self.valid.load(Ordering::SeqCst) {
            return Err(AccessError::Key);
        }
        //= rfc5041#section-8.3
        //# STags are only valid over the exact byte range established by the ULP.
        //= rfc5041#section-8.3.1
        //# An RNIC MUST ensure that a Remote Peer is not able to access memory outside the buffer
        //# specified when the STag was enabled for remote access.
        let offset = addr.checked_sub(self.iova).ok_or(AccessError::Bounds)?;
        let offset = usize::try_from(offset).map_err(|_| AccessError::Bounds)?;
        let len = usize::try_from(len).map_err(|_| AccessError::Bounds)?;
        self.region.part(offset, len).ok_or(AccessError::Bounds)?;
        (pin.offset, pin.len) = (offset, len);
        Ok(pin)
    }

    /// The memory of `len` bytes at `offset`, if they are in one extent.
    #[inline]
    fn contiguous(&self, offset: usize, len: usize) -> Option<Region> {
        let mut start = 0;
        self.extents.iter().find_map(|extent| {
            let found = offset.checked_sub(start).and_then(|offset| extent.part(offset, len));
            start += extent.len();
            found
        })
    }
}

/// A pinned range: deregistration waits until it is dropped. Held for one copy, never across
/// a wait.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    mr: &'a Mr,
    /// Where the range starts in the region.
    offset: usize,
    len: usize,
}

impl Pin<'_> {
    /// The memory of the range, if it is in one extent.
    pub(crate) fn contiguous(&self) -> Option<Region> {
        self.mr.contiguous(self.offset, self.len)
    }

    /// The memory of the range, extent by extent; empty if the range is.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Region> {
        let (offset, end) = (self.offset, self.offset + self.len);
        let mut start = 0;
        self.mr.extents.iter().filter_map(move |extent| {
            let (first, last) = (start, start + extent.len());
            start = last;
            let (from, to) = (first.max(offset), last.min(end));
            if from < to { extent.part(from - first, to - from) } else { None }
        })
    }

    /// Notifies the observer that a peer has written to the whole range.
    pub(crate) fn notify_observer(&self) {
        if let Some(observer) = &self.mr.observer {
            observer.written(self.offset, self.len);
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.mr.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pinned region: deregistration waits until it is dropped. Held for a few copies, never
/// across a wait.
#[derive(Debug)]
pub(crate) struct PinnedRegion<'a> {
    key: u32,
    pin: Pin<'a>,
}

impl<'a> PinnedRegion<'a> {
    /// Pins the whole region of this key.
    pub(crate) fn new(key: u32, mr: &'a Mr) -> std::result::Result<Self, AccessError> {
        Ok(Self { key, pin: mr.pin(mr.iova(), mr.len())? })
    }

    /// Whether this is the region of `key`.
    pub(crate) fn is_of(&self, key: u32) -> bool {
        self.key == key
    }

    /// The memory of `len` bytes at `addr`; `None` if they are outside the region or in several
    /// extents.
    pub(crate) fn part(&self, addr: u64, len: u64) -> Option<Region> {
        let offset = usize::try_from(addr.checked_sub(self.pin.mr.iova)?).ok()?;
        self.pin.mr.contiguous(offset, usize::try_from(len).ok()?)
    }
}

/// Protection domains that an access may use besides the queue pair's own.
pub(crate) trait ExtraDomains: std::fmt::Debug {
    /// Whether memory of a protection domain may be accessed.
    fn permits(&self, pd: &Arc<Pd>) -> bool;
}

/// The queue pair that accesses memory, and its protection domains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessContext<'a> {
    pub(crate) pd: &'a Arc<Pd>,
    /// Further protection domains, if the queue pair is the target of an extended connection.
    pub(crate) xrcd: Option<&'a dyn ExtraDomains>,
    /// The queue pair's number: a type 2 window belongs to a queue pair.
    pub(crate) qp_num: u32,
}

impl AccessContext<'_> {
    /// Whether memory of a protection domain may be accessed.
    pub(crate) fn belongs_to(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(pd, self.pd) || self.xrcd.is_some_and(|xrcd| xrcd.permits(pd))
    }
}
