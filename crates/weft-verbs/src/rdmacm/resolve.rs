//! Resolves addresses and routes of identifiers.
//!
//! # Safety
//! A program passes live identifiers of this library and valid addresses.
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
/// As [`weft_engine::cm::Id::resolve_address`]; `EINVAL` for an address that is not IP.
///
/// # Safety
/// `id` must be live, the addresses NULL or valid.
pub(super) unsafe fn resolve_address(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
) -> Result<()> {
    // SAFETY: the caller guarantees that `destination` is NULL or valid.
    let destination = unsafe { address::read(destination) }?;
    let source = if source.is_null() {
        None
    } else {
        // SAFETY: the caller guarantees that `source` is NULL or valid.
        Some(unsafe { address::read(source) }?)
    };
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { Id::of(id) }.engine().resolve_address(source, destination)?;
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    let to = unsafe { &raw mut (*id).route.addr.__bindgen_anon_2 };
    // SAFETY: the union is as large as every IP socket address, and the identifier is live.
    unsafe { address::write(to.cast(), destination) };
    // SAFETY: the caller guarantees that `id` is live, as `event::complete` requires.
    unsafe { event::complete(id) }
}

/// Ignores the timeout, because the resolution does not wait.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program passes a live identifier, and valid addresses or NULL.
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
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { Id::of(id) }.engine().resolve_route()?;
    // SAFETY: the caller guarantees that `id` is live, as `event::complete` requires.
    unsafe { event::complete(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the program passes a live identifier, as `resolve_route` requires.
    errno::minus_one(unsafe { resolve_route(id) })
}
