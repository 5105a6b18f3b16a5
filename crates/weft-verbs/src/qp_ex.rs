//! The builders of `ibv_qp_ex`, which collect work requests between `wr_start` and `wr_complete`.
//!
//! # Safety
//! A program passes live objects of this library. The collected requests belong to the thread
//! between `wr_start` and `wr_complete` or `wr_abort`, which holds the queue pair's mutex.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use weft_engine::wr::{Operation, Sge};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV,
    IBV_QPT_XRC_SEND, ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type, ibv_sge,
};
use crate::ah;
use crate::errno;
use crate::mutex;
use crate::mw;
use crate::object::Object;
use crate::packed;
use crate::qp::{self, Builders, Qp};
use crate::stage::Stage;
use crate::xrc_qp;

/// Fills in all builders, requested or not, because programs call them without a check.
fn set_operations(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
}

/// # Safety
/// `qp` must be live for `'a`.
unsafe fn of<'a>(qp: *mut ibv_qp_ex) -> &'a Object<Qp> {
    // SAFETY: the caller guarantees that `qp` is live, and an `ibv_qp_ex` begins with its `ibv_qp`.
    unsafe { Qp::of(qp.cast()) }
}

/// # Safety
/// `qp` must be live for `'a`, and the caller between `wr_start` and the end of the batch.
unsafe fn stage<'a>(qp: *mut ibv_qp_ex) -> &'a mut Stage {
    // SAFETY: the caller guarantees that `qp` is live.
    let state = unsafe { of(qp) };
    // SAFETY: the caller is between `wr_start` and the end of the batch, so that this thread holds
    // the mutex that guards the stage. No function here has two references to the stage at a time.
    unsafe { &mut *state.stage.get() }
}

/// # Safety
/// `qp` must be live, and the caller between `wr_start` and the end of the batch.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Result<Operation>) {
    // SAFETY: `qp` is live, and the program has set this field of its structure.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: `qp` is live, and the program has set this field of its structure.
    let wr_flags = unsafe { (*qp).wr_flags };
    // SAFETY: the caller guarantees what `stage` requires.
    unsafe { stage(qp) }.begin(wr_id, wr_flags, operation);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program passes a live object, and the field is part of its structure.
    let mutex = unsafe { &raw mut (*qp).qp_base.mutex };
    // SAFETY: the mutex was initialised with the live structure, and this thread does not hold it.
    unsafe { mutex::lock(mutex) };
    // SAFETY: this thread has locked the mutex: the batch begins here.
    unsafe { stage(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let state = unsafe { of(qp) };
    // SAFETY: this thread holds the mutex since `wr_start`; the batch ends below.
    let posted = unsafe { stage(qp) }.post(state.engine());
    // SAFETY: this thread began the batch by `wr_start`, and ends it here.
    unsafe { wr_abort(qp) };
    errno::returned(posted)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: this thread holds the mutex since `wr_start`. Clearing also drops references to
    // memory windows.
    unsafe { stage(qp) }.clear();
    // SAFETY: the program passes a live object, and the field is part of its structure.
    let mutex = unsafe { &raw mut (*qp).qp_base.mutex };
    // SAFETY: this thread has locked the mutex in `wr_start`.
    unsafe { mutex::unlock(mutex) };
}

macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty),*) => $operation:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this
            // thread holds the mutex.
            unsafe { begin(qp, $operation) };
        }
    )* };
}

