//! XRC domains.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
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
use crate::object::{self, Behind, Object};
use crate::pd::{Use, Users};

/// What is behind an `ibv_xrcd`.
#[derive(Debug)]
pub(crate) struct Xrcd {
    engine: Arc<EngineXrcd>,
    users: Users,
}

impl Behind for Xrcd {
    type C = ibv_xrcd;
}

impl Xrcd {
    /// The engine's domain.
    pub(crate) fn engine(&self) -> &Arc<EngineXrcd> {
        &self.engine
    }

    /// A hold on the domain, for an object that is made in it.
    pub(crate) fn hold(&self) -> Use {
        self.users.hold()
    }

    /// The domain that a program names.
    ///
    /// # Safety
    /// `c` must be a domain that is not closed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_xrcd) -> &'a Object<Self> {
        // SAFETY: every `ibv_xrcd` that programs have is made by `open_xrcd`.
        unsafe { object::object(c) }
    }
}

/// # Safety
/// The context must be open.
unsafe fn open(context: *mut ibv_context, init: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd> {
    let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if init.comp_mask & needed != needed || init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        return Err(Errno::INVAL);
    }
    if init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 || init.fd < -1 {
        return Err(Errno::INVAL);
    }
    let file = (init.fd != -1).then(|| {
        // SAFETY: the program's descriptor, not -1, for the time of this call.
        unsafe { BorrowedFd::borrow_raw(init.fd) }
    });
    let mode = OpenMode {
        create: init.oflags & libc::O_CREAT != 0,
        exclusive: init.oflags & libc::O_EXCL != 0,
    };
    // SAFETY: an open context, by the caller's promise.
    let state = unsafe { Context::of(context) };
    let engine = EngineXrcd::open(state.engine(), file, mode)?;
    Ok(object::create(ibv_xrcd { context }, Xrcd { engine, users: Users::default() }))
}

/// `ibv_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the program's structure.
    let init = unsafe { &*init };
    // SAFETY: an open context.
    errno::pointer(unsafe { open(context, init) })
}

/// `ibv_close_xrcd`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: a live domain.
    let free = unsafe { Xrcd::of(xrcd) }.users.check_none();
    if free.is_ok() {
        // SAFETY: the program gives it up and nothing that it made here uses it.
        unsafe { object::destroy::<Xrcd>(xrcd) };
    }
    errno::returned(free)
}
