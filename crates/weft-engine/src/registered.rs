//! Registered memory: the process's table of regions and windows by key, and the check that every
//! access passes.

use std::sync::Arc;

use weft_sys::{Forkable, Region, Unused};

use crate::Result;
use crate::access::Access;
use crate::keys::Keys;
use crate::mr::{AccessContext, AccessError, Mr, Observer, Pin, PinnedRegion};
use crate::mw::{Mw, WindowBind, WindowType};
use crate::pd::Pd;

/// The object of a key.
#[derive(Clone, Debug)]
pub(crate) enum Keyed {
    Region(Arc<Mr>),
    Window(Arc<Mw>),
    /// A key that no access may use, because a queue pair reserved it for its own protocol.
    Reserved,
}

static TABLE: Forkable<Keys<Keyed>> = Forkable::new(Keys::default);

/// The object of the key, if it is in use.
pub(crate) fn find(key: u32) -> Option<Keyed> {
    TABLE.get().find(key)
}

/// Reserves a key that no access may use.
///
/// # Errors
/// `ENOMEM` if too many keys are in use.
pub(crate) fn reserve() -> Result<u32> {
    TABLE.get().insert(|_| Keyed::Reserved)
}

/// Frees a key. Does nothing if the key is not in use.
pub(crate) fn release(key: u32) {
    TABLE.get().remove(key);
}

impl Mr {
    /// `ibv_reg_mr_iova2`: registers `region`; work requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `EINVAL` if the region is too long; `ENOMEM` if there are too many.
    pub fn register(pd: &Arc<Pd>, region: Region, iova: u64, access: Access) -> Result<Arc<Self>> {
        Self::new(pd, region, iova, access, (None, None))?.insert()
    }

    /// Registers `region`, whose memory nobody else uses meanwhile, so that peers can map it
    /// although the process has other threads.
    ///
    /// # Errors
    /// Those of [`Mr::register`].
    pub fn register_unused(
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
        unused: Unused,
    ) -> Result<Arc<Self>> {
        Self::new(pd, region, iova, access, (None, Some(unused)))?.insert()
    }

    /// Registers `region`, whose `observer` is notified of peers' writes. Peers write to it through
    /// this process, never directly to its memory.
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
        Self::new(pd, region, iova, access, (Some(observer), None))?.insert()
    }

    fn insert(self: Arc<Self>) -> Result<Arc<Self>> {
        TABLE.get().insert(|key| {
            self.set_key(key);
            Keyed::Region(Arc::clone(&self))
        })?;
        Ok(self)
    }

    /// `ibv_rereg_mr`: creates a region with this region's key and ends this one as
    /// [`Mr::deregister`] does. If it fails, this region stays as it is.
    ///
    /// # Errors
    /// Those of [`Mr::register`] and [`Mr::deregister`]; `EINVAL` if the key has been invalidated.
    pub fn reregister(
        &self,
        pd: &Arc<Pd>,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Self>> {
        self.check_unbound()?;
        let fresh = Self::new(pd, region, iova, access, (None, None))?;
        fresh.set_key(self.key());
        TABLE.get().replace(self.key(), Keyed::Region(Arc::clone(&fresh)))?;
        self.retire();
        Ok(fresh)
    }

    /// `ibv_dereg_mr`: invalidates the key. On return no access is in progress.
    ///
    /// # Errors
    /// `EBUSY` while a memory window is bound to the region.
    pub fn deregister(&self) -> Result<()> {
        self.check_unbound()?;
        TABLE.get().remove(self.key());
        self.retire();
        Ok(())
    }

    /// The region that is registered under `key`.
    #[must_use]
    pub fn find(key: u32) -> Option<Arc<Self>> {
        match TABLE.get().find(key)? {
            Keyed::Region(mr) => Some(mr),
            _ => None,
        }
    }

    /// Invalidates the key for a work request or a peer, and waits for accesses in progress.
    pub(crate) fn invalidate(&self) {
        TABLE.get().remove(self.key());
        self.end_access();
    }
}

impl Mw {
    /// `ibv_alloc_mw`.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many keys.
    pub fn allocate(pd: &Arc<Pd>, kind: WindowType) -> Result<Arc<Self>> {
        let window = Self::new(pd, kind);
        TABLE.get().insert(|key| {
            window.set_key(key);
            Keyed::Window(Arc::clone(&window))
        })?;
        Ok(window)
    }

    /// `ibv_dealloc_mw`: invalidates the key.
    pub fn deallocate(&self) {
        TABLE.get().remove(self.key());
        self.unbind();
    }

    /// Binds, re-binds or (length 0) unbinds the window, and changes its key to `rkey`.
    ///
    /// # Errors
    /// Those of [`Mw::bind_as`]; `EINVAL` if `rkey` is not a key of this window.
    pub(crate) fn bind(&self, qp_num: u32, rkey: u32, bind: &WindowBind) -> Result<()> {
        self.bind_as(qp_num, rkey, bind, |old, new| TABLE.get().rename(old, new))
    }
}

/// Finds the memory of a key, and remembers the last region, so that a stream of messages to one
/// region does not search the process's table each time.
#[derive(Debug, Default)]
pub(crate) struct MrCache {
    last: Option<Arc<Mr>>,
}

impl MrCache {
    /// Pins a whole region of this process for several copies. Each copy's bounds are checked by
    /// [`PinnedRegion::part`].
    pub(crate) fn pin_region(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        needs: Access,
    ) -> std::result::Result<PinnedRegion<'_>, AccessError> {
        let remembered = self.last.as_ref().is_some_and(|mr| mr.key() == key && mr.is_valid());
        if !remembered {
            match find(key) {
                Some(Keyed::Region(mr)) => self.last = Some(mr),
                _ => return Err(AccessError::Key),
            }
        }
        let mr = self.last.as_ref().ok_or(AccessError::Key)?;
        if !context.belongs_to(mr.pd()) {
            return Err(AccessError::Domain);
        }
        if !mr.access().contains(needs) {
            return Err(AccessError::Rights);
        }
        PinnedRegion::new(key, mr)
    }

    /// Finds the memory of `key` and checks protection domain, rights and bounds, in this order.
    /// (RFC 5040 section 8.1.1 leaves the order open; it decides which error a peer sees.)
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
            match find(key).ok_or(AccessError::Key)? {
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
        if !mr.access().contains(needs) {
            return Err(AccessError::Rights);
        }
        mr.pin(addr, len)
    }
}