builders! {
    wr_send() => Ok(Operation::Send { imm: None, invalidate: None });
    wr_send_imm(imm: u32) => Ok(Operation::Send { imm: Some(imm), invalidate: None });
    wr_send_inv(rkey: u32) => Ok(Operation::Send { imm: None, invalidate: Some(rkey) });
    wr_rdma_write(rkey: u32, remote_addr: u64) =>
        Ok(Operation::Write { remote_addr, rkey, imm: None });
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) =>
        Ok(Operation::Write { remote_addr, rkey, imm: Some(imm) });
    wr_rdma_read(rkey: u32, remote_addr: u64) => Ok(Operation::Read { remote_addr, rkey });
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        Ok(Operation::CompareSwap { remote_addr, rkey, compare, swap });
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        Ok(Operation::FetchAdd { remote_addr, rkey, add });
    wr_local_inv(rkey: u32) => Ok(Operation::LocalInvalidate { rkey });
    wr_send_tso(_hdr: *mut c_void, _hdr_sz: u16, _mss: u16) => Err(Errno::OPNOTSUPP);
    wr_atomic_write(_rkey: u32, _addr: u64, _value: *const c_void) => Err(Errno::OPNOTSUPP);
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program passes `info` as a pointer to a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the program passes live objects.
    let operation = unsafe { mw::bind_type_two(window, rkey, info) };
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    unsafe { stage(qp) }.gather(&[Sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let mut room = packed::room();
    let sges = if count == 0 {
        &[]
    } else {
        // SAFETY: the program passes a list of `count` entries.
        unsafe { packed::aligned(list, count, &mut room) }
    };
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    unsafe { stage(qp) }.gather(sges);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: `one` is a list of one entry, and the program calls this between `wr_start` and
    // `wr_complete`.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    let stage = unsafe { stage(qp) };
    for at in 0..count {
        // SAFETY: the program passes a list of `count` entries, which it may have packed.
        let ibv_data_buf { addr, length } = unsafe { list.wrapping_add(at).read_unaligned() };
        if length != 0 {
            // SAFETY: the program passes readable memory of this length, which is copied at once.
            let piece = unsafe { slice::from_raw_parts(addr.cast::<u8>(), length) };
            stage.push_inline(piece);
        }
    }
    stage.end_inline();
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the program passes NULL or a live address handle.
    let to = unsafe { ah::destination(ah, qpn, qkey) };
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    unsafe { stage(qp) }.set_destination(to);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the program calls this between `wr_start` and `wr_complete`, so that this thread
    // holds the mutex.
    unsafe { stage(qp) }.set_srqn(srqn);
}

/// `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let ex = unsafe { *init };
    if ex.qp_type == IBV_QPT_XRC_RECV {
        // SAFETY: the program guarantees what `xrc_qp::create_target` requires of its arguments.
        return errno::pointer(unsafe { xrc_qp::create_target(context, &ex) });
    }
    if !matches!(ex.qp_type, IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND) {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    if ex.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || ex.pd.is_null() {
        return errno::pointer(Err(Errno::INVAL));
    }
    let has_builders = ex.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let has_flags = ex.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
    if ex.comp_mask & !KNOWN_ATTRIBUTES != 0
        || (has_builders && ex.send_ops_flags & !u64::from(send_ops(ex.qp_type)) != 0)
        || (has_flags && ex.create_flags != 0)
    {
        return errno::pointer(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: the extended structure begins with the fields of the plain one (see `layout`).
    let init = unsafe { &mut *init.cast::<ibv_qp_init_attr>() };
    // SAFETY: the program guarantees what `qp::create` requires of its arguments.
    errno::pointer(unsafe {
        qp::create(ex.pd, init, has_builders.then_some(set_operations as Builders))
    })
}

/// Returns the extended form of a queue pair, or NULL if it was created without builders.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes a live queue pair.
    let state = unsafe { Qp::of(qp) };
    if state.has_builders() { qp.cast() } else { ptr::null_mut() }
}

/// The operations that the builders support.
const SEND_OPS: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

fn send_ops(qp_type: ibv_qp_type) -> u32 {
    const DATAGRAM_OPS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if qp_type == IBV_QPT_UD { DATAGRAM_OPS } else { SEND_OPS }
}

/// The fields of `ibv_qp_init_attr_ex` that this device supports.
const KNOWN_ATTRIBUTES: u32 =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
