//! Queue pairs.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own. An `ibv_qp`
//! is the head of the `ibv_qp_ex` at the head of its [`Object`].
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::access::Access;
use weft_engine::qp::{AttrMask, Qp as EngineQp, QpAttr, QpCap, QpInit, QpState, QpType};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_QP_STATE, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, ibv_context, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, zeroed,
};
use crate::acks::Acks;
use crate::ah;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno;
use crate::object::{self, Behind, Object};
use crate::pd::{Pd, Use};
use crate::srq::Srq;
use crate::stage::Stage;

/// What is behind an `ibv_qp`.
#[derive(Debug)]
pub(crate) struct Qp {
    engine: Arc<EngineQp>,
    context: *mut ibv_context,
    /// What it was made of, with the sizes that it got.
    init: ibv_qp_init_attr,
    /// What the builders have collected. The thread that holds the structure's mutex owns it.
    pub(crate) stage: UnsafeCell<Stage>,
    /// Whether the program asked for the builders.
    has_builders: bool,
    async_acks: Acks,
    /// The protection domain or XRC domain that it was made in.
    _held: Use,
}

impl Behind for Qp {
    type C = ibv_qp_ex;
}

impl Qp {
    /// The engine's queue pair.
    pub(crate) fn engine(&self) -> &Arc<EngineQp> {
        &self.engine
    }

    /// Whether the program asked for the builders.
    pub(crate) fn has_builders(&self) -> bool {
        self.has_builders
    }

    /// Asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue pair that a program names.
    ///
    /// # Safety
    /// `c` must be a queue pair that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_qp) -> &'a Object<Self> {
        // SAFETY: every `ibv_qp` that programs have is the head of an `ibv_qp_ex` made below.
        unsafe { object::object(c.cast()) }
    }
}

