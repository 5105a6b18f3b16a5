//! Memory regions, and the check that every access to registered memory goes through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use smallvec::SmallVec;
use weft_sys::{Lock, Region};

use crate::access::Access;
use crate::keys::{self, Keyed};
use crate::limits::MR_SIZE_MAX;
use crate::pd::{Pd, PdUser};
use crate::shm::{self, Adoption, Reach};
use crate::xrc::Xrcd;
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
    adoption: Lock<Option<Adoption>>,
    /// Windows bound here: deregistration fails while there are any.
    pub(crate) windows: AtomicUsize,
    /// Who is told of what peers write.
    observer: Option<Arc<dyn Observer>>,
}

/// Is told of what peers write into a region. (No verb has this; adapters have it as "notified
/// writes".)
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// `len` bytes at `offset` from the region's beginning have been written. It is called by
    /// whichever thread makes progress, in the order in which they were written, and must not wait.
    fn written(&self, offset: usize, len: usize);
}

impl Mr {
    /// `ibv_reg_mr_iova2`: registers `region`, whose first byte is called `iova` from now on.
    ///
    /// # Errors
    /// `EINVAL` for a region too long; `ENOMEM` when there are too many.
    pub fn register(pd: &Arc<Pd>, region: Region, iova: u64, access: Access) -> Result<Arc<Self>> {
        Self::new(pd, region, iova, access, None)?.insert()
    }

