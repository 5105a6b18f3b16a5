//! The device list.
//!
//! # Safety
//! An `ibv_device` that a program passes was created here; devices never change and are never
//! freed. The C library allocates and frees the lists.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::ptr;

use weft_engine::device::{self, Device as EngineDevice};
use weft_engine::{Errno, Result};
use weft_sys::Lock;

use crate::abi::{fill, ibv_device, zeroed};
use crate::errno;
use crate::presentation::Presentation;

/// A device: its C structure and the engine's device.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    c: ibv_device,
    /// In rdma-core a provider's operations follow the structure. Providers compare them to find
    /// out whether a device is theirs (`is_mlx5_dev`); zero matches none.
    no_provider: [usize; 2],
    engine: EngineDevice,
}

/// Every device that was ever listed, one for each state of an interface's addresses. Devices are
/// never freed, since programs use a device after they have freed the list that contained it.
static KNOWN: Lock<Vec<&'static Device>> = Lock::new(Vec::new());

impl Device {
    fn new(engine: EngineDevice) -> Self {
        let presentation = Presentation::get();
        let mut c: ibv_device = zeroed();
        c.node_type = presentation.node_type();
        c.transport_type = presentation.transport_type();
        fill(&mut c.name, &engine.name);
        fill(&mut c.dev_name, &engine.name);
        fill(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{}", engine.name));
        fill(&mut c.ibdev_path, &format!("/sys/class/infiniband/{}", engine.name));
        Self { c, no_provider: [0; 2], engine }
    }

    /// The C structure, which nobody writes to.
    pub(crate) fn c(&'static self) -> *mut ibv_device {
        ptr::from_ref(self).cast::<ibv_device>().cast_mut()
    }

    /// The engine's device.
    pub(crate) fn engine(&self) -> &EngineDevice {
        &self.engine
    }

    /// The device at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be an element of a device list.
    pub(crate) unsafe fn of(c: *mut ibv_device) -> &'static Self {
        // SAFETY: the elements of device lists are `Device`s, which are immutable and never freed.
        unsafe { &*c.cast::<Self>() }
    }
}

/// Lists the current devices of this machine.
///
/// # Errors
/// The system's error if it cannot list the interfaces.
pub(crate) fn list() -> Result<Vec<&'static Device>> {
    let mut known = KNOWN.lock();
    let devices = device::list()?.into_iter().map(|engine| {
        let found = known.iter().copied().find(|device| device.engine == engine);
        found.unwrap_or_else(|| {
            let device: &'static Device = Box::leak(Box::new(Device::new(engine)));
            known.push(device);
            device
        })
    });
    Ok(devices.collect())
}

/// Copies pointers to a new array that ends with NULL; [`free_array`] frees it.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn array<T>(pointers: &[*mut T]) -> Result<*mut *mut T> {
    // SAFETY: `calloc` has no preconditions.
    let array = unsafe { libc::calloc(pointers.len() + 1, size_of::<*mut T>()) }.cast::<*mut T>();
    if array.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: `calloc` has returned aligned memory for one element more than `pointers` has, which
    // does not overlap them.
    unsafe { ptr::copy_nonoverlapping(pointers.as_ptr(), array, pointers.len()) };
    Ok(array)
}

/// Frees an array from [`array`](fn@array); NULL is ignored.
///
/// # Safety
/// `array` must be NULL or come from [`array`](fn@array), and be freed only once.
pub(crate) unsafe fn free_array<T>(array: *mut *mut T) {
    // SAFETY: the caller guarantees that the pointer is NULL or came from `calloc`, and is freed
    // once.
    unsafe { libc::free(array.cast()) };
}

fn device_list(count: *mut c_int) -> Result<*mut *mut ibv_device> {
    let pointers: Vec<_> = list()?.into_iter().map(Device::c).collect();
    let array = array(&pointers)?;
    if !count.is_null() {
        // SAFETY: `count` is not NULL, so that the program passes a valid pointer for the count.
        unsafe { *count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX) };
    }
    Ok(array)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    errno::pointer(device_list(count))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the program passes a list from `ibv_get_device_list` and does not use it after this
    // call.
    unsafe { free_array(list) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program passes an element of a device list.
    unsafe { Device::of(device) }.c.name.as_ptr()
}

/// Returns the GUID in network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the program passes an element of a device list.
    unsafe { Device::of(device) }.engine.guid().to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the program passes an element of a device list.
    let device = unsafe { Device::of(device) };
    c_int::try_from(device.engine.index).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_same_in_every_list() {
        let mut count = -1;
        let first = ibv_get_device_list(&raw mut count);
        let second = ibv_get_device_list(ptr::null_mut());
        assert!(count > 0, "a machine has at least its loopback interface");
        let count = usize::try_from(count).expect("positive");
        // SAFETY: the list has `count` elements and a NULL.
        let devices = unsafe { std::slice::from_raw_parts(first, count + 1) };
        // SAFETY: the list has `count` elements and a NULL.
        assert_eq!(devices, unsafe { std::slice::from_raw_parts(second, count + 1) });
        assert_eq!(devices.iter().position(|device| device.is_null()), Some(count));
        for list in [first, second] {
            // SAFETY: each list came from `ibv_get_device_list` and is freed once.
            unsafe { ibv_free_device_list(list) };
        }
    }
}
