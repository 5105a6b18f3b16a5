//! Multicast groups: there are none, for datagrams are not supported yet.
//!
//! # Safety
//! The exported names are those of librdmacm, with its signatures; no argument is looked at.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use weft_engine::Errno;

use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::errno;

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _group: *const sockaddr,
    _context: *mut c_void,
) -> c_int {
    errno::minus_one(Err(Errno::OPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *const rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    errno::minus_one(Err(Errno::OPNOTSUPP))
}

/// No group has been joined, so none can be left.
#[unsafe(no_mangle)]
extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _group: *const sockaddr) -> c_int {
    errno::minus_one(Err(Errno::ADDRNOTAVAIL))
}
