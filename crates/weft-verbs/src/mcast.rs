//! Multicast groups of queue pairs for datagrams.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::abi::{ibv_gid, ibv_qp};
use crate::ah::gid_bytes;
use crate::errno;
use crate::qp::Qp;

/// The LID means nothing on Ethernet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program's structure.
    let gid = gid_bytes(unsafe { &*gid });
    errno::returned(qp.engine().attach_multicast(gid))
}

/// The LID means nothing on Ethernet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program's structure.
    let gid = gid_bytes(unsafe { &*gid });
    errno::returned(qp.engine().detach_multicast(gid))
}
