//! Extended completion queues: one completion at a time, read field by field.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours. The completion that the readers read
//! belongs to the thread between `start_poll` and `end_poll`: it holds the queue's mutex, or the
//! program promised that there is no other thread.
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
use crate::cq::{self, Cq, Wanted};
use crate::errno;
use crate::mutex;
use crate::object::Object;
use crate::pd::Pd;

/// The two forms of a completion's time.
const STAMPS: u32 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program's structure.
    let init = unsafe { &*init };
    // SAFETY: the caller's promise is ours.
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
        // SAFETY: a live domain.
        unsafe { Pd::of(init.parent_domain) }.hold()
    });
    let wanted = Wanted {
        cqe: init.cqe,
        user: init.cq_context,
        channel: init.channel,
        vector: init.comp_vector,
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        stamped: init.wc_flags & u64::from(STAMPS) != 0,
        domain,
    };
    // SAFETY: the caller's promise is ours.
    let cq = unsafe { cq::create(context, wanted) }?;
    // SAFETY: made just now; the program does not have it yet.
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
    // The others need flags that `create` refuses.
}

/// # Safety
/// `cq` must be live for `'a`.
unsafe fn of<'a>(cq: *mut ibv_cq_ex) -> &'a Object<Cq> {
    // SAFETY: the caller's promise; an `ibv_cq_ex` begins as an `ibv_cq` does.
    unsafe { Cq::of(cq.cast()) }
}

/// Moves the next completion to where the readers find it.
fn advance(cq: &Object<Cq>) -> c_int {
    // SAFETY: between `start_poll` and `end_poll` it is this thread's (see the module).
    let current = unsafe { &mut *cq.current.get() };
    let Some((completion, time)) = cq.engine().poll_stamped() else {
        // The one error that programs expect as an end; it is no failure, and `errno` stays.
        let end = if cq.engine().is_overrun() { Errno::OVERFLOW } else { Errno::NOENT };
        return end.raw_os_error();
    };
    *current = completion;
    // SAFETY: between `start_poll` and `end_poll` it is this thread's (see the module).
    unsafe { *cq.current_time.get() = time };
    let c = cq.c();
    // SAFETY: a field of the live structure, which the program only reads.
    unsafe { (*c).wr_id = current.wr_id };
    // SAFETY: a field of the live structure, which the program only reads.
    unsafe { (*c).status = current.status as u32 };
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program's structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::returned(Err(Errno::INVAL));
    }
    // SAFETY: a live queue.
    let state = unsafe { of(cq) };
    if !state.single_threaded {
        // SAFETY: a field of the live structure.
        let mutex = unsafe { &raw mut (*cq).mutex };
        // SAFETY: initialised with the structure.
        unsafe { mutex::lock(mutex) };
    }
    let found = advance(state);
    if found != 0 {
        unlock(state);
    }
    found
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a live queue.
    advance(unsafe { of(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a live queue.
    unlock(unsafe { of(cq) });
}

fn unlock(cq: &Object<Cq>) {
    if cq.single_threaded {
        fence(Ordering::Release);
    } else {
        // SAFETY: a field of the live structure.
        let mutex = unsafe { &raw mut (*cq.c()).mutex };
        // SAFETY: `start_poll` of this thread has locked it.
        unsafe { mutex::unlock(mutex) };
    }
}

/// # Safety
/// `cq` must be live, and the caller between `start_poll` and `end_poll`.
unsafe fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: a live queue.
    let state = unsafe { of(cq) };
    // SAFETY: this thread's (see the module).
    unsafe { *state.current.get() }
}

macro_rules! readers {
    ($($name:ident: $field:ident as $type:ty;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program reads a queue that it is polling.
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
    // SAFETY: the program reads a queue that it is polling.
    unsafe { current(cq) }.opcode as ibv_wc_opcode
}

/// Ticks of the clock of `ibv_query_rt_values_ex`.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: a live queue.
    let state = unsafe { of(cq) };
    // SAFETY: this thread's (see the module).
    unsafe { *state.current_time.get() }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program reads a queue that it is polling.
    clock::time_of_day(unsafe { read_completion_ts(cq) })
}
