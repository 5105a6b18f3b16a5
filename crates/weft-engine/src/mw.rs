//! Memory windows, type 1 and type 2.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_sys::Lock;

use crate::access::Access;
use crate::mr::{AccessContext, AccessError, Mr, Pin};
use crate::pd::{Pd, PdUser};
use crate::{Errno, Result};

/// `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by `ibv_bind_mw`; belongs to the protection domain.
    One,
    /// Bound by a send work request; belongs to the queue pair that bound it.
    Two,
}

/// The memory behind a window (`struct ibv_mw_bind_info`).
#[derive(Clone, Debug)]
pub struct WindowBind {
    /// The region; `None` only when `length` is 0.
    pub region: Option<Arc<Mr>>,
    /// First address, in the region's addresses.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub length: u64,
    /// Rights of the window.
    pub access: Access,
}

#[derive(Debug)]
struct Bound {
    region: Arc<Mr>,
    addr: u64,
    length: u64,
    access: Access,
    qp_num: u32,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Wait for accesses through the window, so that none is in progress once it is unbound.
        self.region.wait_for_pins();
        self.region.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A memory window: a remote key for a part of a region that is bound and unbound without
/// registration.
#[derive(Debug)]
pub struct Mw {
    pd: PdUser,
    kind: WindowType,
    key: AtomicU32,
    bound: Lock<Option<Bound>>,
}

impl Mw {
    /// Creates a window without a key.
    pub(crate) fn new(pd: &Arc<Pd>, kind: WindowType) -> Arc<Self> {
        Arc::new(Self { pd: pd.user(), kind, key: AtomicU32::new(0), bound: Lock::new(None) })
    }

    /// Sets the key.
    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Release);
    }

    /// Unbinds it.
    pub(crate) fn unbind(&self) {
        *self.bound.lock() = None;
    }

    /// The remote key.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        self.pd.pd()
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The key for the next binding of a type 1 window; each binding has another key.
    #[must_use]
    pub fn next_key(&self) -> u32 {
        let key = self.key();
        key & !0xff | key.wrapping_add(1) & 0xff
    }

    /// Binds, re-binds or (length 0) unbinds the window and changes its key to `rkey`; `rename`
    /// changes it in the process's table.
    ///
    /// # Errors
    /// `EINVAL` for a binding that the verbs manual forbids: another protection domain, no right to
    /// bind, remote rights without local write, a range outside the region, or a type 2 window that
    /// is already bound. Also the errors of `rename`.
    pub(crate) fn bind_as(
        &self,
        qp_num: u32,
        rkey: u32,
        bind: &WindowBind,
        rename: impl FnOnce(u32, u32) -> Result<()>,
    ) -> Result<()> {
        let mut bound = self.bound.lock();
        let fresh = match (&bind.region, bind.length) {
            (_, 0) => None,
            (None, _) => return Err(Errno::INVAL),
            (Some(region), length) => Some(self.check(region, length, bind, &bound, qp_num)?),
        };
        rename(self.key(), rkey)?;
        self.set_key(rkey);
        *bound = fresh;
        Ok(())
    }

    fn check(
        &self,
        region: &Arc<Mr>,
        length: u64,
        bind: &WindowBind,
        bound: &Option<Bound>,
        qp_num: u32,
    ) -> Result<Bound> {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let inside = bind
            .addr
            .checked_sub(region.iova())
            .and_then(|offset| offset.checked_add(length))
            .is_some_and(|end| end <= region.len());
        let allowed = Arc::ptr_eq(region.pd(), self.pd())
            && region.access().contains(Access::MW_BIND)
            && (!bind.access.intersects(changes) || region.access().contains(Access::LOCAL_WRITE));
        if !inside || !allowed || (self.kind == WindowType::Two && bound.is_some()) {
            return Err(Errno::INVAL);
        }
        region.windows.fetch_add(1, Ordering::AcqRel);
        let region = Arc::clone(region);
        Ok(Bound { region, addr: bind.addr, length, access: bind.access, qp_num })
    }

    /// Unbinds the window because queue pair `qp_num` or its peer invalidates the key. Returns
    /// false if it may not: the window is of type 1, or another queue pair has bound it.
    pub(crate) fn invalidate(&self, qp_num: u32) -> bool {
        let mut bound = self.bound.lock();
        let own =
            self.kind == WindowType::Two && bound.as_ref().is_some_and(|b| b.qp_num == qp_num);
        if own {
            *bound = None;
        }
        own
    }

    /// Checks an access through the window and pins the memory behind it. `found` keeps the region
    /// alive meanwhile. Only the window's rights are checked; binding has checked the region's.
    pub(crate) fn access<'a>(
        &self,
        context: AccessContext<'_>,
        addr: u64,
        len: u64,
        needs: Access,
        found: &'a mut Option<Arc<Mr>>,
    ) -> std::result::Result<Pin<'a>, AccessError> {
        // Keep the lock until the memory is pinned, so that unbinding waits for the pin.
        let bound = self.bound.lock();
        let bound = bound.as_ref().ok_or(AccessError::Key)?;
        //= rfc5041#section-8.2
        //# DDP MUST support Protection Domain association and DDP Stream association mechanisms for
        //# associating an STag and a DDP Stream.
        let own = match self.kind {
            WindowType::One => context.belongs_to(self.pd()),
            WindowType::Two => bound.qp_num == context.qp_num,
        };
        if !own {
            return Err(AccessError::Domain);
        }
        if !bound.access.contains(needs) {
            return Err(AccessError::Rights);
        }
        let (addr, start) = if bound.access.contains(Access::ZERO_BASED) {
            (bound.addr.checked_add(addr).ok_or(AccessError::Bounds)?, bound.addr)
        } else {
            (addr, bound.addr)
        };
        let end = addr.checked_add(len).ok_or(AccessError::Bounds)?;
        if addr < start || end > start + bound.length {
            return Err(AccessError::Bounds);
        }
        found.insert(Arc::clone(&bound.region)).pin(addr, len)
    }
}
