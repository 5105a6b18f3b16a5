//! Memory of others that a device can access.
//!
//! # Safety
//! A [`Registration`] owns its registration, which ends once. The memory is a [`weft_sys::Region`],
//! whose maker keeps it mapped for as long as it is used, which a registration does until it has
//! ended. The device is live as long as the registration.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use weft_abi::{IBV_ACCESS_REMOTE_ATOMIC, ibv_mr};
use weft_sys::Lock;

use crate::device::Device;

/// Memory that is registered with a device, until this value is dropped or [ended](Self::end).
#[derive(Debug)]
pub struct Registration {
    mr: Lock<Option<Owned>>,
    local_key: u32,
    remote_key: u32,
    rights: u32,
    device: Arc<Device>,
}

/// The library's object.
#[derive(Debug)]
struct Owned(NonNull<ibv_mr>);

// SAFETY: a registration belongs to the process, not to a thread.
unsafe impl Send for Owned {}

impl Registration {
    /// Registers memory. `rights` are those of `ibv_reg_mr(3)`; without atomics in the device, the
    /// right to them is left out.
    ///
    /// # Errors
    /// If the device refuses it, for instance because too much memory is locked.
    pub fn new(device: &Arc<Device>, memory: weft_sys::Region, rights: u32) -> io::Result<Self> {
        let rights = match device.has_atomics() {
            true => rights,
            false => rights & !IBV_ACCESS_REMOTE_ATOMIC,
        };
        let start = std::ptr::with_exposed_provenance_mut(memory.addr());
        let reg_mr = device.functions().ibv_reg_mr;
        // SAFETY: the protection domain is live. Who made the region keeps it mapped until the
        // registration has ended.
        let mr = unsafe { reg_mr(device.pd(), start, memory.len(), rights.cast_signed()) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the library has returned a live registration, whose fields never change.
        let &ibv_mr { lkey: local_key, rkey: remote_key, .. } = unsafe { mr.as_ref() };
        let (mr, device) = (Lock::new(Some(Owned(mr))), Arc::clone(device));
        Ok(Self { mr, local_key, remote_key, rights, device })
    }

    /// The key of requests of this process.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key of requests of peers.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The rights that it gives.
    #[must_use]
    pub fn rights(&self) -> u32 {
        self.rights
    }

    /// Ends the registration: afterwards the device does not access the memory.
    ///
    /// # Errors
    /// If the device does not give it up, and may still access the memory.
    pub fn end(&self) -> io::Result<()> {
        let mut mr = self.mr.lock();
        let Some(Owned(owned)) = &*mr else { return Ok(()) };
        // SAFETY: `self` owns the registration, which has not ended, and its device is live.
        let ended = unsafe { (self.device.functions().ibv_dereg_mr)(owned.as_ptr()) };
        if ended != 0 {
            return Err(io::Error::from_raw_os_error(ended.abs()));
        }
        *mr = None;
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If it fails the device keeps it until the process ends.
        let _ = self.end();
    }
}
