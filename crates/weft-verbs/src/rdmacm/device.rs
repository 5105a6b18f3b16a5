//! The contexts of the connection manager: all identifiers of a process on one device share one.
//!
//! # Safety
//! The contexts and domains here come from the verbs calls and are never closed, so that their
//! addresses stay valid.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::IpAddr;

use weft_engine::{Errno, Result};
use weft_sys::Lock;

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_pd, ibv_xrcd,
    ibv_xrcd_init_attr,
};
use crate::device::{self, Device};
use crate::errno;
use crate::open;
use crate::pd::ibv_alloc_pd;
use crate::xrc::open_xrcd;

/// A device with the objects that its identifiers share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedDevice {
    device: &'static Device,
    /// The context of all identifiers on the device.
    pub(super) verbs: *mut ibv_context,
    /// The default protection domain of identifiers on the device.
    pub(super) pd: *mut ibv_pd,
    /// The default XRC domain of identifiers on the device.
    xrcd: *mut ibv_xrcd,
}

// SAFETY: any thread may use the objects that the pointers refer to, as the verbs manual demands,
// and they are never freed.
unsafe impl Send for SharedDevice {}

static OPENED: Lock<Vec<SharedDevice>> = Lock::new(Vec::new());

/// The device of a local address. Loopback addresses belong to the first device, as with the
/// kernel's `rdma_cm`: libfabric does not use a device for loopback only.
///
/// # Errors
/// `ENODEV` if no device has the address; `EMFILE` or `ENFILE` if no descriptor is left.
pub(super) fn of_address(address: IpAddr) -> Result<SharedDevice> {
    if address.is_loopback() {
        return open(device::list()?.first().copied().ok_or(Errno::NODEV)?);
    }
    // An open context has the addresses that its interface had when it was opened.
    let opened = OPENED.lock().iter().copied().find(|shared| shared.device.engine().owns(address));
    if let Some(shared) = opened {
        return Ok(shared);
    }
    let devices = device::list()?;
    let owner = devices.into_iter().find(|device| device.engine().owns(address));
    open(owner.ok_or(Errno::NODEV)?)
}

fn open(device: &'static Device) -> Result<SharedDevice> {
    let mut opened = OPENED.lock();
    if let Some(shared) = opened.iter().find(|shared| std::ptr::eq(shared.device, device)) {
        return Ok(*shared);
    }
    let verbs = open::open(device)?;
    // SAFETY: `verbs` was opened above.
    let pd = unsafe { ibv_alloc_pd(verbs) };
    let mut init = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: `verbs` was opened above.
    let xrcd = unsafe { open_xrcd(verbs, &raw mut init) };
    let shared = SharedDevice { device, verbs, pd, xrcd };
    // The newest context comes first: it has the current addresses.
    opened.insert(0, shared);
    Ok(shared)
}

/// The default XRC domain of identifiers in a context; NULL for a context that was not opened here.
pub(super) fn xrcd_of(verbs: *mut ibv_context) -> *mut ibv_xrcd {
    let opened = OPENED.lock();
    let shared = opened.iter().find(|shared| shared.verbs == verbs);
    shared.map_or(std::ptr::null_mut(), |shared| shared.xrcd)
}

fn all() -> Result<(usize, *mut *mut ibv_context)> {
    let mut contexts = Vec::new();
    for device in device::list()? {
        contexts.push(open(device)?.verbs);
    }
    if contexts.is_empty() {
        return Err(Errno::NODEV);
    }
    Ok((contexts.len(), device::array(&contexts)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let all = all();
    if !count.is_null() {
        let found = all.as_ref().map_or(0, |(count, _)| *count);
        // SAFETY: `count` is not NULL, so that the program passes a valid pointer for the count.
        unsafe { *count = c_int::try_from(found).unwrap_or(c_int::MAX) };
    }
    errno::pointer(all.map(|(_, list)| list))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program passes a list from `rdma_get_devices` and does not use it after this
    // call.
    unsafe { device::free_array(list) };
}
