//! Memory that a device can access.
//!
//! # Safety
//! A [`Region`] owns its mapping and its registration. The mapping exists until the device has
//! given up the registration; if it does not, the mapping is leaked. The device, and through it a
//! peer, may change the bytes at any time, so they are never exposed as a Rust reference: they are
//! copied.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use weft_abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr};

use crate::device::Device;

/// The parties that may write to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device of this host.
    Local,
    /// Peers, too.
    Remote,
}

/// A mapping of anonymous memory.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Huge pages save translations in the device. Without them the call has no effect.
        // SAFETY: the advice concerns this mapping, and does not change its contents.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Memory that is registered with a device.
#[derive(Debug)]
pub struct Region {
    mr: NonNull<ibv_mr>,
    local_key: u32,
    remote_key: u32,
    memory: Option<Mapping>,
    start: NonNull<u8>,
    len: usize,
    device: Arc<Device>,
}

// SAFETY: the mapping and the registration belong to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: all accesses are copies through raw pointers. A racing copy yields any bytes, which
// callers must expect anyway, since a peer may write at the same time.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates and registers `len` bytes, all zero.
    ///
    /// # Errors
    /// If there is no memory, or the device refuses it.
    pub fn new(device: &Arc<Device>, len: usize, access: Access) -> io::Result<Self> {
        let memory = Mapping::new(len)?;
        let rights = match access {
            Access::Local => IBV_ACCESS_LOCAL_WRITE,
            Access::Remote => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };
        let (start, rights) = (memory.start, rights.cast_signed());
        // SAFETY: the protection domain is live, and the range is mapped and writable until after
        // the registration's end.
        let mr = unsafe {
            (device.functions().ibv_reg_mr)(device.pd(), start.as_ptr().cast(), len, rights)
        };
        let Some(mr) = NonNull::new(mr) else {
            let error = io::Error::last_os_error();
            let text = format!("registering {} KiB of memory: {error} (ulimit -l)", len >> 10);
            return Err(io::Error::new(error.kind(), text));
        };
        // SAFETY: the library has returned a live registration, whose fields never change.
        let &ibv_mr { lkey, rkey, .. } = unsafe { mr.as_ref() };
        let (memory, device) = (Some(memory), Arc::clone(device));
        Ok(Self { mr, local_key: lkey, remote_key: rkey, memory, start, len, device })
    }

    /// The device that can access the region.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The key by which a peer writes to the region.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The address of a byte.
    ///
    /// # Panics
    /// If it does not lie inside.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        self.at(offset, 1).as_ptr() as u64
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they would not lie inside.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the destination lies inside the mapping (checked by `at`). `bytes` is a slice of
        // this process, which does not overlap the mapping, since no reference to that exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: the source lies inside the mapping (checked by `at`). `bytes` is an exclusive
        // slice of this process, which does not overlap the mapping, since no reference to that
        // exists.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Returns a pointer to `len` bytes at `offset`.
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(is_inside, "an access past the end of a region");
        // SAFETY: the result lies inside the mapping, or is its end.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `self` owns the registration, and the device it belongs to is live.
        let ended = unsafe { (self.device.functions().ibv_dereg_mr)(self.mr.as_ptr()) };
        if ended != 0 {
            // The device may still access the memory.
            std::mem::forget(self.memory.take());
        }
    }
}
