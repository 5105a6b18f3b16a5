//! Memory regions.
//!
//! # Safety
//! A program keeps registered memory mapped until it deregisters it, as any device requires;
//! [`Region::new`] requires this, too. A program passes live objects of this library.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use weft_engine::access::Access;
use weft_engine::mr::Mr as EngineMr;
use weft_engine::{Errno, Result};
use weft_sys::{Lock, Region};

use crate::abi::{
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_FLAGS_SUPPORTED, ib_uverbs_advise_mr_advice,
    ibv_mr, ibv_pd, ibv_sge,
};
use crate::errno;
use crate::object::{self, AbiState, Object};
use crate::pd::{Pd, Use};

/// `IBV_ADVISE_MR_FLAG_FLUSH`.
const ADVISE_FLUSH: u32 = 1;
/// `enum ibv_rereg_mr_err_code`: invalid input, after which the old region is valid, and a failed
/// command, after which programs must not use it.
const REREG_ERR_INPUT: c_int = -1;
const REREG_ERR_CMD: c_int = -4;

/// A value that keeps the memory of a region allocated until it is dropped.
pub(crate) trait KeepAlive: std::fmt::Debug + Send + Sync {}

/// The state of an `ibv_mr`.
#[derive(Debug)]
pub(crate) struct Mr {
    registered: Lock<Registered>,
    /// Keeps the memory of the region allocated if it is not the program's.
    _held: Option<Box<dyn KeepAlive>>,
}

#[derive(Debug)]
struct Registered {
    engine: Arc<EngineMr>,
    iova: u64,
    access: u32,
    _pd: Use,
}

impl AbiState for Mr {
    type C = ibv_mr;
}

impl Mr {
    /// The engine's current region.
    pub(crate) fn engine(&self) -> Arc<EngineMr> {
        Arc::clone(&self.registered.lock().engine)
    }

    /// The region at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a region that is not deregistered during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_mr) -> &'a Object<Self> {
        // SAFETY: every `ibv_mr` that a program has was created by `create` or `wrap` below, and
        // the caller guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// Checks that memory is mapped, as the kernel does when it pins pages for a device. A program that
/// registers unmapped memory gets an error now, instead of a signal when a peer writes to it.
///
/// # Errors
/// `EFAULT` if a page is not mapped.
fn check_mapped(addr: usize, length: usize) -> Result<()> {
    // SAFETY: `sysconf` has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| Errno::INVAL)?;
    let start = addr & !(page - 1);
    // SAFETY: `msync` accesses no memory. With MS_ASYNC, Linux since 2.6.19 only walks the
    // mappings, and fails with ENOMEM if a page has none (msync(2)).
    let code = unsafe { libc::msync(start as *mut c_void, addr - start + length, libc::MS_ASYNC) };
    if code == 0 { Ok(()) } else { Err(Errno::FAULT) }
}

/// Checks a range that a program wants to register, and returns it as a region.
fn region_of(addr: usize, length: usize) -> Result<Region> {
    if length == 0 || addr.checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    check_mapped(addr, length)?;
    // SAFETY: the memory is mapped (checked above), and the program keeps it mapped until it
    // deregisters it.
    unsafe { Region::new(addr, length) }.ok_or(Errno::INVAL)
}

unsafe fn create(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr> {
    // SAFETY: the program passes a live protection domain.
    let state = unsafe { Pd::of(pd) };
    let rights = Access::for_region(access)?;
    let region = region_of(addr.addr(), length)?;
    let engine = EngineMr::register(state.engine(), region, iova, rights)?;
    let key = engine.key();
    let context = state.context();
    let c = ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    let registered = Registered { engine, iova, access, _pd: state.hold() };
    Ok(object::create(c, Mr { registered: Lock::new(registered), _held: None }))
}

/// Creates the C object of a region that is registered in the domain, and whose memory has no
/// address in the program. `held` is dropped with the object.
///
/// # Safety
/// `pd` must be live.
pub(crate) unsafe fn wrap(
    pd: *mut ibv_pd,
    engine: Arc<EngineMr>,
    length: usize,
    held: Option<Box<dyn KeepAlive>>,
) -> *mut ibv_mr {
    // SAFETY: the caller guarantees that `pd` is live.
    let state = unsafe { Pd::of(pd) };
    let (context, key) = (state.context(), engine.key());
    let addr = std::ptr::null_mut();
    let c = ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    let registered = Registered { engine, iova: 0, access: 0, _pd: state.hold() };
    object::create(c, Mr { registered: Lock::new(registered), _held: held })
}

/// Frees the C object of a region, which stays registered.
///
/// # Safety
/// `mr` must be live, and not be used afterwards.
pub(crate) unsafe fn free_object(mr: *mut ibv_mr) {
    // SAFETY: the caller guarantees that `mr` is live and not used afterwards.
    unsafe { object::destroy::<Mr>(mr) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, addr, length, iova, access.cast_unsigned()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, addr, length, iova, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the program passes a live region.
    let gone = unsafe { Mr::of(mr) }.engine().deregister();
    if gone.is_ok() {
        // SAFETY: the program does not use the object after this call, and its keys no longer work.
        unsafe { object::destroy::<Mr>(mr) };
    }
    errno::returned(gone)
}

/// Changes the range, the domain or the rights of a region. The region keeps its keys, so that
/// peers can continue to use them. On failure the old region stays as it was.
///
/// Returns 0, or an `enum ibv_rereg_mr_err_code` and sets `errno`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags.cast_unsigned();
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let valid = flags & !IBV_REREG_MR_FLAGS_SUPPORTED == 0
        && (!moves || (length != 0 && !addr.is_null()))
        && (access == 0 || flags & IBV_REREG_MR_CHANGE_ACCESS != 0);
    if !valid {
        errno::set(Errno::INVAL);
        return REREG_ERR_INPUT;
    }
    // SAFETY: the program passes a live region.
    let state = unsafe { Mr::of(mr) };
    let mut registered = state.registered.lock();
    let c = state.c();
    // SAFETY: the region is live, the lock excludes other writers in this library, and programs do
    // not write to the structure.
    let old = unsafe { std::ptr::read(c) };
    let pd = if flags & IBV_REREG_MR_CHANGE_PD == 0 { old.pd } else { pd };
    let (addr, length, iova) = if moves {
        (addr, length, addr.addr() as u64)
    } else {
        (old.addr, old.length, registered.iova)
    };
    let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    let access = if changes_access { access.cast_unsigned() } else { registered.access };
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let replaced = Access::for_region(access).and_then(|rights| {
        let region = region_of(addr.addr(), length)?;
        registered.engine.reregister(domain.engine(), region, iova, rights)
    });
    match replaced {
        Ok(engine) => {
            // SAFETY: the region is live, and only the thread that holds the lock of its state
            // writes to the structure.
            unsafe { c.write(ibv_mr { pd, addr, length, ..old }) };
            *registered = Registered { engine, iova, access, _pd: domain.hold() };
            0
        }
        Err(error) => {
            errno::set(error);
            REREG_ERR_CMD
        }
    }
}

/// `ibv_advise_mr`: a hint to prefetch pages into the page tables of a device. There is no such
/// device, so that a valid hint is accepted and has no effect.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sges: *mut ibv_sge,
    count: u32,
) -> c_int {
    let known = [
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    ];
    errno::returned(if !known.contains(&advice) {
        Err(Errno::OPNOTSUPP)
    } else if flags & !ADVISE_FLUSH != 0 || sges.is_null() || count == 0 {
        Err(Errno::INVAL)
    } else {
        Ok(())
    })
}
