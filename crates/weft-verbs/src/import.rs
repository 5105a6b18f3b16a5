//! Importing: other objects of the program's for a domain or a region that it has already. It
//! names them by the context's descriptor, of which it may have a duplicate, and by their handles.
//! Devices are imported in [`open`](crate::open).
//!
//! A kernel device can be imported by another process, too, that was given its descriptor. Here
//! what a descriptor names is in this process only.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, as the manual demands.
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
    // SAFETY: an open context.
    let engine = unsafe { Context::of(context) }.engine();
    let found = handles::domain(handle);
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
