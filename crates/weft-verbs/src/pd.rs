//! Protection domains, thread domains, and parent domains, which combine the two.
//!
//! # Safety
//! A program passes live objects of this library, as the manual demands.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use weft_engine::pd::Pd as EnginePd;
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::context::Context;
use crate::errno;
use crate::handles;
use crate::object::{self, AbiState, Object};

/// The state of an `ibv_pd`.
#[derive(Debug)]
pub(crate) struct Pd {
    engine: Arc<EnginePd>,
    context: *mut ibv_context,
    users: Users,
    /// The uses of the domains that a parent domain combines, so that they are not freed.
    _parts: Option<(Use, Option<Use>)>,
}

impl AbiState for Pd {
    type C = ibv_pd;
}

impl Pd {
    /// The engine's protection domain; a parent domain has that of its protection domain.
    pub(crate) fn engine(&self) -> &Arc<EnginePd> {
        &self.engine
    }

    /// The context of the domain.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// Counts a use of the domain by an object that is created in it.
    pub(crate) fn hold(&self) -> Use {
        self.users.hold()
    }

    /// The domain at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a domain that is not deallocated during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_pd) -> &'a Object<Self> {
        // SAFETY: every `ibv_pd` that a program has was created by `create` below, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// Counts the uses of an object, which cannot be freed while there are any.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<()>);

/// One use of an object; dropping it ends the use.
#[derive(Debug)]
pub(crate) struct Use {
    _counted: Arc<()>,
}

impl Users {
    pub(crate) fn hold(&self) -> Use {
        Use { _counted: Arc::clone(&self.0) }
    }

    /// # Errors
    /// `EBUSY` while the object is in use.
    pub(crate) fn check_none(&self) -> Result<()> {
        if Arc::strong_count(&self.0) == 1 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

fn create(
    context: *mut ibv_context,
    engine: Arc<EnginePd>,
    parts: Option<(Use, Option<Use>)>,
) -> *mut ibv_pd {
    let handle = handles::handle(&engine);
    let state = Pd { engine, context, users: Users::default(), _parts: parts };
    object::create(ibv_pd { context, handle }, state)
}

/// Creates the C object of a protection domain of the engine.
pub(crate) fn wrap(context: *mut ibv_context, engine: Arc<EnginePd>) -> *mut ibv_pd {
    create(context, engine, None)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the program passes an open context.
    let engine = EnginePd::new(unsafe { Context::of(context) }.engine());
    wrap(context, engine)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the program passes a live protection domain.
    let state = unsafe { Pd::of(pd) };
    let free = state.users.check_none();
    if free.is_ok() {
        // SAFETY: the program does not use the object after this call, and nothing else uses it.
        unsafe { object::destroy::<Pd>(pd) };
    }
    errno::returned(free)
}

/// The state of an `ibv_td`. Any thread may use any object here, so that a thread domain only
/// counts its uses.
#[derive(Debug, Default)]
struct Td {
    users: Users,
}

impl AbiState for Td {
    type C = ibv_td;
}

/// `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    if unsafe { (*init).comp_mask } != 0 {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    object::create(ibv_td { context }, Td::default())
}

/// `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the program passes a live thread domain.
    let free = unsafe { object::object::<Td>(td) }.users.check_none();
    if free.is_ok() {
        // SAFETY: the program does not use the object after this call, and no parent domain uses
        // it.
        unsafe { object::destroy::<Td>(td) };
    }
    errno::returned(free)
}

/// `ibv_alloc_parent_domain`. The program's allocators are accepted and never called: they allocate
/// the buffers that a device reads, and there is no such device.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &*init };
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if init.pd.is_null() {
        return errno::pointer(Err(Errno::INVAL));
    }
    if init.comp_mask & !known != 0 {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: the program passes a live protection domain.
    let pd = unsafe { Pd::of(init.pd) };
    let td = (!init.td.is_null()).then(|| {
        // SAFETY: the program passes a live thread domain.
        unsafe { object::object::<Td>(init.td) }.users.hold()
    });
    create(context, Arc::clone(&pd.engine), Some((pd.hold(), td)))
}