    /// Registers `region`, of which `observer` is told what peers write. They write to it through
    /// this process, never to its memory directly.
    ///
    /// # Errors
    /// Those of [`Mr::register`].
    pub fn register_observed(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<Self>> {
        Self::new(pd, region, iova, access, Some(observer))?.insert()
    }

    fn insert(self: Arc<Self>) -> Result<Arc<Self>> {
        keys::insert(|key| {
            self.key.store(key, Ordering::Release);
            Keyed::Region(Arc::clone(&self))
        })?;
        Ok(self)
    }

    fn new(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Arc<Self>> {
        if region.len() as u64 > MR_SIZE_MAX || iova.checked_add(region.len() as u64).is_none() {
            return Err(Errno::INVAL);
        }
        let adoption = Adoption::of(&region, access);
        Ok(Arc::new(Self {
            places: adoption.places(),
            adoption: Lock::new(Some(adoption)),
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

    /// `ibv_rereg_mr`: a region with the key of this one, which ends as by [`Mr::deregister`]. On
    /// failure this one stays as it is.
    ///
    /// # Errors
    /// Those of [`Mr::register`] and [`Mr::deregister`]; `EINVAL` when the key is invalidated.
    pub fn reregister(
        &self,
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Self>> {
        self.check_unbound()?;
        let fresh = Self::new(pd, region, iova, access, None)?;
        fresh.key.store(self.key(), Ordering::Release);
        keys::replace(self.key(), Keyed::Region(Arc::clone(&fresh)))?;
        self.retire();
        Ok(fresh)
    }

    /// `ibv_dereg_mr`: the keys stop working, and accesses in progress have ended on return.
    ///
    /// # Errors
    /// `EBUSY` while a memory window is bound to the region.
    pub fn deregister(&self) -> Result<()> {
        self.check_unbound()?;
        keys::remove(self.key());
        self.retire();
        Ok(())
    }

    /// The region that is registered under this key.
    #[must_use]
    pub fn find(key: u32) -> Option<Arc<Self>> {
        match keys::find(key)? {
            Keyed::Region(mr) => Some(mr),
            _ => None,
        }
    }

    fn check_unbound(&self) -> Result<()> {
        if self.windows.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Makes the keys unusable for a work request or a peer, and waits for accesses in progress.
    pub(crate) fn invalidate(&self) {
        keys::remove(self.key());
        self.end_access();
    }

    fn retire(&self) {
        self.end_access();
        *self.hold.lock() = None;
    }

    //= rfc5040#section-8.1.1
    //# An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    //# after the ULP revokes remote access rights for an STag.
    fn end_access(&self) {
        self.valid.store(false, Ordering::SeqCst);
        if self.granted.load(Ordering::SeqCst) {
            shm::revoke(self.key());
        }
        self.settle();
        *self.adoption.lock() = None;
    }

    /// Waits for accesses in progress, each of which lasts for one copy.
    pub(crate) fn settle(&self) {
        while self.pins.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
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

    /// Whether somebody is told of what peers write.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Whether the keys work.
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.load(Ordering::SeqCst)
    }

    /// How peers reach it; `None` if they do not.
    pub(crate) fn reach(&self) -> Option<Reach> {
        self.adoption.lock().as_ref().and_then(Adoption::reach)
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
    pub(crate) fn tell_written(&self) {
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

impl Held<'_> {
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

/// Who asks for an access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessContext<'a> {
    pub(crate) pd: &'a Arc<Pd>,
    /// Whose protection domains count as well, for the target of an extended connection.
    pub(crate) xrcd: Option<&'a Xrcd>,
    /// The queue pair, for windows of type 2, which belong to one.
    pub(crate) qp_num: u32,
}

impl AccessContext<'_> {
    /// Whether memory of a protection domain is open to it.
    pub(crate) fn belongs_to(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(pd, self.pd) || self.xrcd.is_some_and(|xrcd| xrcd.serves(pd))
    }
}

/// Finds the memory that keys name, and remembers the last, so that a stream of messages to one
/// region does not go through the process's table each time.
#[derive(Debug, Default)]
pub(crate) struct MrCache {
    last: Option<Arc<Mr>>,
}

impl MrCache {
    /// Holds a whole region of this side's still, for several copies. The caller checks nothing
    /// further than what [`Held::part`] does.
    pub(crate) fn hold(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        needs: Access,
    ) -> std::result::Result<Held<'_>, AccessError> {
        let remembered = self.last.as_ref().is_some_and(|mr| mr.key() == key && mr.is_valid());
        if !remembered {
            match keys::find(key) {
                Some(Keyed::Region(mr)) => self.last = Some(mr),
                _ => return Err(AccessError::Key),
            }
        }
        let mr = self.last.as_ref().ok_or(AccessError::Key)?;
        if !context.belongs_to(mr.pd()) {
            return Err(AccessError::Domain);
        }
        if !mr.access.contains(needs) {
            return Err(AccessError::Rights);
        }
        Ok(Held { key, pin: mr.pin(mr.iova(), mr.len())? })
    }

    /// Finds the memory that `key` names and checks domain, rights and bounds, in this order
    /// (RFC 5040 section 8.1.1 leaves the order open; it decides which error a peer sees).
    pub(crate) fn access(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> std::result::Result<Pin<'_>, AccessError> {
        let remembered = self.last.as_ref().is_some_and(|mr| mr.key() == key && mr.is_valid());
        let (mr, addr) = if remembered {
            (self.last.as_ref().ok_or(AccessError::Key)?, addr)
        } else {
            match keys::find(key).ok_or(AccessError::Key)? {
                Keyed::Region(mr) => (&*self.last.insert(mr), addr),
                Keyed::Window(window) => {
                    return window.access(context, addr, len, needs, &mut self.last);
                }
                Keyed::Reserved => return Err(AccessError::Key),
            }
        };
        //= rfc5040#section-8.1.1
        //# An RNIC MUST ensure that a specific Stream in a specific Protection Domain cannot access
        //# an STag in a different Protection Domain.
        //= rfc5041#section-8.2
        //# For an incoming DDP Segment of a Tagged DDP Message on a DDP Stream, if the PD ID of the
        //# DDP Stream is not the same as the PD ID of the STag targeted by the Tagged DDP Message,
        //# then the DDP Segment is not Placed, and the DDP layer MUST surface a local error to the
        //# ULP.
        if !context.belongs_to(mr.pd()) {
            return Err(AccessError::Domain);
        }
        //= rfc5040#section-8.1.1
        //# An RNIC MUST provide a mechanism for the ULP to establish and revoke read, write, or
        //# read and write access to the ULP Buffer referenced by an STag.
        if !mr.access.contains(needs) {
            return Err(AccessError::Rights);
        }
        mr.pin(addr, len)
    }
}
