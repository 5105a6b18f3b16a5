//! Multicast groups of UD queue pairs.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::abi::{ibv_gid, ibv_qp};
use crate::ah::gid_bytes;
use crate::errno;
use crate::qp::Qp;

/// Ignores the LID, which has no meaning on Ethernet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program passes `gid` as a pointer to a valid structure.
    let gid = gid_bytes(unsafe { &*gid });
    errno::returned(qp.engine().attach_multicast(gid))
}

/// Ignores the LID, which has no meaning on Ethernet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program passes `gid` as a pointer to a valid structure.
    let gid = gid_bytes(unsafe { &*gid });
    errno::returned(qp.engine().detach_multicast(gid))
}
