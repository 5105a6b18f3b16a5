//! Endpoints: an identifier with everything that it needs, made in one call.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
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
    // SAFETY: the caller's promise.
    unsafe { id::bind(id, info.ai_src_addr) }?;
    if !pd.is_null() {
        // SAFETY: live, by the caller's promise.
        unsafe { (*id).pd = pd };
    }
    // SAFETY: NULL or valid, by the caller's promise.
    if let Some(init) = unsafe { init.as_ref() } {
        let qp_init = ibv_qp_init_attr { qp_type: info.ai_qp_type.cast_unsigned(), ..*init };
        // SAFETY: live, by the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe { resolve::resolve_address(id, info.ai_src_addr, info.ai_dst_addr) }?;
    // SAFETY: the caller's promise.
    unsafe { resolve::resolve_route(id) }?;
    // SAFETY: NULL or valid, by the caller's promise.
    if let Some(init) = unsafe { init.as_mut() } {
        init.qp_type = info.ai_qp_type.cast_unsigned();
        // SAFETY: the caller's promise.
        unsafe { qp::create_plain(id, pd, init) }?;
    }
    if info.ai_connect_len != 0 && !info.ai_connect.is_null() {
        // SAFETY: valid for its length, by the caller's promise.
        let data = unsafe { slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len) };
        // SAFETY: live, by the caller's promise.
        unsafe { Id::of(id) }.prepared.lock().connect = data.to_vec();
    }
    Ok(())
}

/// # Safety
/// `pd` must be NULL or live, `init` NULL or valid with what it names.
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
    // SAFETY: no channel: a synchronous identifier.
    let id = unsafe { id::create(ptr::null_mut(), kind) }?;
    let prepared = if info.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
        // SAFETY: made just now; the caller's promise.
        unsafe { prepare_passive(id, info, pd, init) }
    } else {
        // SAFETY: made just now; the caller's promise.
        unsafe { prepare_active(id, info, pd, init) }
    };
    if let Err(error) = prepared {
        // SAFETY: the program has not seen it.
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
    // SAFETY: the program's structure.
    let info = unsafe { &*info };
    // SAFETY: the program's objects.
    errno::minus_one(unsafe { create(info, pd, init) }.map(|made| {
        // SAFETY: the program's place for the result.
        unsafe { *id = made };
    }))
}

/// # Safety
/// `id` must be live, and nobody may use it afterwards.
unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: it has a queue pair.
        unsafe { qp::destroy(id) };
    }
    // SAFETY: live, by the caller's promise.
    let srq = unsafe { (*id).srq };
    if !srq.is_null() {
        // SAFETY: it has a shared receive queue.
        unsafe { qp::destroy_srq(id) };
    }
    // SAFETY: the caller's promise.
    unsafe { id::destroy(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: a live identifier, which the program gives up.
    unsafe { destroy(id) };
}

/// # Safety
/// `listener` must be live.
unsafe fn get_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Id::of(listener) };
    if !state.is_sync() {
        return Err(Errno::INVAL);
    }
    // SAFETY: live, by the caller's promise.
    let event = unsafe { event::next_of(listener) }?;
    // SAFETY: made just now, and the program has not seen it: nobody else writes to it.
    let &rdma_cm_event { event: kind, status, id, .. } = unsafe { &*event };
    let mut requested = match status {
        0 if kind == RDMA_CM_EVENT_CONNECT_REQUEST => Ok(()),
        0 => Err(Errno::INVAL),
        status => Err(Errno::from_raw_os_error(status.abs())),
    };
    let init = state.prepared.lock().qp_init;
    if let (Ok(()), Some(mut init)) = (requested, init) {
        // SAFETY: live, by the caller's promise.
        let pd = unsafe { (*listener).pd };
        // SAFETY: a fresh identifier, and what the program gave to `rdma_create_ep`.
        requested = unsafe { qp::create_plain(id, pd, &mut init) };
    }
    // The event is acknowledged with the next call, by the thread that has it.
    let holder = if requested.is_ok() { id } else { listener };
    // SAFETY: both are live.
    unsafe { (*holder).event = event };
    requested.map(|()| id)
}

/// A thread may be cancelled in here: no lock is held while it waits, and there is nothing to drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: a live identifier.
    errno::minus_one(unsafe { get_request(listener) }.map(|found| {
        // SAFETY: the program's place for the result.
        unsafe { *id = found };
    }))
}
