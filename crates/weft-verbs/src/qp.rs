//! Queue pairs.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own. An `ibv_qp` is
//! the first field of the `ibv_qp_ex` at the start of its [`Object`].
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
use crate::object::{self, AbiState, Object};
use crate::pd::{Pd, Use};
use crate::srq::Srq;
use crate::stage::Stage;

/// The state of an `ibv_qp`.
#[derive(Debug)]
pub(crate) struct Qp {
    engine: Arc<EngineQp>,
    context: *mut ibv_context,
    /// The attributes that the queue pair was created with, with its actual sizes.
    init: ibv_qp_init_attr,
    /// The requests that the builders have collected. They belong to the thread that holds the
    /// structure's mutex.
    pub(crate) stage: UnsafeCell<Stage>,
    /// Whether the program requested the builders.
    has_builders: bool,
    async_acks: Acks,
    /// The use of the protection domain or XRC domain of the queue pair.
    _held: Use,
}

impl AbiState for Qp {
    type C = ibv_qp_ex;
}

impl Qp {
    /// The engine's queue pair.
    pub(crate) fn engine(&self) -> &Arc<EngineQp> {
        &self.engine
    }

    /// Whether the program requested the builders.
    pub(crate) fn has_builders(&self) -> bool {
        self.has_builders
    }

    /// Counts the asynchronous events that the program has taken.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// The queue pair at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a queue pair that is not destroyed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_qp) -> &'a Object<Self> {
        // SAFETY: every `ibv_qp` that a program has is the first field of an `ibv_qp_ex` created
        // below, and the caller guarantees that it is live.
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
/// The queues that `init` names must be live or NULL.
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
    // SAFETY: the caller guarantees that `init.send_cq` is live.
    let send_cq = Arc::clone(unsafe { Cq::of(init.send_cq) }.engine());
    let recv_cq = if receives {
        // SAFETY: the caller guarantees that `init.recv_cq` is live.
        Arc::clone(unsafe { Cq::of(init.recv_cq) }.engine())
    } else {
        Arc::clone(&send_cq)
    };
    let srq = (!init.srq.is_null()).then(|| {
        // SAFETY: the caller guarantees that `init.srq` is live.
        Arc::clone(unsafe { Srq::of(init.srq) }.engine())
    });
    let mut cap = cap_of(&init.cap);
    if srq.is_some() || !receives {
        // These sizes are ignored for a queue pair without its own receive queue
        // (ibv_create_qp(3)).
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    let sq_sig_all = init.sq_sig_all != 0;
    Ok(QpInit { qp_type, send_cq, recv_cq, srq, xrcd: None, cap, sq_sig_all })
}

/// Creates a queue pair, and writes its actual sizes to `init`.
///
/// # Errors
/// `EOPNOTSUPP` for an unsupported type; `EINVAL` for sizes above the device's limits, or without
/// completion queues; `ENOMEM` if no number or key is left.
///
/// # Safety
/// `pd` and the objects that `init` names must be live.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    builders: Option<Builders>,
) -> Result<*mut ibv_qp> {
    // SAFETY: the caller guarantees that `pd` is live.
    let domain = unsafe { Pd::of(pd) };
    // SAFETY: the caller guarantees that the objects that `init` names are live, as `init_of`
    // requires.
    let engine = EngineQp::new(domain.engine(), unsafe { init_of(init) }?)?;
    init.cap = c_cap_of(engine.query().1);
    let parent = Parent { context: domain.context(), pd, held: domain.hold() };
    Ok(set_event_object(&Arc::clone(&engine), wrap(engine, parent, init, builders)))
}

/// Fills in the builders of a queue pair whose program requested them.
pub(crate) type Builders = fn(&mut ibv_qp_ex);

/// The context and domain of a queue pair.
pub(crate) struct Parent {
    pub(crate) context: *mut ibv_context,
    /// NULL for a queue pair without a protection domain.
    pub(crate) pd: *mut ibv_pd,
    /// The use of the protection domain or XRC domain that the queue pair is created in.
    pub(crate) held: Use,
}

/// Creates the C object of a queue pair of the engine.
pub(crate) fn wrap(
    engine: Arc<EngineQp>,
    parent: Parent,
    init: &ibv_qp_init_attr,
    builders: Option<Builders>,
) -> *mut ibv_qp {
    let qp_base = ibv_qp {
        context: parent.context,
        qp_context: init.qp_context,
        pd: parent.pd,
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
        context: parent.context,
        init: *init,
        stage: UnsafeCell::new(Stage::default()),
        has_builders: builders.is_some(),
        async_acks: Acks::default(),
        _held: parent.held,
    };
    object::create(c, state).cast()
}

/// Makes `qp` the C object that asynchronous events of the queue pair name.
pub(crate) fn set_event_object(engine: &EngineQp, qp: *mut ibv_qp) -> *mut ibv_qp {
    engine.cookie.store(qp.expose_provenance(), Ordering::Release);
    qp
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &mut *init };
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(pd, init, None) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let state = unsafe { Qp::of(qp) };
    {
        // SAFETY: a context stays open as long as it has a queue pair.
        let _delivery = unsafe { Context::of(state.context) }.delivery();
        let (own, cookie) = (qp.addr(), &state.engine.cookie);
        let _ = cookie.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Acquire);
    }
    state.engine.destroy();
    state.async_acks.wait();
    // SAFETY: no event of the object is outstanding, and the program does not use it after this
    // call.
    unsafe { object::destroy::<Qp>(qp.cast()) };
    0
}

/// Converts the attributes of `ibv_modify_qp` to the engine's. Attributes outside the mask are
/// ignored.
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

/// Converts attributes of a queue pair to their C form.
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
    // SAFETY: the program passes a live queue pair.
    let state = unsafe { Qp::of(qp) };
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &*attr };
    let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(Errno::INVAL);
    errno::returned(mask.and_then(|mask| {
        state.engine.modify(&attr_of(attr, mask)?, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the object is live, and the program only reads this field of its structure.
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
    // SAFETY: the program passes a live queue pair.
    let state = unsafe { Qp::of(qp) };
    let (found, ..) = state.engine.query();
    // SAFETY: the program passes `attr` as a valid pointer for the result.
    unsafe { attr.write(c_attr_of(&found)) };
    // SAFETY: the program passes `init` as a valid pointer for the result.
    unsafe { init.write(state.init) };
    if mask.cast_unsigned() & IBV_QP_STATE != 0 {
        // SAFETY: the object is live, and the program only reads this field of its structure.
        unsafe { (*qp).state = found.qp_state as u32 };
    }
    0
}

/// Whether data is placed in the order of its addresses: never guaranteed here.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _opcode: u32, _flags: u32) -> c_int {
    0
}
