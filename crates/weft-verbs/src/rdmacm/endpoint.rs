//! Endpoints: an identifier with its address, route and queue pair, created in one call.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::slice;

use weft_engine::{Errno, Result};

use super::event;
use super::id::{self, Id, Kind};
use super::{qp, resolve};
use crate::abi::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, ibv_pd, ibv_qp_init_attr, rdma_addrinfo,
    rdma_cm_event, rdma_cm_id,
};
use crate::errno;

/// # Safety
/// `id` must be live, the rest as for [`create`].
unsafe fn prepare_passive(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *const ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the caller guarantees what `id::bind` requires.
    unsafe { id::bind(id, info.ai_src_addr) }?;
    if !pd.is_null() {
        // SAFETY: the caller guarantees that `id` is live.
        unsafe { (*id).pd = pd };
    }
    // SAFETY: the caller guarantees that `init` is NULL or valid.
    if let Some(init) = unsafe { init.as_ref() } {
        let qp_init = ibv_qp_init_attr { qp_type: info.ai_qp_type.cast_unsigned(), ..*init };
        // SAFETY: the caller guarantees that `id` is live.
        unsafe { Id::of(id) }.prepared.lock().qp_init = Some(qp_init);
    }
    Ok(())
}

/// # Safety
/// `id` must be live, the rest as for [`create`].
unsafe fn prepare_active(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the caller guarantees what `resolve::resolve_address` requires.
    unsafe { resolve::resolve_address(id, info.ai_src_addr, info.ai_dst_addr) }?;
    // SAFETY: the caller guarantees what `resolve::resolve_route` requires.
    unsafe { resolve::resolve_route(id) }?;
    // SAFETY: the caller guarantees that `init` is NULL or valid.
    if let Some(init) = unsafe { init.as_mut() } {
        init.qp_type = info.ai_qp_type.cast_unsigned();
        // SAFETY: the caller guarantees what `qp::create_plain` requires.
        unsafe { qp::create_plain(id, pd, init) }?;
    }
    if info.ai_connect_len != 0 && !info.ai_connect.is_null() {
        // SAFETY: the caller guarantees that the private data in `info` has this length.
        let data = unsafe { slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len) };
        // SAFETY: the caller guarantees that `id` is live.
        unsafe { Id::of(id) }.prepared.lock().connect = data.to_vec();
    }
    Ok(())
}

/// # Safety
/// `pd` must be NULL or live, and `init` NULL or valid, with live objects.
unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id> {
    let kind = Kind {
        context: ptr::null_mut(),
        ps: info.ai_port_space.cast_unsigned(),
        qp_type: info.ai_qp_type.cast_unsigned(),
    };
    // SAFETY: the channel is NULL, which makes the identifier synchronous.
    let id = unsafe { id::create(ptr::null_mut(), kind) }?;
    let prepared = if info.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
        // SAFETY: `id` was created above; the caller guarantees the rest of what `prepare_passive`
        // requires.
        unsafe { prepare_passive(id, info, pd, init) }
    } else {
        // SAFETY: `id` was created above; the caller guarantees the rest of what `prepare_active`
        // requires.
        unsafe { prepare_active(id, info, pd, init) }
    };
    if let Err(error) = prepared {
        // SAFETY: the object was created above, and the program does not have it yet, so that this
        // is its last use.
        unsafe { destroy(id) };
        return Err(error);
    }
    Ok(id)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes `info` as a pointer to a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the program passes valid structures and live objects, or NULL.
    errno::minus_one(unsafe { create(info, pd, init) }.map(|made| {
        // SAFETY: the program passes `id` as a valid pointer for the result.
        unsafe { *id = made };
    }))
}

/// # Safety
/// `id` must be live, and not be used afterwards.
unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: the identifier is live and has a queue pair.
        unsafe { qp::destroy(id) };
    }
    // SAFETY: the caller guarantees that `id` is live.
    let srq = unsafe { (*id).srq };
    if !srq.is_null() {
        // SAFETY: the identifier is live and has a shared receive queue.
        unsafe { qp::destroy_srq(id) };
    }
    // SAFETY: the caller guarantees what `id::destroy` requires.
    unsafe { id::destroy(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program passes a live identifier and does not use it after this call.
    unsafe { destroy(id) };
}

/// # Safety
/// `listener` must be live.
unsafe fn get_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    // SAFETY: the caller guarantees that `listener` is live.
    let state = unsafe { Id::of(listener) };
    if !state.is_sync() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees that `listener` is live, as `event::next_of` requires.
    let event = unsafe { event::next_of(listener) }?;
    // SAFETY: the event was created by `next_of`, and the program does not have it yet, so that
    // nothing else writes to it.
    let &rdma_cm_event { event: kind, status, id, .. } = unsafe { &*event };
    let mut requested = match status {
        0 if kind == RDMA_CM_EVENT_CONNECT_REQUEST => Ok(()),
        0 => Err(Errno::INVAL),
        status => Err(Errno::from_raw_os_error(status.abs())),
    };
    let init = state.prepared.lock().qp_init;
    if let (Ok(()), Some(mut init)) = (requested, init) {
        // SAFETY: the caller guarantees that `listener` is live.
        let pd = unsafe { (*listener).pd };
        // SAFETY: the event's identifier is live, and `pd` and `init` are what the program passed
        // to `rdma_create_ep`, whose objects it keeps live.
        requested = unsafe { qp::create_plain(id, pd, &mut init) };
    }
    // The next call on this identifier acknowledges the event.
    let holder = if requested.is_ok() { id } else { listener };
    // SAFETY: both identifiers are live.
    unsafe { (*holder).event = event };
    requested.map(|()| id)
}

/// A cancellation point: while the thread waits it holds no lock and owns nothing that needs a
/// drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the program passes a live identifier, as `get_request` requires.
    errno::minus_one(unsafe { get_request(listener) }.map(|found| {
        // SAFETY: the program passes `id` as a valid pointer for the result.
        unsafe { *id = found };
    }))
}
