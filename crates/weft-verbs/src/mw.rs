//! Memory windows.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, as the manual demands.
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
use crate::object::{self, Behind, Object};
use crate::pd::{Pd, Use};
use crate::qp::Qp;

/// What is behind an `ibv_mw`.
#[derive(Debug)]
pub(crate) struct Mw {
    engine: Arc<EngineMw>,
    _pd: Use,
}

impl Behind for Mw {
    type C = ibv_mw;
}

impl Mw {
    /// The window that a program names.
    ///
    /// # Safety
    /// `c` must be a window that is not deallocated during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_mw) -> &'a Object<Self> {
        // SAFETY: every `ibv_mw` that programs have is made by `alloc_mw`.
        unsafe { object::object(c) }
    }
}

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: a live domain.
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
    // SAFETY: a live window.
    unsafe { Mw::of(mw) }.engine.deallocate();
    // SAFETY: the program gives it up; its key no longer works.
    unsafe { object::destroy::<Mw>(mw) };
    0
}

/// What a program wants a window bound to.
///
/// # Errors
/// `EINVAL` for unknown rights.
///
/// # Safety
/// `info.mr` must be NULL or a live region.
unsafe fn bind_of(info: &ibv_mw_bind_info) -> Result<WindowBind> {
    let region = (!info.mr.is_null()).then(|| {
        // SAFETY: a live region, by the caller's promise.
        unsafe { Mr::of(info.mr) }.engine()
    });
    let access = Access::from_bits(info.mw_access_flags).ok_or(Errno::INVAL)?;
    Ok(WindowBind { region, addr: info.addr, length: info.length, access })
}

/// The binding of a window through a send queue, which is for type 2 only.
///
/// # Errors
/// `EINVAL` for no window, one of type 1, or unknown rights.
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
    // SAFETY: a live window, by the caller's promise.
    let window = unsafe { Mw::of(mw) };
    if window.engine.kind() != WindowType::Two {
        return Err(Errno::INVAL);
    }
    // SAFETY: a live region or none, by the caller's promise.
    let bind = unsafe { bind_of(info) }?;
    Ok(Operation::BindWindow { window: Arc::clone(&window.engine), rkey, bind })
}

/// `ibv_bind_mw`, for windows of type 1: the inline function has checked the type and the domain.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: a live window.
    let window = unsafe { Mw::of(mw) };
    // SAFETY: the program's structure.
    let bind = unsafe { &*bind };
    // SAFETY: it names a live region or none.
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
        // SAFETY: the window is live; the manual says that its key changes with the call.
        unsafe { (*window.c()).rkey = rkey };
        Ok(())
    }))
}
