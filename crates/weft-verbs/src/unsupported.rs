//! Public calls for features that this device does not have: each fails with `EOPNOTSUPP`, as the
//! manual says.
//!
//! # Safety
//! The exported names are those of rdma-core, with its signatures; the functions use no argument.
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

/// Returns a negative `errno`: only providers that build Ethernet frames call this.
#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    -refused()
}

/// Does nothing: registered memory is never pinned or accessed by a device, so that a fork is safe.
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

/// Ignores the driver, as today's rdma-core does: drivers registered themselves this way before
/// 2016.
#[unsafe(no_mangle)]
extern "C" fn ibv_register_driver(_name: *const c_void, _init: *const c_void) {}

macro_rules! from_kernel {
    ($($name:ident)*) => { $(
        /// Would copy a structure of the kernel's command interface. Without a kernel device no
        /// such structure exists, so that the destination stays unchanged.
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
