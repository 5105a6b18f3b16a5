//! Extended completion queues, whose completions a program reads one at a time and field by field.
//!
//! # Safety
//! A program passes live objects of this library. The current completion belongs to the thread
//! between `start_poll` and `end_poll`: it holds the queue's mutex, or the program has declared
//! that one thread at a time polls.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use weft_engine::clock;
use weft_engine::wc::Completion;
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_opcode,
};
use crate::cq::{self, Cq, CqParams};
use crate::errno;
use crate::mutex;
use crate::object::Object;
use crate::pd::Pd;

/// The flags that ask for time stamps.
const STAMPS: u32 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &*init };
    // SAFETY: the program guarantees what `create` requires of its arguments.
    errno::pointer(unsafe { create(context, init) })
}

unsafe fn create(context: *mut ibv_context, init: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
    let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 { 0 } else { init.flags };
    let known_flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let known_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if init.comp_mask & !known_mask != 0
        || flags & !known_flags != 0
        || init.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS | STAMPS) != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let has_domain = init.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    if has_domain && init.parent_domain.is_null() {
        return Err(Errno::INVAL);
    }
    let domain = has_domain.then(|| {
        // SAFETY: the program passes a live protection domain.
        unsafe { Pd::of(init.parent_domain) }.hold()
    });
    let params = CqParams {
        cqe: init.cqe,
        user: init.cq_context,
        channel: init.channel,
        vector: init.comp_vector,
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        time_stamped: init.wc_flags & u64::from(STAMPS) != 0,
        domain,
    };
    // SAFETY: the program guarantees what `cq::create` requires of its arguments.
    let cq = unsafe { cq::create(context, params) }?;
    // SAFETY: the queue was created above, and the program does not have it yet.
    set_operations(unsafe { &mut *cq });
    Ok(cq)
}

fn set_operations(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    // The other functions need flags that `create` refuses.
}

/// # Safety
/// `cq` must be live for `'a`.
unsafe fn of<'a>(cq: *mut ibv_cq_ex) -> &'a Object<Cq> {
    // SAFETY: the caller guarantees that `cq` is live, and an `ibv_cq_ex` begins with the fields of
    // an `ibv_cq` (see `layout`).
    unsafe { Cq::of(cq.cast()) }
}

/// Makes the next completion the current one.
fn advance(cq: &Object<Cq>) -> c_int {
    // SAFETY: between `start_poll` and `end_poll` this thread holds the queue's mutex, or is the
    // only one by the program's declaration, so that nothing else accesses the cell.
    let current = unsafe { &mut *cq.current.get() };
    let Some((completion, time)) = cq.engine().poll_stamped() else {
        // An empty queue is no failure, so that `errno` stays unchanged.
        let end = if cq.engine().is_overrun() { Errno::OVERFLOW } else { Errno::NOENT };
        return end.raw_os_error();
    };
    *current = completion;
    // SAFETY: between `start_poll` and `end_poll` this thread holds the queue's mutex, or is the
    // only one by the program's declaration, so that nothing else accesses the cell.
    unsafe { *cq.current_time.get() = time };
    let c = cq.c();
    // SAFETY: the object is live, and the program only reads this field of its structure.
    unsafe { (*c).wr_id = current.wr_id };
    // SAFETY: the object is live, and the program only reads this field of its structure.
    unsafe { (*c).status = current.status as u32 };
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::returned(Err(Errno::INVAL));
    }
    // SAFETY: the program passes a live queue.
    let state = unsafe { of(cq) };
    if !state.single_threaded {
        // SAFETY: the program passes a live object, and the field is part of its structure.
        let mutex = unsafe { &raw mut (*cq).mutex };
        // SAFETY: the mutex was initialised with the live structure, and this thread does not hold
        // it.
        unsafe { mutex::lock(mutex) };
    }
    let found = advance(state);
    if found != 0 {
        unlock(state);
    }
    found
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program passes a live queue.
    advance(unsafe { of(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes a live queue.
    unlock(unsafe { of(cq) });
}

fn unlock(cq: &Object<Cq>) {
    if cq.single_threaded {
        fence(Ordering::Release);
    } else {
        // SAFETY: the structure lives as long as the object.
        let mutex = unsafe { &raw mut (*cq.c()).mutex };
        // SAFETY: this thread has locked the mutex in `start_poll`.
        unsafe { mutex::unlock(mutex) };
    }
}

/// # Safety
/// `cq` must be live, and the caller between `start_poll` and `end_poll`.
unsafe fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: the program passes a live queue.
    let state = unsafe { of(cq) };
    // SAFETY: between `start_poll` and `end_poll` this thread holds the queue's mutex, or is the
    // only one by the program's declaration, so that nothing else accesses the cell.
    unsafe { *state.current.get() }
}

macro_rules! readers {
    ($($name:ident: $field:ident as $type:ty;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program calls this between `start_poll` and `end_poll` on a live queue.
            <$type>::from(unsafe { current(cq) }.$field)
        }
    )* };
}

readers! {
    read_vendor_err: vendor_err as u32;
    read_byte_len: byte_len as u32;
    read_imm_data: imm_data as u32;
    read_qp_num: qp_num as u32;
    read_src_qp: src_qp as u32;
    read_wc_flags: wc_flags as u32;
    read_slid: slid as u32;
    read_sl: sl as u8;
    read_dlid_path_bits: dlid_path_bits as u8;
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the program calls this between `start_poll` and `end_poll` on a live queue.
    unsafe { current(cq) }.opcode as ibv_wc_opcode
}

/// Returns the time of the current completion in ticks of the clock of `ibv_query_rt_values_ex`.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes a live queue.
    let state = unsafe { of(cq) };
    // SAFETY: between `start_poll` and `end_poll` this thread holds the queue's mutex, or is the
    // only one by the program's declaration, so that nothing else accesses the cell.
    unsafe { *state.current_time.get() }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program calls this between `start_poll` and `end_poll` on a live queue.
    clock::time_of_day(unsafe { read_completion_ts(cq) })
}