fn cap_of(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn c_cap_of(cap: QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// # Safety
/// The queues that it names must be live or NULL.
unsafe fn init_of(init: &ibv_qp_init_attr) -> Result<QpInit> {
    let qp_type = match init.qp_type {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcSend,
        _ => return Err(Errno::OPNOTSUPP),
    };
    let receives = qp_type != QpType::XrcSend;
    if init.send_cq.is_null() || (receives && init.recv_cq.is_null()) {
        return Err(Errno::INVAL);
    }
    // SAFETY: a live queue, by the caller's promise.
    let send_cq = Arc::clone(unsafe { Cq::of(init.send_cq) }.engine());
    let recv_cq = if receives {
        // SAFETY: a live queue, by the caller's promise.
        Arc::clone(unsafe { Cq::of(init.recv_cq) }.engine())
    } else {
        Arc::clone(&send_cq)
    };
    let srq = (!init.srq.is_null()).then(|| {
        // SAFETY: a live queue, by the caller's promise.
        Arc::clone(unsafe { Srq::of(init.srq) }.engine())
    });
    let mut cap = cap_of(&init.cap);
    if srq.is_some() || !receives {
        // ibv_create_qp(3): ignored for a queue pair without a receive queue of its own.
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    let sq_sig_all = init.sq_sig_all != 0;
    Ok(QpInit { qp_type, send_cq, recv_cq, srq, xrcd: None, cap, sq_sig_all })
}

/// Makes a queue pair, and tells the program the sizes that it got.
///
/// # Errors
/// `EOPNOTSUPP` for a type that does not exist here; `EINVAL` for sizes beyond the device's, or
/// without completion queues; `ENOMEM` without numbers or keys left.
///
/// # Safety
/// The objects that are named must be live.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    builders: Option<Builders>,
) -> Result<*mut ibv_qp> {
    // SAFETY: live, by the caller's promise.
    let domain = unsafe { Pd::of(pd) };
    // SAFETY: live, by the caller's promise.
    let engine = EngineQp::new(domain.engine(), unsafe { init_of(init) }?)?;
    init.cap = c_cap_of(engine.query().1);
    let home = Home { context: domain.context(), pd, held: domain.hold() };
    Ok(tell_events(&Arc::clone(&engine), give(engine, home, init, builders)))
}

/// Fills in the builders of a queue pair whose program has asked for them.
pub(crate) type Builders = fn(&mut ibv_qp_ex);

/// Where a queue pair belongs.
pub(crate) struct Home {
    pub(crate) context: *mut ibv_context,
    /// NULL for a queue pair without a protection domain.
    pub(crate) pd: *mut ibv_pd,
    /// The use of the protection domain or XRC domain that it is made in.
    pub(crate) held: Use,
}

/// Gives the program a name for a queue pair.
pub(crate) fn give(
    engine: Arc<EngineQp>,
    home: Home,
    init: &ibv_qp_init_attr,
    builders: Option<Builders>,
) -> *mut ibv_qp {
    let qp_base = ibv_qp {
        context: home.context,
        qp_context: init.qp_context,
        pd: home.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: engine.number(),
        qp_num: engine.number(),
        state: engine.state() as u32,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let mut c = ibv_qp_ex { qp_base, ..zeroed() };
    if let Some(set) = builders {
        set(&mut c);
    }
    let state = Qp {
        engine,
        context: home.context,
        init: *init,
        stage: UnsafeCell::new(Stage::default()),
        has_builders: builders.is_some(),
        async_acks: Acks::default(),
        _held: home.held,
    };
    object::create(c, state).cast()
}

/// Asynchronous events of the queue pair name `qp`, which is in its context.
pub(crate) fn tell_events(engine: &EngineQp, qp: *mut ibv_qp) -> *mut ibv_qp {
    engine.cookie.store(qp.expose_provenance(), Ordering::Release);
    qp
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program's structure.
    let init = unsafe { &mut *init };
    // SAFETY: the caller's promise is ours.
    errno::pointer(unsafe { create(pd, init, None) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a live queue pair.
    let state = unsafe { Qp::of(qp) };
    {
        // SAFETY: an open context, as long as there is a queue pair in it.
        let _delivery = unsafe { Context::of(state.context) }.delivery();
        let (own, cookie) = (qp.addr(), &state.engine.cookie);
        let _ = cookie.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Acquire);
    }
    state.engine.destroy();
    state.async_acks.wait();
    // SAFETY: the program gives it up, and has acknowledged its events.
    unsafe { object::destroy::<Qp>(qp.cast()) };
    0
}

/// The engine's form of what a program wants to modify. What the mask leaves out is not looked at.
fn attr_of(attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr> {
    let state = |bit, value| {
        if mask.contains(bit) {
            QpState::from_raw(value).ok_or(Errno::INVAL)
        } else {
            Ok(QpState::Reset)
        }
    };
    let access = Access::from_bits(attr.qp_access_flags);
    if mask.contains(AttrMask::ACCESS_FLAGS) && access.is_none() {
        return Err(Errno::INVAL);
    }
    Ok(QpAttr {
        qp_state: state(AttrMask::STATE, attr.qp_state)?,
        cur_qp_state: state(AttrMask::CUR_STATE, attr.cur_qp_state)?,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: access.unwrap_or_default(),
        cap: cap_of(&attr.cap),
        ah_attr: ah::vector_of(&attr.ah_attr),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    })
}

/// The C form of a queue pair's attributes.
pub(crate) fn c_attr_of(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state as u32,
        cur_qp_state: attr.cur_qp_state as u32,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        cap: c_cap_of(attr.cap),
        ah_attr: ah::attr_of(&attr.ah_attr),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..zeroed()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a live queue pair.
    let state = unsafe { Qp::of(qp) };
    // SAFETY: the program's structure.
    let attr = unsafe { &*attr };
    let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(Errno::INVAL);
    errno::returned(mask.and_then(|mask| {
        state.engine.modify(&attr_of(attr, mask)?, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: a field of the live structure, which the program only reads.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live queue pair.
    let state = unsafe { Qp::of(qp) };
    let (found, ..) = state.engine.query();
    // SAFETY: the program's place for the result.
    unsafe { attr.write(c_attr_of(&found)) };
    // SAFETY: the program's place for the result.
    unsafe { init.write(state.init) };
    if mask.cast_unsigned() & IBV_QP_STATE != 0 {
        // SAFETY: a field of the live structure, which the program only reads.
        unsafe { (*qp).state = found.qp_state as u32 };
    }
    0
}

/// Whether data arrives in memory in the order of its addresses: not promised.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _opcode: u32, _flags: u32) -> c_int {
    0
}
