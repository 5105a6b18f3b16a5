//! Connecting, accepting, rejecting and disconnecting.
//!
//! # Safety
//! A program passes live identifiers and queue pairs of this library and valid structures of its
//! own.
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

/// The queue pair to connect: the identifier's own, or the one whose number the program passes.
///
/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn via(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<Via> {
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: an identifier keeps its queue pair live until `rdma_destroy_qp` clears the field.
        return Ok(Via::Own(Arc::clone(unsafe { Qp::of(qp) }.engine())));
    }
    // SAFETY: the caller guarantees that `param` is NULL or valid.
    let param = unsafe { param.as_ref() }.ok_or(Errno::INVAL)?;
    Ok(Via::External(param.qp_num))
}

/// Converts a program's connection parameters; NULL stands for the defaults. `first` precedes the
/// program's private data.
///
/// # Safety
/// `param` must be NULL or valid, and its private data valid.
unsafe fn read(param: *const rdma_conn_param, first: Vec<u8>) -> ConnectParam {
    let mut private_data = first;
    // SAFETY: the caller guarantees that `param` is NULL or valid.
    let Some(param) = (unsafe { param.as_ref() }) else {
        return ConnectParam { private_data, ..ConnectParam::default() };
    };
    // SAFETY: the caller guarantees that the private data is NULL or readable for its length.
    private_data.extend(unsafe { bytes(param.private_data, param.private_data_len) });
    ConnectParam {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
    }
}

/// The bytes of a program's private data; NULL is none.
///
/// # Safety
/// `data` must be NULL or readable for `length` bytes.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees `length` readable bytes, which this library copies before the
    // program's call returns.
    unsafe { slice::from_raw_parts(data.cast::<u8>(), length.into()) }
}

/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { Id::of(id) };
    // SAFETY: the caller guarantees what `via` requires.
    let via = unsafe { via(id, param) }?;
    let first = state.prepared.lock().connect.clone();
    // SAFETY: the caller guarantees what `read` requires.
    state.engine().connect(&via, &unsafe { read(param, first) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    let connecting = unsafe { connect(id, param) };
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    errno::minus_one(connecting.and_then(|()| unsafe { event::complete(id) }))
}

/// # Safety
/// `id` must be live, `param` NULL or valid.
unsafe fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<()> {
    // SAFETY: the caller guarantees what `via` requires.
    let via = unsafe { via(id, param) }?;
    // SAFETY: the caller guarantees what `read` requires.
    let param = unsafe { read(param, Vec::new()) };
    // SAFETY: the caller guarantees that `id` is live.
    let accepted = unsafe { Id::of(id) }.engine().accept(&via, &param);
    // SAFETY: the caller guarantees that `id` is live, as `event::update_qp_state` requires.
    unsafe { event::update_qp_state(id) };
    accepted
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    let accepted = unsafe { accept(id, param) };
    // SAFETY: the program passes a live identifier, whose port space never changes.
    if matches!(unsafe { (*id).ps }, RDMA_PS_UDP | RDMA_PS_IPOIB) {
        // A datagram identifier has no connection to wait for.
        return errno::minus_one(accepted);
    }
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    errno::minus_one(accepted.and_then(|()| unsafe { event::complete(id) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program passes `length` bytes of private data, or NULL.
    let private_data = unsafe { bytes(private_data, length) };
    // SAFETY: the program passes a live identifier.
    errno::minus_one(unsafe { Id::of(id) }.engine().reject(private_data))
}

/// Rejects a connection because of the peer's ECE options, or because it has none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program guarantees what `rdma_reject` requires of its arguments.
    unsafe { rdma_reject(id, private_data, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier.
    let established = if unsafe { (*id).qp }.is_null() {
        // SAFETY: the program passes a live identifier.
        unsafe { Id::of(id) }.engine().establish()
    } else {
        Err(Errno::INVAL)
    };
    errno::minus_one(established)
}

/// # Safety
/// `id` must be live.
unsafe fn disconnect(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { Id::of(id) }.engine().disconnect()?;
    // SAFETY: the caller guarantees that `id` is live, as `event::update_qp_state` requires.
    unsafe { event::update_qp_state(id) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier, as `disconnect` requires.
    let disconnected = unsafe { disconnect(id) };
    // SAFETY: the program passes a live identifier, as `event::complete` requires.
    errno::minus_one(disconnected.and_then(|()| unsafe { event::complete(id) }))
}

/// Reports an asynchronous event of the queue pair: a message has arrived. Here the connection is
/// already established by then, so that this does nothing, as with the kernel's iWARP devices.
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
    // SAFETY: the program passes a valid structure in which it has set the state.
    let wanted = QpState::from_raw(unsafe { (*attr).qp_state }).ok_or(Errno::INVAL);
    // SAFETY: the program passes a live identifier.
    let found = wanted.and_then(|wanted| unsafe { Id::of(id) }.engine().qp_attributes(wanted));
    errno::minus_one(found.map(|(found, found_mask)| {
        // SAFETY: the program passes `attr` as a valid pointer for the result.
        unsafe { attr.write(c_attr_of(&found)) };
        // SAFETY: the program passes `mask` as a valid pointer for the result.
        unsafe { *mask = found_mask.bits().cast_signed() };
    }))
}

/// Checks the arguments that both calls for ECE options (connection options of vendors) have.
///
/// # Safety
/// `id` must be live, `ece` NULL or valid.
unsafe fn check_ece(id: *mut rdma_cm_id, ece: *const ibv_ece) -> Result<ibv_ece> {
    // SAFETY: the caller guarantees that `ece` is NULL or valid.
    let ece = *unsafe { ece.as_ref() }.ok_or(Errno::INVAL)?;
    // SAFETY: the caller guarantees that `id` is live.
    let has_qp = !unsafe { (*id).qp }.is_null();
    if has_qp || ece.comp_mask != 0 { Err(Errno::INVAL) } else { Ok(ece) }
}

/// Accepts ECE options without sending them: they belong to a vendor's device, and the peer must
/// expect a device without any.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    let checked = unsafe { check_ece(id, ece) };
    errno::minus_one(match checked {
        Ok(ece) if ece.vendor_id != 0 => Ok(()),
        Ok(_) => Err(Errno::INVAL),
        Err(error) => Err(error),
    })
}

/// Reports that the peer has no ECE options.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program passes a live identifier and a valid structure or NULL.
    errno::minus_one(unsafe { check_ece(id, ece) }.map(|_| {
        // SAFETY: the program passes `ece` as a valid pointer for the result.
        unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
    }))
}
