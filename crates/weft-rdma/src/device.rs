//! Devices.
//!
//! # Safety
//! A [`Device`] owns an identifier, which keeps the device's context open, and a protection domain.
//! Queues, regions and queue pairs hold the device by `Arc`, so both outlive them. All functions of
//! libibverbs may be called by several threads at once.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use weft_abi::{
    IBV_ATOMIC_NONE, IBV_TRANSPORT_IWARP, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_wc,
};

use crate::id::Id;
use crate::libraries::{Functions, functions};
use crate::limits::RESOLVE_TIME;

/// The port of an address that is only resolved to a device.
const DISCARD_PORT: u16 = 9;

/// The operations that programs call through the context, without a symbol of the library.
#[derive(Clone, Copy)]
pub(crate) struct Operations {
    pub(crate) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(crate) post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(crate) post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

/// An RDMA device with a protection domain.
pub struct Device {
    pd: NonNull<ibv_pd>,
    context: NonNull<ibv_context>,
    operations: Operations,
    /// The address of this host by which the device was found.
    address: IpAddr,
    has_atomics: bool,
    id: Id,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

// SAFETY: the context and the protection domain belong to the process, not to a thread.
unsafe impl Send for Device {}
// SAFETY: all functions that take the context or the protection domain may be called by several
// threads at once.
unsafe impl Sync for Device {}

impl Device {
    /// Finds the device of an address of this host.
    ///
    /// # Errors
    /// If the libraries are missing, the address has no device, or the device does not work.
    pub fn at(address: IpAddr) -> io::Result<Arc<Self>> {
        let functions = functions().map_err(io::Error::other)?;
        let address = address.to_canonical();
        let mut id = Id::new(functions)?;
        id.bind(SocketAddr::new(address, 0))?;
        if id.context().is_null() {
            // Binding alone does not choose the device of a loopback address.
            let to = SocketAddr::new(address, DISCARD_PORT);
            id.resolve(None, to, Instant::now() + RESOLVE_TIME)?;
        }
        let none = || io::Error::new(io::ErrorKind::AddrNotAvailable, "it has no RDMA device");
        let context = NonNull::new(id.context()).ok_or_else(none)?;
        // SAFETY: the identifier keeps the context open, and its operations never change.
        let ops = unsafe { &context.as_ref().ops };
        let missing = || io::Error::other("the RDMA device lacks an operation");
        let operations = Operations {
            poll_cq: ops.poll_cq.ok_or_else(missing)?,
            req_notify_cq: ops.req_notify_cq.ok_or_else(missing)?,
            post_send: ops.post_send.ok_or_else(missing)?,
            post_recv: ops.post_recv.ok_or_else(missing)?,
        };
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: `id` keeps the context open, and `attributes` has room for the result.
        let queried =
            unsafe { (functions.ibv_query_device)(context.as_ptr(), attributes.as_mut_ptr()) };
        if queried != 0 {
            return Err(io::Error::from_raw_os_error(queried.abs()));
        }
        // SAFETY: the library has filled the structure, since it has succeeded.
        let has_atomics = unsafe { attributes.assume_init() }.atomic_cap != IBV_ATOMIC_NONE;
        // SAFETY: `id` keeps the context open.
        let pd = unsafe { (functions.ibv_alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { pd, context, operations, address, has_atomics, id }))
    }

    /// The name of the device, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the identifier keeps the context open, and the field never changes.
        let device = unsafe { self.context.as_ref() }.device;
        // SAFETY: `self` keeps the context open, and the library keeps the device of an open
        // context.
        let name = unsafe { (self.functions().ibv_get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the result, which is not NULL, is a string in the device's structure, which lives
        // as long as the context.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The address of this host by which the device was found.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the device carries out atomics.
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// Whether the device speaks iWARP, where the memory into which a Read brings bytes has to be
    /// open for Writes of the peer, too.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: the identifier keeps the context open, and the field never changes.
        let device = unsafe { self.context.as_ref() }.device;
        // SAFETY: `self` keeps the context open, and the library keeps the device of an open
        // context. The field never changes.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IWARP
    }

    /// Whether an identifier is on this device.
    pub(crate) fn has(&self, id: &Id) -> bool {
        id.context() == self.context.as_ptr()
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.id.functions()
    }

    pub(crate) fn operations(&self) -> Operations {
        self.operations
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `self` owns the protection domain, and all that uses it keeps `self` alive.
        unsafe { (self.functions().ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}
