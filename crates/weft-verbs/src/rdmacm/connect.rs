//! Connecting, accepting and parting.
//!
//! # Safety
//! Identifiers and queue pairs that a program hands in are live ones of ours, and structures are
//! its own.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;

use weft_engine::cm::{ConnectParam, Via};
use weft_engine::qp::QpState;
use weft_engine::{Errno, Result};

use super::event;
use super::id::Id;
use crate::abi::{
    IBV_EVENT_COMM_EST, RDMA_PS_IPOIB, RDMA_PS_UDP, ibv_ece, ibv_qp_attr, rdma_cm_id,
    rdma_conn_param,
};
use crate::errno;
use crate::qp::{Qp, c_attr_of};

/// The queue pair to connect: the identifier's own, or the one that the program names.
///
/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn via(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<Via> {
    // SAFETY: live, by the caller's promise.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: the queue pair of an identifier is live until `rdma_destroy_qp`.
        return Ok(Via::Own(Arc::clone(unsafe { Qp::of(qp) }.engine())));
    }
    // SAFETY: valid, by the caller's promise.
    let param = unsafe { param.as_ref() }.ok_or(Errno::INVAL)?;
    Ok(Via::External(param.qp_num))
}

/// A program's parameters; NULL is the default. `first` goes before its private data.
///
/// # Safety
/// `param` must be NULL or valid, with its private data.
unsafe fn read(param: *const rdma_conn_param, first: Vec<u8>) -> ConnectParam {
    let mut private_data = first;
    // SAFETY: valid, by the caller's promise.
    let Some(param) = (unsafe { param.as_ref() }) else {
        return ConnectParam { private_data, ..ConnectParam::default() };
    };
    // SAFETY: valid, by the caller's promise.
    private_data.extend(unsafe { bytes(param.private_data, param.private_data_len) });
    ConnectParam {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
    }
}

/// A program's private data; NULL is none.
///
/// # Safety
/// `data` must be NULL or readable for `length` bytes.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: readable, by the caller's promise, and copied before the program's call returns.
    unsafe { slice::from_raw_parts(data.cast::<u8>(), length.into()) }
}

/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Id::of(id) };
    // SAFETY: the caller's promise.
    let via = unsafe { via(id, param) }?;
    let first = state.prepared.lock().connect.clone();
    // SAFETY: the caller's promise.
    state.engine().connect(&via, &unsafe { read(param, first) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: a live identifier and the program's structure.
    let connecting = unsafe { connect(id, param) };
    // SAFETY: a live identifier and the program's structure.
    errno::minus_one(connecting.and_then(|()| unsafe { event::complete(id) }))
}

/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<()> {
    // SAFETY: the caller's promise.
    let via = unsafe { via(id, param) }?;
    // SAFETY: the caller's promise.
    let param = unsafe { read(param, Vec::new()) };
    // SAFETY: live, by the caller's promise.
    let accepted = unsafe { Id::of(id) }.engine().accept(&via, &param);
    // SAFETY: live, by the caller's promise.
    unsafe { event::show_qp_state(id) };
    accepted
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: a live identifier and the program's structure.
    let accepted = unsafe { accept(id, param) };
    // SAFETY: a live identifier and the program's structure; the port space never changes.
    if matches!(unsafe { (*id).ps }, RDMA_PS_UDP | RDMA_PS_IPOIB) {
        // There is no connection to wait for.
        return errno::minus_one(accepted);
    }
    // SAFETY: a live identifier and the program's structure.
    errno::minus_one(accepted.and_then(|()| unsafe { event::complete(id) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program's private data.
    let private_data = unsafe { bytes(private_data, length) };
    // SAFETY: a live identifier.
    errno::minus_one(unsafe { Id::of(id) }.engine().reject(private_data))
}

/// Rejects because of the peer's ECE options. There are none here, but a program may not like that.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise is ours.
    unsafe { rdma_reject(id, private_data, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let established = if unsafe { (*id).qp }.is_null() {
        // SAFETY: a live identifier.
        unsafe { Id::of(id) }.engine().establish()
    } else {
        Err(Errno::INVAL)
    };
    errno::minus_one(established)
}

/// # Safety
/// `id` must be live.
unsafe fn disconnect(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    unsafe { Id::of(id) }.engine().disconnect()?;
    // SAFETY: live, by the caller's promise.
    unsafe { event::show_qp_state(id) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: a live identifier.
    let disconnected = unsafe { disconnect(id) };
    // SAFETY: a live identifier.
    errno::minus_one(disconnected.and_then(|()| unsafe { event::complete(id) }))
}

/// Tells of an asynchronous event of the queue pair: the peer has sent something. A connection is
/// established before that here, so there is nothing to do, as with the kernel's iWARP devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(_: *mut rdma_cm_id, event: c_uint) -> c_int {
    if event != IBV_EVENT_COMM_EST {
        return errno::minus_one(Err(Errno::INVAL));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the program's structure, of which it has set the state.
    let wanted = QpState::from_raw(unsafe { (*attr).qp_state }).ok_or(Errno::INVAL);
    // SAFETY: a live identifier.
    let found = wanted.and_then(|wanted| unsafe { Id::of(id) }.engine().qp_attributes(wanted));
    errno::minus_one(found.map(|(found, found_mask)| {
        // SAFETY: the program's place for the result.
        unsafe { attr.write(c_attr_of(&found)) };
        // SAFETY: the program's place for the result.
        unsafe { *mask = found_mask.bits().cast_signed() };
    }))
}

/// Checks what both calls for ECE options (vendors' extensions of a connection) demand.
///
/// # Safety
/// `id` must be live, `ece` NULL or valid.
unsafe fn check_ece(id: *mut rdma_cm_id, ece: *const ibv_ece) -> Result<ibv_ece> {
    // SAFETY: valid, by the caller's promise.
    let ece = *unsafe { ece.as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: live, by the caller's promise.
    let has_qp = !unsafe { (*id).qp }.is_null();
    if has_qp || ece.comp_mask != 0 { Err(Errno::INVAL) } else { Ok(ece) }
}

/// The options of a vendor that we are not: they are not sent, and the peer finds none, which it
/// must expect of any device.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a live identifier and the program's structure.
    let checked = unsafe { check_ece(id, ece) };
    errno::minus_one(match checked {
        Ok(ece) if ece.vendor_id != 0 => Ok(()),
        Ok(_) => Err(Errno::INVAL),
        Err(error) => Err(error),
    })
}

/// No peer has any options.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a live identifier and the program's structure.
    errno::minus_one(unsafe { check_ece(id, ece) }.map(|_| {
        // SAFETY: the program's place for the result.
        unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
    }))
}
