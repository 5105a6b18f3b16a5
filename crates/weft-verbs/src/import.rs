//! Importing: other objects of the program's for a device, a domain or a region that it has
//! already. It names them by the context's descriptor, of which it may have a duplicate, and by
//! their handles.
//!
//! A kernel device can be imported by another process, too, that was given its descriptor. Here
//! what a descriptor names is in this process only.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, as the manual demands.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use weft_engine::mr::Mr as EngineMr;
use weft_engine::pd::Pd as EnginePd;
use weft_engine::{Context as EngineContext, Errno, Result};
use weft_sys::Lock;

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::context::{self, Context};
use crate::device::Device;
use crate::errno;
use crate::mr;
use crate::pd::{self, Pd};

/// What a descriptor of an opened device names: the inode tells it from all others.
#[derive(Debug)]
struct Named {
    inode: (u64, u64),
    engine: Weak<EngineContext>,
    device: &'static Device,
}

static OPENED: Lock<Vec<Named>> = Lock::new(Vec::new());
static DOMAINS: Lock<Handles<EnginePd>> = Lock::new(Handles::new());

/// Numbers for the objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T>(Vec<(u32, Weak<T>)>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The handle by which a program may import the object.
    pub(crate) fn of(&mut self, object: &Arc<T>) -> u32 {
        self.0.retain(|(_, object)| object.strong_count() != 0);
        let known = self.0.iter().find(|(_, other)| other.as_ptr() == Arc::as_ptr(object));
        if let Some((handle, _)) = known {
            return *handle;
        }
        let handle = self.0.last().map_or(1, |(last, _)| last.wrapping_add(1));
        self.0.push((handle, Arc::downgrade(object)));
        handle
    }

    /// The object that a program names.
    pub(crate) fn find(&self, handle: u32) -> Option<Arc<T>> {
        self.0.iter().find(|(other, _)| *other == handle)?.1.upgrade()
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A descriptor by which a program may import the context.
///
/// # Errors
/// `EMFILE` and the like when there is no descriptor left.
pub(crate) fn descriptor(engine: &Arc<EngineContext>, device: &'static Device) -> Result<OwnedFd> {
    let fd = memfd_create("weft-context", MemfdFlags::CLOEXEC)?;
    let named = Named { inode: inode_of(fd.as_fd())?, engine: Arc::downgrade(engine), device };
    let mut opened = OPENED.lock();
    opened.retain(|named| named.engine.strong_count() != 0);
    opened.push(named);
    Ok(fd)
}

/// A handle by which a program may import the domain.
pub(crate) fn handle(domain: &Arc<EnginePd>) -> u32 {
    DOMAINS.lock().of(domain)
}

fn import(fd: c_int) -> Result<*mut ibv_context> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the program's descriptor, not -1, for the time of this call.
    let inode = inode_of(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let found = {
        let opened = OPENED.lock();
        let mut found = opened.iter().filter(|named| named.inode == inode);
        found.find_map(|named| Some((named.engine.upgrade()?, named.device)))
    };
    // Another process's, or nobody's.
    let (engine, device) = found.ok_or(Errno::OPNOTSUPP)?;
    context::give(engine, device)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    errno::pointer(import(fd))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: an open context.
    let engine = unsafe { Context::of(context) }.engine();
    let found = DOMAINS.lock().find(handle);
    let domain = found.filter(|domain| Arc::ptr_eq(domain.context(), engine));
    errno::pointer(domain.ok_or(Errno::INVAL).map(|domain| pd::give(context, domain)))
}

/// The domain stays what it was; only this name of it goes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: imported, and the program gives it up.
    unsafe { pd::ibv_dealloc_pd(pd) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: a live domain.
    let domain = unsafe { Pd::of(pd) }.engine();
    let region = EngineMr::find(handle).filter(|region| Arc::ptr_eq(region.pd(), domain));
    errno::pointer(region.ok_or(Errno::INVAL).map(|region| {
        // SAFETY: a live domain, to which the region belongs.
        unsafe { mr::give(pd, region, 0, None) }
    }))
}

/// The region stays registered; only this name of it goes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: imported, and the program gives it up.
    unsafe { mr::drop_name(mr) };
}
