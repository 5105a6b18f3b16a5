//! Private symbols of rdma-core, version node `IBVERBS_PRIVATE_34` (rdma-core 39 to 56).
//!
//! Debian's perftest, libfabric and UCX are linked to `libmlx5.so.1` and `libefa.so.1`, providers
//! that import these symbols from libibverbs with immediate binding, so that a missing symbol ends
//! the program. The constructors of providers call some of them; nothing calls them for a device of
//! ours. The one that programs use, `ibv_query_gid_type`, is in `attributes`.
//!
//! # Safety
//! The exported names are those of rdma-core. The functions declare and use no arguments; in the C
//! calling convention a callee may ignore its arguments.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::AtomicBool;

use weft_engine::Errno;

use crate::errno;

macro_rules! refuse {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            errno::returned(Err(Errno::OPNOTSUPP))
        }
    )* };
}

refuse! {
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    execute_ioctl
}

macro_rules! refuse_object {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            errno::set(Errno::OPNOTSUPP);
            ptr::null_mut()
        }
    )* };
}

refuse_object! {
    _verbs_init_and_alloc_context
    verbs_open_device
}

macro_rules! ignore {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )* };
}

// Providers register themselves in their constructors; the registration is ignored.
ignore! {
    __verbs_log
    verbs_init_cq
    verbs_register_driver_34
    verbs_set_ops
    verbs_uninit_context
}

/// Returns the number of attributes of a kernel command, which is always 0.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs() -> c_uint {
    0
}

/// Reads a file of a kernel device; fails, since there is none.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    errno::minus_one(Err(Errno::NOENT))
}

/// Whether objects may be destroyed after their device is gone; providers read this variable.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
