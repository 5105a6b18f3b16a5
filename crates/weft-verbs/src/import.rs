//! Importing: a program gets a second C object for a protection domain or a region that it has
//! already. It identifies them by the context's descriptor, or a duplicate of it, and by their
//! handles. Devices are imported in [`open`](crate::open).
//!
//! With a kernel device another process can import a context whose descriptor it received. Here a
//! descriptor identifies a context of its own process only.
//!
//! # Safety
//! A program passes live objects of this library, as the manual demands.
#![allow(unsafe_code)]

use std::sync::Arc;

use weft_engine::Errno;
use weft_engine::mr::Mr as EngineMr;

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::errno;
use crate::handles;
use crate::mr;
use crate::pd::{self, Pd};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the program passes an open context.
    let engine = unsafe { Context::of(context) }.engine();
    let found = handles::domain(handle);
    let domain = found.filter(|domain| Arc::ptr_eq(domain.context(), engine));
    errno::pointer(domain.ok_or(Errno::INVAL).map(|domain| pd::wrap(context, domain)))
}

/// Frees an imported `ibv_pd`; the domain itself stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the program passes an imported object and does not use it after this call.
    unsafe { pd::ibv_dealloc_pd(pd) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) }.engine();
    let region = EngineMr::find(handle).filter(|region| Arc::ptr_eq(region.pd(), domain));
    errno::pointer(region.ok_or(Errno::INVAL).map(|region| {
        // SAFETY: `pd` is live (the program passes it), and the region belongs to it.
        unsafe { mr::wrap(pd, region, 0, None) }
    }))
}

/// Frees an imported `ibv_mr`; the region stays registered.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the program passes an imported object and does not use it after this call.
    unsafe { mr::free_object(mr) };
}
