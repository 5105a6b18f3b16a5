//! The functions of the system's libraries.
//!
//! # Safety
//! Each function pointer has the type that the headers of rdma-core declare; rdma-core never
//! changes a function under the same symbol version. The libraries stay loaded until the process
//! ends, since they have threads, so the pointers stay valid.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libc::sockaddr;
use libloading::Library;
use weft_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_qp_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

/// The libraries cannot be used on this host.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the RDMA libraries cannot be loaded ({0}); Debian's packages of them are libibverbs1, \
     librdmacm1 and ibverbs-providers"
)]
pub struct LoadError(String);

macro_rules! functions {
    ($($file:literal { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions that this crate calls.
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl std::fmt::Debug for Functions {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Functions").finish_non_exhaustive()
            }
        }

        /// Loads the libraries, in an order in which each needs only those before it.
        fn load() -> Result<Functions, LoadError> {
            $($(let $name;)*
            {
                let library = open($file)?;
                $(
                    // SAFETY: the headers of rdma-core declare the function with this type.
                    let found = unsafe { library.get(concat!(stringify!($name), "\0")) };
                    $name = *found.map_err(|error| LoadError(error.to_string()))?;
                )*
            })*
            Ok(Functions { $($($name,)*)* })
        }
    };
}

functions! {
    "libibverbs.so.1" {
        fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
            -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, u32);
    }
    "librdmacm.so.1" {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_create_id(
            *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space
        ) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id);
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
    }
}

/// Loads a library for the rest of the process's life.
fn open(file: &str) -> Result<&'static Library, LoadError> {
    // SAFETY: loading the library runs its initialisers. Those of rdma-core and of Weft only set up
    // their own data.
    let library = unsafe { Library::new(file) };
    let library = library.map_err(|error| LoadError(error.to_string()))?;
    Ok(Box::leak(Box::new(library)))
}

/// Returns the functions, and loads the libraries at the first call.
///
/// # Errors
/// If a library or one of the functions is missing; the reason is remembered.
pub(crate) fn functions() -> Result<&'static Functions, LoadError> {
    static FUNCTIONS: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref().map_err(Clone::clone)
}
