//! Opens devices, and fills in the operations that programs call through a context.
//!
//! # Safety
//! A program passes live devices and contexts of this library.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use weft_engine::{Context as EngineContext, Errno, Result};

use crate::abi::{
    VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context, zeroed,
};
use crate::attributes;
use crate::context::Context;
use crate::cq;
use crate::cq_ex;
use crate::device::Device;
use crate::dm;
use crate::errno;
use crate::handles;
use crate::mr;
use crate::mw;
use crate::object;
use crate::pd;
use crate::post;
use crate::qp_ex;
use crate::srq;
use crate::xrc;
use crate::xrc_qp;

/// Opens a device.
///
/// # Errors
/// `EMFILE` or `ENFILE` when no descriptor is left.
pub(crate) fn open(device: &'static Device) -> Result<*mut ibv_context> {
    wrap(EngineContext::open(device.engine())?, device)
}

/// Creates the C object of a context of the engine.
///
/// # Errors
/// As [`open`].
fn wrap(engine: Arc<EngineContext>, device: &'static Device) -> Result<*mut ibv_context> {
    let command = handles::descriptor(&engine, device)?;
    let mut c = verbs_context {
        sz: size_of::<verbs_context>(),
        query_port: Some(attributes::query_port),
        query_device_ex: Some(attributes::query_device_ex),
        query_rt_values: Some(attributes::query_rt_values),
        advise_mr: Some(mr::advise_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_td: Some(pd::alloc_td),
        dealloc_td: Some(pd::dealloc_td),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        create_qp_ex: Some(qp_ex::create_qp_ex),
        open_qp: Some(xrc_qp::open_qp),
        create_srq_ex: Some(srq::create_srq_ex),
        get_srq_num: Some(srq::get_srq_num),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        // For operations that are missing here the inline functions return EOPNOTSUPP.
        ..zeroed()
    };
    c.context = ibv_context {
        device: device.c(),
        ops: operations(),
        cmd_fd: command.as_raw_fd(),
        async_fd: engine.async_fd(),
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED),
    };
    let whole = object::create(c, Context::new(engine, device, command));
    // SAFETY: the field is inside the object that was created above.
    Ok(unsafe { whole.byte_add(offset_of!(verbs_context, context)) }.cast())
}

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: Some(attributes::ibv_query_device),
        _compat_query_port: Some(attributes::ibv_query_port),
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..zeroed()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the program passes an open context, which is this field of a `verbs_context`.
    let whole = unsafe { context.byte_sub(offset_of!(verbs_context, context)) };
    // SAFETY: the `verbs_context` is the first field of an `Object<Context>`, and the program does
    // not use it after this call.
    unsafe { object::destroy::<Context>(whole.cast()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the program passes an element of a device list.
    errno::pointer(open(unsafe { Device::of(device) }))
}

fn import(fd: c_int) -> Result<*mut ibv_context> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is not -1, and the program keeps it open during this call.
    let found = handles::opened(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let (engine, device) = found.ok_or(Errno::OPNOTSUPP)?;
    wrap(engine, device)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    errno::pointer(import(fd))
}
