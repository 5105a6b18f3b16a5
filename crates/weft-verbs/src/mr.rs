//! Memory regions.
//!
//! # Safety
//! A program that registers memory keeps it mapped until it deregisters it, as for any device: this
//! is what [`Region::new`] asks for. Objects that it hands in are live ones of ours.
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
use crate::object::{self, Behind, Object};
use crate::pd::{Pd, Use};

/// `IBV_ADVISE_MR_FLAG_FLUSH`.
const ADVISE_FLUSH: u32 = 1;
/// `enum ibv_rereg_mr_err_code`: the old region is as it was; it is lost.
const REREG_ERR_INPUT: c_int = -1;
const REREG_ERR_CMD: c_int = -4;

/// What keeps the memory of a region as long as it lives.
pub(crate) trait Keeps: std::fmt::Debug + Send + Sync {}

/// What is behind an `ibv_mr`.
#[derive(Debug)]
pub(crate) struct Mr {
    registered: Lock<Registered>,
    /// What keeps the memory that it is in, if that is not the program's.
    _held: Option<Box<dyn Keeps>>,
}

#[derive(Debug)]
struct Registered {
    engine: Arc<EngineMr>,
    iova: u64,
    access: u32,
    _pd: Use,
}

impl Behind for Mr {
    type C = ibv_mr;
}

impl Mr {
    /// The engine's region, as it is registered now.
    pub(crate) fn engine(&self) -> Arc<EngineMr> {
        Arc::clone(&self.registered.lock().engine)
    }

    /// The region that a program names.
    ///
    /// # Safety
    /// `c` must be a region that is not deregistered during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_mr) -> &'a Object<Self> {
        // SAFETY: every `ibv_mr` that programs have is made by `create` below.
        unsafe { object::object(c) }
    }
}

/// Checks that memory is mapped, as the kernel does when it pins pages for a device: a program that
/// registers what is not there gets an error now, instead of a signal when a peer writes to it.
///
/// # Errors
/// `EFAULT` when a page is missing.
fn check_mapped(addr: usize, length: usize) -> Result<()> {
    // SAFETY: no precondition. (Not by rustix, which reads the auxiliary vector itself and dies of
    // valgrind's.)
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| Errno::INVAL)?;
    let start = addr & !(page - 1);
    // SAFETY: MS_ASYNC changes nothing since Linux 2.6.19; what is left is a walk over the
    // mappings, which fails with ENOMEM where there is none (msync(2)).
    let code = unsafe { libc::msync(start as *mut c_void, addr - start + length, libc::MS_ASYNC) };
    if code == 0 { Ok(()) } else { Err(Errno::FAULT) }
}

/// Checks memory that a program wants to register.
fn region_of(addr: usize, length: usize) -> Result<Region> {
    if length == 0 || addr.checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    check_mapped(addr, length)?;
    // SAFETY: the program keeps the memory mapped until it deregisters it, and it is mapped now.
    unsafe { Region::new(addr, length) }.ok_or(Errno::INVAL)
}

unsafe fn create(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr> {
    // SAFETY: a live domain.
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

/// Gives the program a name for a region that is registered in the domain, and whose memory it does
/// not know by an address. `held` is kept until the name goes.
///
/// # Safety
/// `pd` must be live.
pub(crate) unsafe fn give(
    pd: *mut ibv_pd,
    engine: Arc<EngineMr>,
    length: usize,
    held: Option<Box<dyn Keeps>>,
) -> *mut ibv_mr {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Pd::of(pd) };
    let (context, key) = (state.context(), engine.key());
    let addr = std::ptr::null_mut();
    let c = ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    let registered = Registered { engine, iova: 0, access: 0, _pd: state.hold() };
    object::create(c, Mr { registered: Lock::new(registered), _held: held })
}

/// Forgets a name of a region, which stays registered.
///
/// # Safety
/// `mr` must be live and not used any more.
pub(crate) unsafe fn drop_name(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    unsafe { object::destroy::<Mr>(mr) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise is ours.
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
    // SAFETY: the caller's promise is ours.
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
    // SAFETY: the caller's promise is ours.
    errno::pointer(unsafe { create(pd, addr, length, iova, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a live region.
    let gone = unsafe { Mr::of(mr) }.engine().deregister();
    if gone.is_ok() {
        // SAFETY: the program gives it up; its keys no longer work.
        unsafe { object::destroy::<Mr>(mr) };
    }
    errno::returned(gone)
}

/// Changes what a region covers, its domain or its rights. It keeps its keys, so that a peer that
/// knows them can go on. On failure the old region stays as it was.
///
/// Returns 0 or an `enum ibv_rereg_mr_err_code`, with `errno` set.
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
    // SAFETY: a live region.
    let state = unsafe { Mr::of(mr) };
    let mut registered = state.registered.lock();
    let c = state.c();
    // SAFETY: the structure lives as long as the region; programs do not write to it.
    let old = unsafe { std::ptr::read(c) };
    let pd = if flags & IBV_REREG_MR_CHANGE_PD == 0 { old.pd } else { pd };
    let (addr, length, iova) = if moves {
        (addr, length, addr.addr() as u64)
    } else {
        (old.addr, old.length, registered.iova)
    };
    let changes_access = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    let access = if changes_access { access.cast_unsigned() } else { registered.access };
    // SAFETY: a live domain.
    let domain = unsafe { Pd::of(pd) };
    let replaced = Access::for_region(access).and_then(|rights| {
        let region = region_of(addr.addr(), length)?;
        registered.engine.reregister(domain.engine(), region, iova, rights)
    });
    match replaced {
        Ok(engine) => {
            // SAFETY: the structure lives as long as the region, and this thread alone writes to
            // it, for it has the lock of the region's state.
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

/// `ibv_advise_mr`: a hint about pages that a device would have to fetch. There is no device whose
/// page tables could be filled ahead, so a correct hint is accepted and has no effect.
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
