//! Shared receive queues.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::event::Element;
use weft_engine::srq::{Srq as EngineSrq, SrqAttr};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    zeroed,
};
use crate::acks::Acks;
use crate::context::Context;
use crate::errno;
use crate::object::{self, Behind, Object};
use crate::pd::{Pd, Use};

/// What is behind an `ibv_srq`.
#[derive(Debug)]
pub(crate) struct Srq {
    engine: Arc<EngineSrq>,
    context: *mut ibv_context,
    async_acks: Acks,
    _pd: Use,
}

impl Behind for Srq {
    type C = ibv_srq;
}

impl Srq {
    /// The engine's queue.
    pub(crate) fn engine(&self) -> &Arc<EngineSrq> {
        &self.engine
    }

    /// Asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue that a program names.
    ///
    /// # Safety
    /// `c` must be a queue that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_srq) -> &'a Object<Self> {
        // SAFETY: every `ibv_srq` that programs have is made by `create`.
        unsafe { object::object(c) }
    }
}

unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq> {
    // SAFETY: a live domain.
    let domain = unsafe { Pd::of(pd) };
    let attr = init.attr;
    let wanted = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit };
    let engine = EngineSrq::new(domain.engine(), wanted)?;
    let actual = engine.query();
    init.attr.max_wr = actual.max_wr;
    init.attr.max_sge = actual.max_sge;
    let c = ibv_srq {
        context: domain.context(),
        srq_context: init.srq_context,
        pd,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..zeroed()
    };
    let cookie = Arc::clone(&engine);
    let context = domain.context();
    let state = Srq { engine, context, async_acks: Acks::default(), _pd: domain.hold() };
    let srq = object::create(c, state);
    cookie.cookie.store(srq.expose_provenance(), Ordering::Release);
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the program's structure.
    let init = unsafe { &mut *init };
    // SAFETY: the caller's promise is ours.
    errno::pointer(unsafe { create(pd, init) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let mask = mask.cast_unsigned();
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return errno::returned(Err(Errno::INVAL));
    }
    // SAFETY: the program's structure.
    let attr = unsafe { &*attr };
    let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    // SAFETY: a live queue.
    errno::returned(unsafe { Srq::of(srq) }.engine.modify(max_wr, limit))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a live queue.
    let SrqAttr { max_wr, max_sge, srq_limit } = unsafe { Srq::of(srq) }.engine.query();
    // SAFETY: the program's place for the result.
    unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a live queue.
    let state = unsafe { Srq::of(srq) };
    // SAFETY: an open context, as long as there is a queue in it.
    let context = unsafe { Context::of(state.context) };
    {
        let _delivery = context.delivery();
        if let Err(error) = state.engine.check_unused() {
            return errno::returned(Err(error));
        }
        state.engine.cookie.store(0, Ordering::Release);
    }
    context.engine().forget_events(
        |event| matches!(&event.element, Element::Srq(other) if Arc::ptr_eq(other, &state.engine)),
    );
    state.async_acks.wait();
    // SAFETY: the program gives it up, has acknowledged its events, and no queue pair uses it.
    unsafe { object::destroy::<Srq>(srq) };
    0
}
