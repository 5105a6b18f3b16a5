//! The builders of `ibv_qp_ex`: work requests collected between `wr_start` and `wr_complete`.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours. What is collected belongs to the thread
//! between `wr_start` and `wr_complete` or `wr_abort`: it holds the queue pair's mutex.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;

use weft_engine::wr::{Data, Destination, Operation, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, Result};

use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::ah;
use crate::errno;
use crate::mutex;
use crate::mw;
use crate::object::Object;
use crate::qp::Qp;

/// Work requests that are collected, and not posted yet.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    work: Vec<Work>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first mistake. It spoils the whole batch.
    error: Option<Errno>,
}

#[derive(Debug)]
struct Work {
    wr_id: u64,
    flags: SendFlags,
    operation: Operation,
    data: Collected,
    /// The peer's shared receive queue, on an extended connection.
    srqn: u32,
}

/// Where a request's data stands in its stage.
#[derive(Debug)]
enum Collected {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

impl Stage {
    fn clear(&mut self) {
        self.work.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
    }

    fn begin(&mut self, wr_id: u64, flags: u32, operation: Result<Operation>) {
        let flags = SendFlags::from_bits(flags).ok_or(Errno::INVAL);
        match flags.and_then(|flags| operation.map(|operation| (flags, operation))) {
            Ok((flags, operation)) => {
                let flags = flags - SendFlags::INLINE; // The setter says that, not the flag.
                let data = Collected::Gather(0..0);
                self.work.push(Work { wr_id, flags, operation, data, srqn: 0 });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Makes the last request a datagram.
    fn address(&mut self, to: Result<Destination>) {
        match (to, self.work.last_mut().map(|work| &mut work.operation)) {
            (Ok(to), Some(operation)) => {
                // What is no Send stays as it is, and the queue pair refuses it.
                if let Operation::Send { imm, invalidate: None } = *operation {
                    *operation = Operation::Datagram { to, imm };
                }
            }
            (to, _) => self.fail(to.err().unwrap_or(Errno::INVAL)),
        }
    }

    /// Gives the last request its data; it gets one setter (ibv_wr_post(3)).
    fn set(&mut self, data: Collected) {
        match self.work.last_mut() {
            Some(work) => work.data = data,
            None => self.fail(Errno::INVAL),
        }
    }

    /// Says which shared receive queue the last request is for.
    fn aim(&mut self, srqn: u32) {
        match self.work.last_mut() {
            Some(work) => work.srqn = srqn,
            None => self.fail(Errno::INVAL),
        }
    }

    fn gather(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        self.set(Collected::Gather(start..self.sges.len()));
    }

    /// Posts all of the batch, or, after a mistake or without room, none of it.
    fn post(&self, qp: &Qp) -> Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut poster = qp.engine().start_post();
        let posted = self.work.iter().try_for_each(|work| {
            let piece;
            let data = match &work.data {
                Collected::Gather(range) => Data::Gather(&self.sges[range.clone()]),
                Collected::Inline(range) => {
                    piece = [&self.inline[range.clone()]];
                    Data::Inline(&piece)
                }
            };
            let (wr_id, flags) = (work.wr_id, work.flags);
            let operation = work.operation.clone();
            poster.push_to(&SendRequest { wr_id, operation, flags, data }, work.srqn)
        });
        if posted.is_err() {
            poster.cancel();
        }
        posted
    }
}

/// Fills in the builders. Each is filled in, asked for or not: programs call them unchecked.
pub(crate) fn set_operations(qp: &mut ibv_qp_ex) {
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
    // SAFETY: the caller's promise; an `ibv_qp_ex` begins with its `ibv_qp`.
    unsafe { Qp::of(qp.cast()) }
}

/// # Safety
/// `qp` must be live for `'a`, and the caller between `wr_start` and the end of the batch.
unsafe fn stage<'a>(qp: *mut ibv_qp_ex) -> &'a mut Stage {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { of(qp) };
    // SAFETY: this thread holds the mutex that guards it (see the module), and each function here
    // asks for it once.
    unsafe { &mut *state.stage.get() }
}

/// # Safety
/// As for [`stage`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Result<Operation>) {
    // SAFETY: fields of the live structure, which the program has set.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: fields of the live structure, which the program has set.
    let wr_flags = unsafe { (*qp).wr_flags };
    // SAFETY: the caller's promise.
    unsafe { stage(qp) }.begin(wr_id, wr_flags, operation);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: a field of the live structure.
    let mutex = unsafe { &raw mut (*qp).qp_base.mutex };
    // SAFETY: initialised with the structure.
    unsafe { mutex::lock(mutex) };
    // SAFETY: the batch begins here.
    unsafe { stage(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a live queue pair.
    let state = unsafe { of(qp) };
    // SAFETY: the batch ends below.
    let posted = unsafe { stage(qp) }.post(state);
    // SAFETY: ends the batch that `wr_start` of this thread began.
    unsafe { wr_abort(qp) };
    errno::returned(posted)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: between `wr_start` and here. What was collected may hold memory windows.
    unsafe { stage(qp) }.clear();
    // SAFETY: a field of the live structure.
    let mutex = unsafe { &raw mut (*qp).qp_base.mutex };
    // SAFETY: `wr_start` of this thread has locked it.
    unsafe { mutex::unlock(mutex) };
}

macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty),*) => $operation:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: the program is between `wr_start` and `wr_complete`.
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
    // SAFETY: the program's structure.
    let info = unsafe { &*info };
    // SAFETY: the program names live objects.
    let operation = unsafe { mw::bind_type_two(window, rkey, info) };
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    unsafe { stage(qp) }.gather(&[Sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let sges: &[Sge] = if count == 0 {
        &[]
    } else {
        // SAFETY: the program's list of `count` entries, of the same layout (see `layout`).
        unsafe { slice::from_raw_parts(list.cast(), count) }
    };
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    unsafe { stage(qp) }.gather(sges);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: a list of one.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    let stage = unsafe { stage(qp) };
    let start = stage.inline.len();
    let list: &[ibv_data_buf] = if count == 0 {
        &[]
    } else {
        // SAFETY: the program's list of `count` entries.
        unsafe { slice::from_raw_parts(list, count) }
    };
    for &ibv_data_buf { addr, length } in list {
        if length != 0 {
            // SAFETY: the program's memory, which is copied at once.
            let piece = unsafe { slice::from_raw_parts(addr.cast::<u8>(), length) };
            stage.inline.extend_from_slice(piece);
        }
    }
    stage.set(Collected::Inline(start..stage.inline.len()));
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: NULL or a live handle.
    let to = unsafe { ah::destination(ah, qpn, qkey) };
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    unsafe { stage(qp) }.address(to);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the program is between `wr_start` and `wr_complete`.
    unsafe { stage(qp) }.aim(srqn);
}
