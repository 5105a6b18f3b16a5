//! Public calls for what this device does not offer: each fails as the manual says, with
//! `EOPNOTSUPP`.
//!
//! # Safety
//! The exported names are those of rdma-core, with its signatures; no argument is looked at.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use weft_engine::Errno;

use crate::abi::{
    IBV_FORK_UNNEEDED, ibv_ah_attr, ibv_context, ibv_ece, ibv_fork_status, ibv_mr, ibv_pd, ibv_qp,
};
use crate::errno;

fn refused() -> c_int {
    errno::returned(Err(Errno::OPNOTSUPP))
}

fn none<T>() -> *mut T {
    errno::pointer(Err(Errno::OPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    refused()
}

/// For providers that build Ethernet frames: a negative `errno`.
#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    -refused()
}

/// Registered memory is never pinned or given to a device, so that forking needs no care.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// How drivers registered themselves before 2016; today's library ignores it, too.
#[unsafe(no_mangle)]
extern "C" fn ibv_register_driver(_name: *const c_void, _init: *const c_void) {}

macro_rules! from_kernel {
    ($($name:ident)*) => { $(
        /// Copies a structure of the kernel's command interface. No kernel device fills one here;
        /// the destination stays as it is.
        #[unsafe(no_mangle)]
        extern "C" fn $name(_to: *mut c_void, _from: *const c_void) {}
    )* };
}

from_kernel! {
    ibv_copy_ah_attr_from_kern
    ibv_copy_path_rec_from_kern
    ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern
}
