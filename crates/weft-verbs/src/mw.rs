//! Memory windows.
//!
//! # Safety
//! A program passes live objects of this library, as the manual demands.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use weft_engine::access::Access;
use weft_engine::mw::{Mw as EngineMw, WindowType};
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest, WindowBind};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd,
    ibv_qp,
};
use crate::errno;
use crate::mr::Mr;
use crate::object::{self, AbiState, Object};
use crate::pd::{Pd, Use};
use crate::qp::Qp;

/// The state of an `ibv_mw`.
#[derive(Debug)]
pub(crate) struct Mw {
    engine: Arc<EngineMw>,
    _pd: Use,
}

impl AbiState for Mw {
    type C = ibv_mw;
}

impl Mw {
    /// The window at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a window that is not deallocated during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_mw) -> &'a Object<Self> {
        // SAFETY: every `ibv_mw` that a program has was created by `alloc_mw`, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let engine_kind = match kind {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return errno::pointer(Err(Errno::INVAL)),
    };
    errno::pointer(EngineMw::allocate(domain.engine(), engine_kind).map(|engine| {
        let context = domain.context();
        let c = ibv_mw { context, pd, rkey: engine.key(), handle: 0, type_: kind };
        object::create(c, Mw { engine, _pd: domain.hold() })
    }))
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the program passes a live window.
    unsafe { Mw::of(mw) }.engine.deallocate();
    // SAFETY: the program does not use the object after this call, and its key no longer works.
    unsafe { object::destroy::<Mw>(mw) };
    0
}

/// Converts a program's description of a binding.
///
/// # Errors
/// `EINVAL` for unknown rights.
///
/// # Safety
/// `info.mr` must be NULL or a live region.
unsafe fn bind_of(info: &ibv_mw_bind_info) -> Result<WindowBind> {
    let region = (!info.mr.is_null()).then(|| {
        // SAFETY: the caller guarantees that `info.mr` is live.
        unsafe { Mr::of(info.mr) }.engine()
    });
    let access = Access::from_bits(info.mw_access_flags).ok_or(Errno::INVAL)?;
    Ok(WindowBind { region, addr: info.addr, length: info.length, access })
}

/// The operation that binds a window through a send queue, which the verbs define for type 2 only.
///
/// # Errors
/// `EINVAL` if the window is NULL or of type 1, or for unknown rights.
///
/// # Safety
/// The window and the region must be NULL or live.
pub(crate) unsafe fn bind_type_two(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Operation> {
    if mw.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `mw` is live.
    let window = unsafe { Mw::of(mw) };
    if window.engine.kind() != WindowType::Two {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that the region is NULL or live.
    let bind = unsafe { bind_of(info) }?;
    Ok(Operation::BindWindow { window: Arc::clone(&window.engine), rkey, bind })
}

/// `ibv_bind_mw`, which is for windows of type 1: the inline function has checked the type and the
/// domain.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program passes a live window.
    let window = unsafe { Mw::of(mw) };
    // SAFETY: the program passes `bind` as a pointer to a valid structure.
    let bind = unsafe { &*bind };
    // SAFETY: the program passes a binding whose region is NULL or live.
    let info = unsafe { bind_of(&bind.bind_info) };
    errno::returned(info.and_then(|info| {
        let rkey = window.engine.next_key();
        let request = SendRequest {
            wr_id: bind.wr_id,
            operation: Operation::BindWindow {
                window: Arc::clone(&window.engine),
                rkey,
                bind: info,
            },
            flags: SendFlags::from_bits(bind.send_flags).ok_or(Errno::INVAL)?,
            data: Data::Gather(&[]),
        };
        qp.engine().start_post().push(&request)?;
        // SAFETY: the window is live, and the manual says that this call changes its key, so that
        // the program does not read it meanwhile.
        unsafe { (*window.c()).rkey = rkey };
        Ok(())
    }))
}
