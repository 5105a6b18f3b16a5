//! Resolving addresses and routes of an identifier.
//!
//! # Safety
//! Identifiers that a program hands in are live ones of ours, and addresses are its own.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::sockaddr;
use weft_engine::Result;

use super::id::Id;
use super::{address, event};
use crate::abi::rdma_cm_id;
use crate::errno;

/// `rdma_resolve_addr`.
///
/// # Errors
/// As [`weft_engine::cm::Id::resolve_address`]; `EINVAL` for no IP address.
///
/// # Safety
/// `id` must be live, the addresses NULL or valid.
pub(super) unsafe fn resolve_address(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
) -> Result<()> {
    // SAFETY: valid, by the caller's promise.
    let destination = unsafe { address::read(destination) }?;
    let source = if source.is_null() {
        None
    } else {
        // SAFETY: valid, by the caller's promise.
        Some(unsafe { address::read(source) }?)
    };
    // SAFETY: live, by the caller's promise.
    unsafe { Id::of(id) }.engine().resolve_address(source, destination)?;
    // SAFETY: the program's thread is in its call for this identifier.
    let to = unsafe { &raw mut (*id).route.addr.__bindgen_anon_2 };
    // SAFETY: the union has room for every address.
    unsafe { address::write(to.cast(), destination) };
    // SAFETY: live, by the caller's promise.
    unsafe { event::complete(id) }
}

/// Resolution takes no time, so there is none to limit.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: a live identifier and the program's addresses.
    errno::minus_one(unsafe { resolve_address(id, source, destination) })
}

/// `rdma_resolve_route`.
///
/// # Errors
/// As [`weft_engine::cm::Id::resolve_route`].
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn resolve_route(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    unsafe { Id::of(id) }.engine().resolve_route()?;
    // SAFETY: live, by the caller's promise.
    unsafe { event::complete(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: a live identifier.
    errno::minus_one(unsafe { resolve_route(id) })
}
