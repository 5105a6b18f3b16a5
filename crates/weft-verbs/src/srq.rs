//! Shared receive queues.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::event::Element;
use weft_engine::srq::{Srq as EngineSrq, SrqAttr};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_cq, ibv_pd,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd, zeroed,
};
use crate::acks::Acks;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno;
use crate::object::{self, AbiState, Object};
use crate::pd::{Pd, Use};
use crate::xrc::Xrcd;

/// The state of an `ibv_srq`.
#[derive(Debug)]
pub(crate) struct Srq {
    engine: Arc<EngineSrq>,
    context: *mut ibv_context,
    async_acks: Acks,
    /// The uses of the protection domain, and of the XRC domain if the queue is in one.
    _held: (Use, Option<Use>),
}

impl AbiState for Srq {
    type C = ibv_srq;
}

impl Srq {
    /// The engine's queue.
    pub(crate) fn engine(&self) -> &Arc<EngineSrq> {
        &self.engine
    }

    /// Counts the asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a queue that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_srq) -> &'a Object<Self> {
        // SAFETY: every `ibv_srq` that a program has was created by `create`, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// Creates a queue, with `xrc` in an XRC domain and with its own completion queue, and writes its
/// actual sizes to `init`.
///
/// # Errors
/// `EINVAL` for sizes above the device's limits; `ENOMEM` if the domain has too many queues.
///
/// # Safety
/// The objects must be live.
unsafe fn create(
    pd: *mut ibv_pd,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
    init: &mut ibv_srq_init_attr,
) -> Result<*mut ibv_srq> {
    // SAFETY: the program passes a live protection domain.
    let domain = unsafe { Pd::of(pd) };
    let attr = init.attr;
    let wanted = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: attr.srq_limit };
    let (engine, held) = match xrc {
        None => (EngineSrq::new(domain.engine(), wanted)?, None),
        Some((xrcd, cq)) => {
            // SAFETY: the caller guarantees that `xrcd` is live.
            let xrcd = unsafe { Xrcd::of(xrcd) };
            // SAFETY: the caller guarantees that `cq` is live.
            let cq = unsafe { Cq::of(cq) };
            let engine = EngineSrq::new_xrc(domain.engine(), wanted, xrcd.engine(), cq.engine())?;
            (engine, Some(xrcd.hold()))
        }
    };
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
    let _held = (domain.hold(), held);
    let state = Srq { engine, context, async_acks: Acks::default(), _held };
    let srq = object::create(c, state);
    cookie.cookie.store(srq.expose_provenance(), Ordering::Release);
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &mut *init };
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, None, init) })
}

/// Creates the queue that `ibv_srq_init_attr_ex` describes, a basic one or one of an XRC domain.
///
/// # Errors
/// `EINVAL` if a domain or queue is missing; `EOPNOTSUPP` for tag matching.
///
/// # Safety
/// The objects that `init` names must be live.
unsafe fn create_described(init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    let has = |bit| init.comp_mask & bit != 0;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    let xrc = match srq_type {
        IBV_SRQT_BASIC => None,
        IBV_SRQT_XRC if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) => {
            return Err(Errno::INVAL);
        }
        IBV_SRQT_XRC if init.xrcd.is_null() || init.cq.is_null() => return Err(Errno::INVAL),
        IBV_SRQT_XRC => Some((init.xrcd, init.cq)),
        _ => return Err(Errno::OPNOTSUPP),
    };
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        return Err(Errno::INVAL);
    }
    let mut plain = ibv_srq_init_attr { srq_context: init.srq_context, attr: init.attr };
    // SAFETY: the caller guarantees that the objects that `init` names are live, as `create`
    // requires.
    let created = unsafe { create(init.pd, xrc, &mut plain) };
    init.attr = plain.attr;
    created
}

/// `ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &mut *init };
    // SAFETY: the program guarantees what `create_described` requires of its arguments.
    errno::pointer(unsafe { create_described(init) })
}

/// `ibv_get_srq_num`: `EINVAL` for a queue outside XRC domains.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the program passes a live shared receive queue.
    let found = unsafe { Srq::of(srq) }.engine.number().ok_or(Errno::INVAL);
    errno::returned(found.map(|found| {
        // SAFETY: the program passes `number` as a valid pointer for the result.
        unsafe { number.write(found) }
    }))
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
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &*attr };
    let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    // SAFETY: the program passes a live shared receive queue.
    errno::returned(unsafe { Srq::of(srq) }.engine.modify(max_wr, limit))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes a live shared receive queue.
    let SrqAttr { max_wr, max_sge, srq_limit } = unsafe { Srq::of(srq) }.engine.query();
    // SAFETY: the program passes `attr` as a valid pointer for the result.
    unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program passes a live shared receive queue.
    let state = unsafe { Srq::of(srq) };
    // SAFETY: a context stays open as long as it has a queue.
    let context = unsafe { Context::of(state.context) };
    let retired = context.retire(
        &state.engine.cookie,
        || state.engine.destroy(),
        |element| matches!(element, Element::Srq(other) if other.is(&*state.engine)),
        &[&state.async_acks],
    );
    if retired.is_ok() {
        // SAFETY: the program does not use the object after this call, it has acknowledged its
        // events, and no queue pair uses it.
        unsafe { object::destroy::<Srq>(srq) };
    }
    errno::returned(retired)
}
