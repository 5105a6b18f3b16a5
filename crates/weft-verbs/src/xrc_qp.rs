//! Target queue pairs of XRC domains, which receive the messages of peers.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
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
use crate::qp::{self, Parent};
use crate::xrc::Xrcd;

/// Creates a C object of a target queue pair.
fn wrap_target(
    context: *mut ibv_context,
    xrcd: &Xrcd,
    engine: Arc<EngineQp>,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    let init = ibv_qp_init_attr { qp_context, qp_type: IBV_QPT_XRC_RECV, ..zeroed() };
    let parent = Parent { context, pd: ptr::null_mut(), held: xrcd.hold() };
    qp::wrap(engine, parent, &init, None)
}

/// Creates a target queue pair in an XRC domain.
///
/// # Errors
/// `EINVAL` without a domain; `ENOMEM` if no number or key is left.
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
    // SAFETY: the caller guarantees that `init.xrcd` is live.
    let xrcd = unsafe { Xrcd::of(init.xrcd) };
    // SAFETY: the caller guarantees that `context` is open.
    let state = unsafe { Context::of(context) };
    let engine = EngineQp::new_target(state.engine(), xrcd.engine())?;
    let qp = wrap_target(context, xrcd, Arc::clone(&engine), init.qp_context);
    Ok(qp::set_event_object(&engine, qp))
}

/// # Safety
/// `context` must be open, and the domain NULL or live.
unsafe fn open_target(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp> {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let is_complete = attr.comp_mask & needed == needed && !attr.xrcd.is_null();
    if !is_complete || attr.qp_type != IBV_QPT_XRC_RECV {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `attr.xrcd` is live.
    let xrcd = unsafe { Xrcd::of(attr.xrcd) };
    let engine = EngineQp::open_target(xrcd.engine(), attr.qp_num).ok_or(Errno::INVAL)?;
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let qp_context = if has_context { attr.qp_context } else { ptr::null_mut() };
    Ok(wrap_target(context, xrcd, engine, qp_context))
}

/// `ibv_open_qp`. Asynchronous events name the C object of the queue pair's creator, and no event
/// arrives after the creator has destroyed it.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &*attr };
    // SAFETY: the program guarantees what `open_target` requires of its arguments.
    errno::pointer(unsafe { open_target(context, attr) })
}
