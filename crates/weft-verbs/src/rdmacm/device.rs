//! The contexts that all identifiers of a process share: one for each device.
//!
//! # Safety
//! The contexts and domains kept here are made by the verbs calls and never closed, so that their
//! addresses are good for ever.
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

/// A device that identifiers are bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    device: &'static Device,
    /// The context of every identifier on the device.
    pub(super) verbs: *mut ibv_context,
    /// The protection domain of those whose program does not bring one.
    pub(super) pd: *mut ibv_pd,
    /// The XRC domain, as well.
    xrcd: *mut ibv_xrcd,
}

// SAFETY: the objects may be used by any thread, as the verbs manual demands of them.
unsafe impl Send for Shared {}

static OPENED: Lock<Vec<Shared>> = Lock::new(Vec::new());

/// The device of a local address. Loopback addresses belong to the first device, as with the
/// kernel's `rdma_cm`: libfabric has no use for a device that is loopback itself.
///
/// # Errors
/// `ENODEV` when there is none; `EMFILE` and the like when it cannot be opened.
pub(super) fn of_address(address: IpAddr) -> Result<Shared> {
    if address.is_loopback() {
        return open(device::list()?.first().copied().ok_or(Errno::NODEV)?);
    }
    // The context that is open knows the addresses of the time when it was opened.
    let opened = OPENED.lock().iter().copied().find(|shared| shared.device.engine().owns(address));
    if let Some(shared) = opened {
        return Ok(shared);
    }
    let devices = device::list()?;
    let owner = devices.into_iter().find(|device| device.engine().owns(address));
    open(owner.ok_or(Errno::NODEV)?)
}

fn open(device: &'static Device) -> Result<Shared> {
    let mut opened = OPENED.lock();
    if let Some(shared) = opened.iter().find(|shared| std::ptr::eq(shared.device, device)) {
        return Ok(*shared);
    }
    let verbs = open::open(device)?;
    // SAFETY: an open context.
    let pd = unsafe { ibv_alloc_pd(verbs) };
    let mut init = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: an open context.
    let xrcd = unsafe { open_xrcd(verbs, &raw mut init) };
    let shared = Shared { device, verbs, pd, xrcd };
    // Newer first: its addresses are those of now.
    opened.insert(0, shared);
    Ok(shared)
}

/// The XRC domain of identifiers whose program does not bring one; NULL for a context that is not
/// shared.
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
        // SAFETY: the program wants the count at this place of its own.
        unsafe { *count = c_int::try_from(found).unwrap_or(c_int::MAX) };
    }
    errno::pointer(all.map(|(_, list)| list))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the program returns a list of `rdma_get_devices`.
    unsafe { device::free_array(list) };
}
