//! Memory regions: a range of the program's memory, and accesses to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use smallvec::SmallVec;
use weft_sys::{Lock, Region};

use crate::access::Access;
use crate::limits::MR_SIZE_MAX;
use crate::pd::{Pd, PdUser};
use crate::shm::{self, Reach, Remapping};
use crate::{Errno, Result};

/// Why an access to registered memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The key names nothing (any more).
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
    /// Keeps the domain in use until deregistration.
    hold: Lock<Option<PdUser>>,
    region: Region,
    /// What a program calls the region's first byte; usually its address.
    iova: u64,
    access: Access,
    key: AtomicU32,
    valid: AtomicBool,
    /// Accesses in progress: deregistration waits for them.
    pins: AtomicU32,
    /// A peer may use the key directly: deregistration takes that back.
    pub(crate) granted: AtomicBool,
    /// Where its bytes are, in order.
    places: SmallVec<[Region; 1]>,
    /// What makes it, or parts of it, memory that peers can map, and keeps these in place.
    remapping: Lock<Option<Remapping>>,
    /// Windows bound here: deregistration fails while there are any.
    pub(crate) windows: AtomicUsize,
    /// Is notified of what peers write.
    observer: Option<Arc<dyn Observer>>,
}

/// Is notified of what peers write into a region. (No verb has this; adapters have it as "notified
/// writes".)
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// `len` bytes at `offset` from the region's beginning have been written. It is called by
    /// whichever thread makes progress, in the order in which they were written, and must not wait.
    fn written(&self, offset: usize, len: usize);
}

impl Mr {
    /// A region without a key.
    ///
    /// # Errors
    /// `EINVAL` for a region too long.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Arc<Self>> {
        if region.len() as u64 > MR_SIZE_MAX || iova.checked_add(region.len() as u64).is_none() {
            return Err(Errno::INVAL);
        }
        let remapping = Remapping::of(&region, access);
        Ok(Arc::new(Self {
            places: remapping.places(),
            remapping: Lock::new(Some(remapping)),
            pd: Arc::clone(pd),
            hold: Lock::new(Some(pd.user())),
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

    /// Checks that no window is bound to it.
    ///
    /// # Errors
    /// `EBUSY` while one is.
    pub(crate) fn check_unbound(&self) -> Result<()> {
        if self.windows.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Ends all access, and the use of the domain.
    pub(crate) fn retire(&self) {
        self.end_access();
        *self.hold.lock() = None;
    }

    /// Ends all access: what is in progress is over on return.
    //= rfc5040#section-8.1.1
    //# An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    //# after the ULP revokes remote access rights for an STag.
    pub(crate) fn end_access(&self) {
        self.valid.store(false, Ordering::SeqCst);
        if self.granted.load(Ordering::SeqCst) {
            shm::revoke(self.key());
        }
        self.settle();
        *self.remapping.lock() = None;
    }

    /// Waits for accesses in progress, each of which lasts for one copy.
    pub(crate) fn settle(&self) {
        while self.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }

    /// Gives it its key.
    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Release);
    }

    /// The local and remote key (they are the same).
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// What the region grants.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether an observer is notified of what peers write.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Whether the keys work.
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.load(Ordering::SeqCst)
    }

    /// How peers reach it; `None` if they do not.
    pub(crate) fn reach(&self) -> Option<Reach> {
        self.remapping.lock().as_ref().and_then(Remapping::reach)
    }

    /// Name of the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    pub(crate) fn len(&self) -> u64 {
        self.region.len() as u64
    }

    /// Holds the region still for one access to `len` bytes at `addr`.
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

    /// Where `len` bytes behind `offset` are, if they are together.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> Option<Region> {
        let mut start = 0;
        self.places.iter().find_map(|place| {
            let found = offset.checked_sub(start).and_then(|offset| place.part(offset, len));
            start += place.len();
            found
        })
    }
}

/// Memory that stays registered while this value lives. Held for one copy, never across a wait.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    mr: &'a Mr,
    /// Where in the region it begins.
    offset: usize,
    len: usize,
}

impl Pin<'_> {
    /// Where it is, if it is together.
    pub(crate) fn place(&self) -> Option<Region> {
        self.mr.place(self.offset, self.len)
    }

    /// Where its bytes are, in order; without bytes nowhere.
    pub(crate) fn places(&self) -> impl Iterator<Item = Region> {
        let (offset, end) = (self.offset, self.offset + self.len);
        let mut start = 0;
        self.mr.places.iter().filter_map(move |place| {
            let (first, last) = (start, start + place.len());
            start = last;
            let (from, to) = (first.max(offset), last.min(end));
            if from < to { place.part(from - first, to - from) } else { None }
        })
    }

    /// A peer has written to all of it.
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

/// A region that stays registered while this value lives. Held for a few copies, never across a
/// wait.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    key: u32,
    pin: Pin<'a>,
}

impl<'a> Held<'a> {
    /// Holds the region with this key still.
    pub(crate) fn new(key: u32, mr: &'a Mr) -> std::result::Result<Self, AccessError> {
        Ok(Self { key, pin: mr.pin(mr.iova(), mr.len())? })
    }

    /// Whether it is the region of a key.
    pub(crate) fn is_of(&self, key: u32) -> bool {
        self.key == key
    }

    /// `len` bytes at `addr`; `None` when they do not lie inside, or are not together.
    pub(crate) fn part(&self, addr: u64, len: u64) -> Option<Region> {
        let offset = usize::try_from(addr.checked_sub(self.pin.mr.iova)?).ok()?;
        self.pin.mr.place(offset, usize::try_from(len).ok()?)
    }
}

/// Protection domains whose memory counts as well.
pub(crate) trait MoreDomains: std::fmt::Debug {
    /// Whether memory of a protection domain may be reached.
    fn serves(&self, pd: &Arc<Pd>) -> bool;
}

/// On whose behalf memory is accessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessContext<'a> {
    pub(crate) pd: &'a Arc<Pd>,
    /// Whose protection domains count as well, for the target of an extended connection.
    pub(crate) xrcd: Option<&'a dyn MoreDomains>,
    /// The queue pair, for windows of type 2, which belong to one.
    pub(crate) qp_num: u32,
}

impl AccessContext<'_> {
    /// Whether memory of a protection domain is open to it.
    pub(crate) fn belongs_to(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(pd, self.pd) || self.xrcd.is_some_and(|xrcd| xrcd.serves(pd))
    }
}
