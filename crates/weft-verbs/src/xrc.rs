//! XRC domains.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weft_engine::xrc::{OpenMode, Xrcd as EngineXrcd};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, IBV_XRCD_INIT_ATTR_RESERVED, ibv_context,
    ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::context::Context;
use crate::errno;
use crate::object::{self, AbiState, Object};
use crate::pd::{Use, Users};

/// The state of an `ibv_xrcd`.
#[derive(Debug)]
pub(crate) struct Xrcd {
    engine: Arc<EngineXrcd>,
    users: Users,
}

impl AbiState for Xrcd {
    type C = ibv_xrcd;
}

impl Xrcd {
    /// The engine's domain.
    pub(crate) fn engine(&self) -> &Arc<EngineXrcd> {
        &self.engine
    }

    /// Counts a use of the domain by an object that is created in it.
    pub(crate) fn hold(&self) -> Use {
        self.users.hold()
    }

    /// The domain at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a domain that is not closed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_xrcd) -> &'a Object<Self> {
        // SAFETY: every `ibv_xrcd` that a program has was created by `open_xrcd`, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// # Safety
/// `context` must be open.
unsafe fn open(context: *mut ibv_context, init: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd> {
    let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if init.comp_mask & needed != needed || init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        return Err(Errno::INVAL);
    }
    if init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 || init.fd < -1 {
        return Err(Errno::INVAL);
    }
    let file = (init.fd != -1).then(|| {
        // SAFETY: the descriptor is not -1, and the program keeps it open during this call.
        unsafe { BorrowedFd::borrow_raw(init.fd) }
    });
    let mode = OpenMode {
        create: init.oflags & libc::O_CREAT != 0,
        exclusive: init.oflags & libc::O_EXCL != 0,
    };
    // SAFETY: the caller guarantees that `context` is open.
    let state = unsafe { Context::of(context) };
    let engine = EngineXrcd::open(state.engine(), file, mode)?;
    Ok(object::create(ibv_xrcd { context }, Xrcd { engine, users: Users::default() }))
}

/// `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &*init };
    // SAFETY: the program passes an open context.
    errno::pointer(unsafe { open(context, init) })
}

/// `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the program passes a live XRC domain.
    let free = unsafe { Xrcd::of(xrcd) }.users.check_none();
    if free.is_ok() {
        // SAFETY: the program does not use the object after this call, and nothing that it made
        // here uses it.
        unsafe { object::destroy::<Xrcd>(xrcd) };
    }
    errno::returned(free)
}
