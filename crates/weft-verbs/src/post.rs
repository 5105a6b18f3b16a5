//! Posts work requests: converts a list of C structures to the engine's requests, one at a time on
//! the stack.
//!
//! # Safety
//! A program passes a list of valid structures that ends with NULL, each with the number of
//! scatter/gather entries that it states. `ibv_sge` has the layout of the engine's `Sge` (see
//! `layout`).
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
use crate::packed::{Room, aligned, room};
use crate::qp::Qp;
use crate::srq::Srq;

/// The scatter/gather list of a request.
///
/// # Errors
/// `EINVAL` for a negative count, or one above the device's limit.
///
/// # Safety
/// `list` must have `count` elements and not change while the result is used.
unsafe fn sges(list: *const ibv_sge, count: c_int, room: &mut Room) -> Result<&[Sge]> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > INLINE_PIECES_MAX || (count > 0 && list.is_null()) {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller guarantees `count` elements, and there are some.
    Ok(unsafe { aligned(list, count, room) })
}

/// The bytes of an inline request, one slice per entry of its list.
///
/// # Safety
/// Each entry must describe readable memory of the program that does not change during `'a`.
unsafe fn pieces<'a>(sges: &[Sge]) -> [&'a [u8]; INLINE_PIECES_MAX] {
    let mut pieces = [&[][..]; INLINE_PIECES_MAX];
    for (piece, sge) in pieces.iter_mut().zip(sges).filter(|(_, sge)| sge.length != 0) {
        // SAFETY: the caller guarantees that the memory is readable for its length.
        *piece = unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
    }
    pieces
}

/// The operation of a request.
///
/// # Errors
/// `EINVAL` for an operation that a reliable connection does not support, or an invalid binding.
///
/// # Safety
/// The window and the region of a binding must be live.
unsafe fn operation(wr: &ibv_send_wr) -> Result<Operation> {
    // SAFETY: all variants of the union consist of integers and pointers, of which every bit
    // pattern is valid; a variant that the operation does not use is read and ignored.
    let (rdma, atomic) = (unsafe { wr.wr.rdma }, unsafe { wr.wr.atomic });
    // SAFETY: both variants of this union are 32-bit integers, which occupy the same bytes.
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
            // SAFETY: for this operation the program has filled in this variant.
            let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: the caller guarantees that the window and the region are live.
            unsafe { mw::bind_type_two(bind.mw, bind.rkey, &bind.bind_info) }?
        }
        _ => return Err(Errno::INVAL),
    })
}

/// The operation of a request to a UD queue pair.
///
/// # Errors
/// `EINVAL` for an operation other than a Send, or if the address handle is NULL.
///
/// # Safety
/// The address handle must be live.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<Operation> {
    // SAFETY: the variant consists of integers and a pointer, which the program fills in for a UD
    // queue pair.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: both variants of the union are 32-bit integers.
    let word = unsafe { wr.__bindgen_anon_1.imm_data };
    let imm = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(word),
        _ => return Err(Errno::INVAL),
    };
    // SAFETY: the caller guarantees that the address handle is NULL or live.
    let to = unsafe { ah::destination(ud.ah, ud.remote_qpn, ud.remote_qkey) }?;
    Ok(Operation::Datagram { to, imm })
}

/// Posts one request.
///
/// # Errors
/// Those of `operation`, `datagram`, `sges` and [`Poster::push`].
///
/// # Safety
/// The lists, memory and objects that the request names must be valid and live.
unsafe fn post(poster: &mut Poster<'_>, qp_type: QpType, wr: &ibv_send_wr) -> Result<()> {
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(Errno::INVAL)?;
    let operation = match qp_type {
        // SAFETY: the caller guarantees what `datagram` requires.
        QpType::Ud => unsafe { datagram(wr) },
        // SAFETY: the caller guarantees what `operation` requires.
        _ => unsafe { operation(wr) },
    }?;
    // An operation without data ignores its list.
    let has_data =
        !matches!(operation, Operation::LocalInvalidate { .. } | Operation::BindWindow { .. });
    let count = if has_data { wr.num_sge } else { 0 };
    let mut room = room();
    // SAFETY: the caller guarantees what `sges` requires.
    let sges = unsafe { sges(wr.sg_list, count, &mut room) }?;
    let inline;
    let data = if flags.contains(SendFlags::INLINE) {
        // SAFETY: the caller guarantees what `pieces` requires.
        inline = unsafe { pieces(sges) };
        Data::Inline(&inline[..sges.len()])
    } else {
        Data::Gather(sges)
    };
    // SAFETY: the union has a single variant, of integers; the engine uses it on extended
    // connections only.
    let srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    poster.push_to(&SendRequest { wr_id: wr.wr_id, operation, flags, data }, srqn)
}

/// `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a live queue pair.
    let engine = unsafe { Qp::of(qp) }.engine();
    let qp_type = engine.qp_type();
    let mut poster = engine.start_post();
    // SAFETY: the program ends its list of valid requests with NULL.
    while let Some(next) = unsafe { wr.as_ref() } {
        // SAFETY: the program passes a request with valid lists and live objects.
        if let Err(error) = unsafe { post(&mut poster, qp_type, next) } {
            // SAFETY: the program passes `bad_wr` as a valid pointer for the result.
            unsafe { *bad_wr = wr };
            return errno::returned(Err(error));
        }
        wr = next.next;
    }
    0
}

/// Posts a list of receives with `post`, up to the first that fails.
///
/// # Safety
/// The list must be valid, as the manual demands, and `bad_wr` a valid pointer.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(&RecvRequest<'_>) -> Result<()>,
) -> c_int {
    // SAFETY: the program ends its list of valid requests with NULL.
    while let Some(next) = unsafe { wr.as_ref() } {
        let mut room = room();
        // SAFETY: the program passes a list of as many entries as the request states.
        let sges = unsafe { sges(next.sg_list, next.num_sge, &mut room) };
        let posted = sges.and_then(|sges| post(&RecvRequest { wr_id: next.wr_id, sges }));
        if let Err(error) = posted {
            // SAFETY: the program passes `bad_wr` as a valid pointer for the result.
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
    // SAFETY: the program passes a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the program guarantees what `post_receives` requires of its arguments.
    unsafe { post_receives(wr, bad_wr, |request| qp.engine().post_recv(request)) }
}

/// `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a live shared receive queue.
    let srq = unsafe { Srq::of(srq) };
    // SAFETY: the program guarantees what `post_receives` requires of its arguments.
    unsafe { post_receives(wr, bad_wr, |request| srq.engine().post(request)) }
}
