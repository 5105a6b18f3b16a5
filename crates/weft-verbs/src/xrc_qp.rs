//! Queue pairs that peers send to in an XRC domain.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use weft_engine::qp::Qp as EngineQp;
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE,
    IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_XRC_RECV, ibv_context, ibv_qp, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, zeroed,
};
use crate::context::Context;
use crate::errno;
use crate::qp::{self, Home};
use crate::xrc::Xrcd;

/// A name for a queue pair that peers of the domain send to.
fn name(
    context: *mut ibv_context,
    xrcd: &Xrcd,
    engine: Arc<EngineQp>,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    let init = ibv_qp_init_attr { qp_context, qp_type: IBV_QPT_XRC_RECV, ..zeroed() };
    let home = Home { context, pd: ptr::null_mut(), held: xrcd.hold() };
    qp::give(engine, home, &init, None)
}

/// Makes a queue pair that peers of an XRC domain send to.
///
/// # Errors
/// `EINVAL` without a domain; `ENOMEM` without numbers or keys left.
///
/// # Safety
/// The context must be open, and the domain NULL or live.
pub(crate) unsafe fn create_target(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: live, by the caller's promise.
    let xrcd = unsafe { Xrcd::of(init.xrcd) };
    // SAFETY: open, by the caller's promise.
    let state = unsafe { Context::of(context) };
    let engine = EngineQp::new_target(state.engine(), xrcd.engine())?;
    let qp = name(context, xrcd, Arc::clone(&engine), init.qp_context);
    Ok(qp::tell_events(&engine, qp))
}

/// # Safety
/// As for [`create_target`].
unsafe fn open_target(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp> {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let is_complete = attr.comp_mask & needed == needed && !attr.xrcd.is_null();
    if !is_complete || attr.qp_type != IBV_QPT_XRC_RECV {
        return Err(Errno::INVAL);
    }
    // SAFETY: live, by the caller's promise.
    let xrcd = unsafe { Xrcd::of(attr.xrcd) };
    let engine = EngineQp::open_target(xrcd.engine(), attr.qp_num).ok_or(Errno::INVAL)?;
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let qp_context = if has_context { attr.qp_context } else { ptr::null_mut() };
    Ok(name(context, xrcd, engine, qp_context))
}

/// `ibv_open_qp`. Asynchronous events name the queue pair by its creator's handle, and none
/// comes after the creator has destroyed it.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the program's structure.
    let attr = unsafe { &*attr };
    // SAFETY: the caller's promise is ours.
    errno::pointer(unsafe { open_target(context, attr) })
}
