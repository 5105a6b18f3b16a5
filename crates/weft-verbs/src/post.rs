//! Posting work requests: lists of C structures become the engine's requests, one at a time, on the
//! stack.
//!
//! # Safety
//! The program hands in lists of its own structures that end with a NULL, each with the number of
//! scatter/gather entries that it says. `ibv_sge` is laid out as the engine's `Sge` (see `layout`).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::slice;

use weft_engine::qp::{Poster, QpType};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, Result};

use crate::abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};
use crate::ah;
use crate::errno;
use crate::limits::INLINE_PIECES_MAX;
use crate::mw;
use crate::qp::Qp;
use crate::srq::Srq;

/// The scatter/gather list of a request.
///
/// # Errors
/// `EINVAL` for a negative length, or for more than the device's limit.
///
/// # Safety
/// `list` must have `count` elements and stay as it is for `'a`.
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge]> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > INLINE_PIECES_MAX || (count > 0 && list.is_null()) {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: `count` elements of the same layout, by the caller's promise.
    Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
}

/// The bytes that an inline request takes now, piece by piece.
///
/// # Safety
/// Each entry must name readable memory of the program that stays as it is for `'a`.
unsafe fn pieces<'a>(sges: &[Sge]) -> [&'a [u8]; INLINE_PIECES_MAX] {
    let mut pieces = [&[][..]; INLINE_PIECES_MAX];
    for (piece, sge) in pieces.iter_mut().zip(sges).filter(|(_, sge)| sge.length != 0) {
        // SAFETY: readable, by the caller's promise; an address of the program fits a pointer.
        *piece = unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
    }
    pieces
}

/// What a request is to do.
///
/// # Errors
/// `EINVAL` for an operation that a reliable connection does not have, or a malformed binding.
///
/// # Safety
/// The objects that a binding names must be live.
unsafe fn operation(wr: &ibv_send_wr) -> Result<Operation> {
    // SAFETY: all variants of these unions are plain numbers and pointers of the same place; which
    // one counts depends on the operation, and reading another one gives some number.
    let (rdma, atomic) = (unsafe { wr.wr.rdma }, unsafe { wr.wr.atomic });
    // SAFETY: all variants of these unions are plain numbers and pointers of the same place; which
    // one counts depends on the operation, and reading another one gives some number; both variants
    // are the same 32 bits.
    let word = unsafe { wr.__bindgen_anon_1.imm_data };
    let (remote_addr, rkey) = (rdma.remote_addr, rdma.rkey);
    Ok(match wr.opcode {
        IBV_WR_SEND => Operation::Send { imm: None, invalidate: None },
        IBV_WR_SEND_WITH_IMM => Operation::Send { imm: Some(word), invalidate: None },
        IBV_WR_SEND_WITH_INV => Operation::Send { imm: None, invalidate: Some(word) },
        IBV_WR_RDMA_WRITE => Operation::Write { remote_addr, rkey, imm: None },
        IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write { remote_addr, rkey, imm: Some(word) },
        IBV_WR_RDMA_READ => Operation::Read { remote_addr, rkey },
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
            remote_addr: atomic.remote_addr,
            rkey: atomic.rkey,
            add: atomic.compare_add,
        },
        IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote_addr: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate { rkey: word },
        IBV_WR_BIND_MW => {
            // SAFETY: the operation says that this variant counts.
            let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: live objects, by the caller's promise.
            unsafe { mw::bind_type_two(bind.mw, bind.rkey, &bind.bind_info) }?
        }
        _ => return Err(Errno::INVAL),
    })
}

/// What a request to a queue pair for datagrams is to do.
///
/// # Errors
/// `EINVAL` for another operation than a Send, or without an address handle.
///
/// # Safety
/// The address handle must be live.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<Operation> {
    // SAFETY: the program of such a queue pair has filled in this variant, of plain numbers and a
    // pointer.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: both variants are the same 32 bits.
    let word = unsafe { wr.__bindgen_anon_1.imm_data };
    let imm = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(word),
        _ => return Err(Errno::INVAL),
    };
    // SAFETY: live, by the caller's promise.
    let to = unsafe { ah::destination(ud.ah, ud.remote_qpn, ud.remote_qkey) }?;
    Ok(Operation::Datagram { to, imm })
}

/// Posts one request.
///
/// # Errors
/// Those of the functions above, and of [`Poster::push`].
///
/// # Safety
/// As for the functions above.
unsafe fn post(poster: &mut Poster<'_>, qp_type: QpType, wr: &ibv_send_wr) -> Result<()> {
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(Errno::INVAL)?;
    let operation = match qp_type {
        // SAFETY: the caller's promise.
        QpType::Ud => unsafe { datagram(wr) },
        // SAFETY: the caller's promise.
        _ => unsafe { operation(wr) },
    }?;
    // The list of an operation without data is not looked at.
    let has_data =
        !matches!(operation, Operation::LocalInvalidate { .. } | Operation::BindWindow { .. });
    let count = if has_data { wr.num_sge } else { 0 };
    // SAFETY: the caller's promise.
    let sges = unsafe { sges(wr.sg_list, count) }?;
    let inline;
    let data = if flags.contains(SendFlags::INLINE) {
        // SAFETY: the caller's promise.
        inline = unsafe { pieces(sges) };
        Data::Inline(&inline[..sges.len()])
    } else {
        Data::Gather(sges)
    };
    // SAFETY: the only variant of the union; the engine looks at it where it means something.
    let srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    poster.push_to(&SendRequest { wr_id: wr.wr_id, operation, flags, data }, srqn)
}

/// `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let engine = unsafe { Qp::of(qp) }.engine();
    let qp_type = engine.qp_type();
    let mut poster = engine.start_post();
    // SAFETY: NULL or the program's next request.
    while let Some(next) = unsafe { wr.as_ref() } {
        // SAFETY: the program's request, with lists and objects as it says.
        if let Err(error) = unsafe { post(&mut poster, qp_type, next) } {
            // SAFETY: the program's place for the result.
            unsafe { *bad_wr = wr };
            return errno::returned(Err(error));
        }
        wr = next.next;
    }
    0
}

/// Posts a list of receives by `post`, up to the first that fails.
///
/// # Safety
/// The list is the program's, as the manual demands.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(&RecvRequest<'_>) -> Result<()>,
) -> c_int {
    // SAFETY: NULL or the program's next request.
    while let Some(next) = unsafe { wr.as_ref() } {
        // SAFETY: a list of as many entries as the request says.
        let sges = unsafe { sges(next.sg_list, next.num_sge) };
        let posted = sges.and_then(|sges| post(&RecvRequest { wr_id: next.wr_id, sges }));
        if let Err(error) = posted {
            // SAFETY: the program's place for the result.
            unsafe { *bad_wr = wr };
            return errno::returned(Err(error));
        }
        wr = next.next;
    }
    0
}

/// `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the caller's promise is ours.
    unsafe { post_receives(wr, bad_wr, |request| qp.engine().post_recv(request)) }
}

/// `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue.
    let srq = unsafe { Srq::of(srq) };
    // SAFETY: the caller's promise is ours.
    unsafe { post_receives(wr, bad_wr, |request| srq.engine().post(request)) }
}
