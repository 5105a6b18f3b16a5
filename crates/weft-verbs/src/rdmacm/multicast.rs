//! Multicast groups of identifiers.
//!
//! # Safety
//! A program passes live identifiers and queue pairs of this library and valid structures of its
//! own.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use libc::sockaddr;
use weft_engine::{Errno, Result};

use super::address;
use super::event;
use super::id::Id;
use crate::abi::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};
use crate::errno;
use crate::qp::Qp;

/// The IP address of a group.
///
/// # Errors
/// `EINVAL` for NULL and for families other than IP.
///
/// # Safety
/// `group` must be NULL or a valid socket address.
unsafe fn read(group: *const sockaddr) -> Result<IpAddr> {
    // SAFETY: the caller guarantees what `address::read` requires.
    Ok(unsafe { address::read(group) }?.ip().to_canonical())
}

/// # Errors
/// As [`weft_engine::cm::Id::join_multicast`].
///
/// # Safety
/// `id` must be live, `group` NULL or valid.
unsafe fn join(
    id: *mut rdma_cm_id,
    group: *const sockaddr,
    sends_only: bool,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller guarantees what `read` requires.
    let group = unsafe { read(group) }?;
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { Id::of(id) };
    state.engine().join_multicast(group, sends_only, context.expose_provenance())?;
    // SAFETY: the caller guarantees that `id` is live, as `event::complete` requires.
    unsafe { event::complete(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    group: *const sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address or NULL.
    errno::minus_one(unsafe { join(id, group, false, context) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *const rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &*attr };
    let sends_only = match attr.join_flags {
        RDMA_MC_JOIN_FLAG_FULLMEMBER => Ok(false),
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => Ok(true),
        _ => Err(Errno::INVAL),
    };
    let checked = if attr.comp_mask == NEEDED { sends_only } else { Err(Errno::INVAL) };
    // SAFETY: the program passes a live identifier and a valid address or NULL.
    errno::minus_one(checked.and_then(|only| unsafe { join(id, attr.addr, only, context) }))
}

/// # Safety
/// `id` must be live, `group` NULL or valid.
unsafe fn leave(id: *mut rdma_cm_id, group: *const sockaddr) -> Result<()> {
    // SAFETY: the caller guarantees what `read` requires.
    let group = unsafe { read(group) }?;
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { Id::of(id) }.engine().leave_multicast(group)?;
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: an identifier keeps its queue pair live until `rdma_destroy_qp` clears the field.
        let engine = unsafe { Qp::of(qp) }.engine();
        // Detaching fails if the queue pair is not attached: the program has not taken the event,
        // or only sends.
        let _ = engine.detach_multicast(weft_engine::device::gid_of(group));
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, group: *const sockaddr) -> c_int {
    // SAFETY: the program passes a live identifier and a valid address or NULL.
    errno::minus_one(unsafe { leave(id, group) })
}
