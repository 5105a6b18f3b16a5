//! Device memory, which on a card is memory of the card. Here it is ordinary memory of the process,
//! so that programs which use it run, without a gain in speed.
//!
//! # Safety
//! A program passes live objects of this library, and buffers of the length that it states.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;

use weft_engine::access::Access;
use weft_engine::mr::Mr as EngineMr;
use weft_engine::{Context as EngineContext, Errno, Result, limits};
use weft_sys::{Lock, Region};

use crate::abi::{IBV_DM_MASK_HANDLE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::errno;
use crate::handles::Handles;
use crate::limits::DM_LOG_ALIGN_MAX;
use crate::mr;
use crate::object::{self, AbiState, Object};
use crate::pd::{Pd, Use, Users};

/// Offsets and lengths are multiples of this many bytes, as on cards that have device memory.
const UNIT: u64 = 4;

/// The allocated memory. It lives as long as an `ibv_dm` or a region refers to it.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    layout: Layout,
    context: Arc<EngineContext>,
    users: Users,
}

// SAFETY: the memory is reached only by copies that the program and its peers order themselves, as
// registered memory is.
unsafe impl Send for Memory {}
// SAFETY: the memory is reached only by copies that the program and its peers order themselves, as
// registered memory is.
unsafe impl Sync for Memory {}

impl Memory {
    fn allocate(context: &Arc<EngineContext>, attr: &ibv_alloc_dm_attr) -> Result<Arc<Self>> {
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > DM_LOG_ALIGN_MAX {
            return Err(Errno::INVAL);
        }
        if attr.length > limits::DEVICE_MEMORY_MAX {
            return Err(Errno::NOMEM);
        }
        let align = (1 << attr.log_align_req).max(align_of::<u64>());
        let layout = Layout::from_size_align(attr.length, align).map_err(|_| Errno::INVAL)?;
        // SAFETY: `attr.length` and so the size of the layout is not 0 (checked above).
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Errno::NOMEM);
        }
        let context = Arc::clone(context);
        Ok(Arc::new(Self { start, layout, context, users: Users::default() }))
    }

    fn region(&self) -> Region {
        // SAFETY: the memory stays allocated until this value is dropped, and every user of the
        // region also holds this value.
        unsafe { Region::new(self.start.addr(), self.layout.size()) }
            .expect("an allocation does not wrap around")
    }

    /// Returns the part of the memory that a program wants to access.
    ///
    /// # Errors
    /// `EINVAL` if the part is not inside the memory, or not a multiple of the unit.
    fn part(&self, offset: u64, length: usize) -> Result<Region> {
        if !offset.is_multiple_of(UNIT) || !(length as u64).is_multiple_of(UNIT) {
            return Err(Errno::INVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        self.region().part(offset, length).ok_or(Errno::INVAL)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and the last reference to this value is
        // being dropped.
        unsafe { dealloc(self.start, self.layout) };
    }
}

static HANDLES: Lock<Handles<Memory>> = Lock::new(Handles::new());

/// The state of an `ibv_dm`.
#[derive(Debug)]
struct Dm {
    memory: Arc<Memory>,
}

impl AbiState for Dm {
    type C = ibv_dm;
}

/// # Safety
/// `dm` must be live for `'a`.
unsafe fn of<'a>(dm: *mut ibv_dm) -> &'a Object<Dm> {
    // SAFETY: every `ibv_dm` that a program has was created by `wrap`, and the caller guarantees
    // that it is live.
    unsafe { object::object(dm) }
}

fn wrap(context: *mut ibv_context, memory: Arc<Memory>) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: HANDLES.lock().of(&memory),
    };
    object::create(c, Dm { memory })
}

/// `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the program passes an open context.
    let engine = unsafe { Context::of(context) }.engine();
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let memory = Memory::allocate(engine, unsafe { &*attr });
    errno::pointer(memory.map(|memory| wrap(context, memory)))
}

/// `ibv_free_dm`: `EBUSY` while a region is registered in it.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the program passes a live object.
    let free = unsafe { of(dm) }.memory.users.check_none();
    if free.is_ok() {
        // SAFETY: the program passes a live object and does not use it after this call.
        unsafe { object::destroy::<Dm>(dm) };
    }
    errno::returned(free)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program passes a live object.
    let part = unsafe { of(dm) }.memory.part(offset, length);
    errno::returned(part.map(|part| {
        if length != 0 {
            // SAFETY: the program passes a buffer of `length` bytes.
            part.copy_in(unsafe { slice::from_raw_parts(from.cast(), length) });
        }
    }))
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the program passes a live object.
    let part = unsafe { of(dm) }.memory.part(offset, length);
    errno::returned(part.map(|part| {
        let mut bytes = Vec::new();
        part.copy_out(&mut bytes);
        // SAFETY: the program passes a buffer of `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), length) };
    }))
}

/// Keeps the memory of a region allocated and counted as in use.
#[derive(Debug)]
struct MemoryHold {
    _use: Use,
    _memory: Arc<Memory>,
}

impl mr::KeepAlive for MemoryHold {}

unsafe fn register(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> Result<*mut ibv_mr> {
    // SAFETY: the program passes a live object.
    let memory = &unsafe { of(dm) }.memory;
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let rights = Access::for_region(access)?;
    if !rights.contains(Access::ZERO_BASED) {
        return Err(Errno::INVAL);
    }
    let part = memory.part(offset, length)?;
    let engine = EngineMr::register(domain.engine(), part, 0, rights)?;
    let held = MemoryHold { _use: memory.users.hold(), _memory: Arc::clone(memory) };
    // SAFETY: `pd` is live (the program passes it), and the region belongs to it.
    Ok(unsafe { mr::wrap(pd, engine, length, Some(Box::new(held))) })
}

/// `ibv_reg_dm_mr`: addresses in the region start at 0.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the program guarantees what `register` requires of its arguments.
    errno::pointer(unsafe { register(pd, dm, offset, length, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: the program passes an open context.
    let engine = unsafe { Context::of(context) }.engine();
    let found = HANDLES.lock().find(handle);
    let memory = found.filter(|memory| Arc::ptr_eq(&memory.context, engine));
    errno::pointer(memory.ok_or(Errno::INVAL).map(|memory| wrap(context, memory)))
}

/// Frees an imported `ibv_dm`; the memory stays allocated as long as others refer to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the program passes an imported object and does not use it after this call.
    unsafe { object::destroy::<Dm>(dm) };
}
