//! Queue pairs and shared receive queues of an identifier, and the completion queues that are made
//! for them when the program brings none.
//!
//! # Safety
//! Objects that a program hands in are live ones of ours, and structures are its own.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use weft_engine::qp::QpState;
use weft_engine::{Errno, Result};

use super::device;
use super::id::Id;
use crate::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC,
    IBV_SRQT_XRC, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::cq::{ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::errno;
use crate::qp::{c_attr_of, ibv_destroy_qp, ibv_modify_qp};
use crate::qp_ex::create_qp_ex;
use crate::srq::{create_srq_ex, ibv_destroy_srq};

/// The `errno` that a verbs call has just set.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// # Safety
/// `id` must be live and have a device.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    size: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    // SAFETY: live, by the caller's promise.
    let verbs = unsafe { (*id).verbs };
    // SAFETY: an open context.
    let channel = unsafe { ibv_create_comp_channel(verbs) };
    if channel.is_null() {
        return Err(last_error());
    }
    let size = c_int::try_from(size).unwrap_or(c_int::MAX);
    // SAFETY: an open context and a channel of it.
    let cq = unsafe { ibv_create_cq(verbs, size, id.cast(), channel, 0) };
    if cq.is_null() {
        let error = last_error();
        // SAFETY: made just now, and not used.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(error);
    }
    Ok((channel, cq))
}

/// Makes completion queues with channels for the sizes that are not 0.
///
/// # Safety
/// `id` must be live and have a device.
unsafe fn create_cqs(id: *mut rdma_cm_id, send_size: u32, recv_size: u32) -> Result<()> {
    if recv_size != 0 {
        // SAFETY: the caller's promise.
        let (channel, cq) = unsafe { create_cq(id, recv_size) }?;
        // SAFETY: live, by the caller's promise.
        let c = unsafe { &mut *id };
        (c.recv_cq_channel, c.recv_cq) = (channel, cq);
    }
    if send_size != 0 {
        // SAFETY: the caller's promise.
        let (channel, cq) = unsafe { create_cq(id, send_size) }?;
        // SAFETY: live, by the caller's promise.
        let c = unsafe { &mut *id };
        (c.send_cq_channel, c.send_cq) = (channel, cq);
    }
    Ok(())
}

/// Destroys the completion queues that were made for the identifier.
///
/// # Safety
/// `id` must be live, and no queue pair may use them.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &mut *id };
    let recv_cq = std::mem::replace(&mut c.recv_cq, ptr::null_mut());
    let send_cq = std::mem::replace(&mut c.send_cq, ptr::null_mut());
    for cq in [recv_cq, if send_cq == recv_cq { ptr::null_mut() } else { send_cq }] {
        if !cq.is_null() {
            // SAFETY: made by `create_cqs`, or the program's own to give.
            unsafe { ibv_destroy_cq(cq) };
        }
    }
    let recv = std::mem::replace(&mut c.recv_cq_channel, ptr::null_mut());
    let send = std::mem::replace(&mut c.send_cq_channel, ptr::null_mut());
    for channel in [recv, if send == recv { ptr::null_mut() } else { send }] {
        if !channel.is_null() {
            // SAFETY: made by `create_cqs`, or the program's own to give.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
}

/// Makes the identifier's queue pair and takes it to INIT.
///
/// # Errors
/// `EINVAL` when it has one, has no device, or `attr` contradicts what it has; as
/// `ibv_create_qp(3)`.
///
/// # Safety
/// `id` must be live, and what `attr` names.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &*id };
    if !c.qp.is_null() || c.verbs.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = c.pd;
    // SAFETY: a live domain, by the caller's promise.
    } else if unsafe { (*attr.pd).context } != c.verbs {
        return Err(Errno::INVAL);
    }
    if c.qp_type == IBV_QPT_XRC_RECV
        && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
    {
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = device::xrcd_of(c.verbs);
    }
    let contradicts =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if contradicts(c.recv_cq, attr.recv_cq) || contradicts(c.send_cq, attr.send_cq) {
        return Err(Errno::INVAL);
    }
    let missing = |own: *mut ibv_cq, given: *mut ibv_cq| own.is_null() && given.is_null();
    let send_size = if missing(c.send_cq, attr.send_cq) { attr.cap.max_send_wr } else { 0 };
    let recv_size = if missing(c.recv_cq, attr.recv_cq) { attr.cap.max_recv_wr } else { 0 };
    // SAFETY: live, with a device.
    unsafe { create_cqs(id, send_size, recv_size) }?;
    // SAFETY: live, by the caller's promise; `create_cqs` is done with it.
    let c = unsafe { &*id };
    if attr.send_cq.is_null() {
        attr.send_cq = c.send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = c.recv_cq;
    }
    if attr.srq.is_null() {
        attr.srq = c.srq;
    }
    // SAFETY: the objects are live.
    let qp = unsafe { create_qp_ex(c.verbs, attr) };
    if qp.is_null() {
        return Err(last_error());
    }
    // SAFETY: made just now.
    if let Err(error) = unsafe { initialise(id, qp) } {
        // SAFETY: made just now; the program has not seen it.
        unsafe { ibv_destroy_qp(qp) };
        return Err(error);
    }
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &mut *id };
    (c.qp, c.pd) = (qp, attr.pd);
    Ok(())
}

/// Takes a fresh queue pair to INIT, or, one for datagrams, to where messages flow.
///
/// # Safety
/// `id` and `qp` must be live.
unsafe fn initialise(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let states: &[QpState] = match unsafe { (*qp).qp_type } {
        IBV_QPT_UD => &[QpState::Init, QpState::Rtr, QpState::Rts],
        _ => &[QpState::Init],
    };
    for &state in states {
        // SAFETY: live, by the caller's promise.
        let (attr, mask) = unsafe { Id::of(id) }.engine().qp_attributes(state)?;
        let mut attr = c_attr_of(&attr);
        // SAFETY: live, by the caller's promise.
        let changed = unsafe { ibv_modify_qp(qp, &raw mut attr, mask.bits().cast_signed()) };
        if changed != 0 {
            return Err(Errno::from_raw_os_error(changed));
        }
    }
    Ok(())
}

/// [`create`], leaving nothing behind when it fails.
///
/// # Safety
/// As for [`create`].
unsafe fn create_or_undo(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let send_cq = unsafe { (*id).send_cq };
    // SAFETY: live, by the caller's promise.
    let recv_cq = unsafe { (*id).recv_cq };
    let had_cqs = !send_cq.is_null() || !recv_cq.is_null();
    // SAFETY: the caller's promise.
    let created = unsafe { create(id, attr) };
    if created.is_err() && !had_cqs {
        // SAFETY: made for the queue pair that did not come about.
        unsafe { destroy_cqs(id) };
    }
    created
}

/// `rdma_create_qp`.
///
/// # Errors
/// As [`create`].
///
/// # Safety
/// `id` must be live, `pd` NULL or live, and what `init` names.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the structure consists of integers and pointers: zero is valid.
    let mut attr: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    let plain = ptr::from_mut(&mut attr).cast::<ibv_qp_init_attr>();
    // SAFETY: the extended structure begins as the plain one does (checked in `layout`).
    unsafe { *plain = *init };
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    // SAFETY: the caller's promise.
    let created = unsafe { create_or_undo(id, &mut attr) };
    // The sizes that it got, and the queues that were made for it.
    // SAFETY: the extended structure begins as the plain one does (checked in `layout`).
    *init = unsafe { *ptr::from_ref(&attr).cast::<ibv_qp_init_attr>() };
    created
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's structure.
    let init = unsafe { &mut *init };
    // SAFETY: a live identifier and the program's objects.
    errno::minus_one(unsafe { create_plain(id, pd, init) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the program's structure.
    let attr = unsafe { &mut *attr };
    // SAFETY: a live identifier and the program's objects.
    errno::minus_one(unsafe { create_or_undo(id, attr) })
}

/// Destroys the identifier's queue pair, and the completion queues that were made for it.
///
/// # Safety
/// `id` must be live and have a queue pair.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let qp = unsafe { (*id).qp };
    // SAFETY: live, by the caller's promise; the program's thread is in its call for this
    // identifier.
    unsafe { (*id).qp = ptr::null_mut() };
    // SAFETY: the queue pair of an identifier is live until here.
    unsafe { ibv_destroy_qp(qp) };
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &*id };
    // A shared receive queue of an XRC domain still uses them, and they go with it.
    if c.qp_type != IBV_QPT_XRC_RECV || c.srq.is_null() {
        // SAFETY: the queue pair that used them is gone.
        unsafe { destroy_cqs(id) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: a live identifier with a queue pair.
    unsafe { destroy(id) };
}

/// Makes the identifier's shared receive queue. One of an XRC domain gets the shared domain and a
/// completion queue of the identifier's if the program brings none.
///
/// # Errors
/// `EINVAL` when it has no device; as `ibv_create_srq_ex(3)`.
///
/// # Safety
/// `id` must be live, and what `attr` names.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &*id };
    let (verbs, own_pd, own_cq) = (c.verbs, c.pd, c.recv_cq);
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = own_pd;
    }
    if verbs.is_null() || attr.pd.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.srq_type == IBV_SRQT_XRC {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
            attr.xrcd = device::xrcd_of(verbs);
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            if own_cq.is_null() {
                // SAFETY: live, with a device.
                unsafe { create_cqs(id, 0, attr.attr.max_wr) }?;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
            // SAFETY: live, by the caller's promise.
            attr.cq = unsafe { (*id).recv_cq };
        }
    }
    // SAFETY: the objects are live.
    let srq = unsafe { create_srq_ex(verbs, attr) };
    if srq.is_null() {
        return Err(last_error());
    }
    // SAFETY: live, by the caller's promise.
    let c = unsafe { &mut *id };
    c.srq = srq;
    if c.pd.is_null() {
        c.pd = attr.pd;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the program's structure.
    let init = unsafe { &mut *init };
    // SAFETY: the structure consists of integers and pointers: zero is valid.
    let mut attr: ibv_srq_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.srq_context, attr.attr, attr.pd) = (init.srq_context, init.attr, pd);
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: a live identifier.
    let is_xrc = unsafe { (*id).qp_type } == IBV_QPT_XRC_RECV;
    attr.srq_type = if is_xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    // SAFETY: a live identifier and the program's domain.
    let created = unsafe { create_srq(id, &mut attr) };
    init.attr = attr.attr;
    errno::minus_one(created)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the program's structure.
    let attr = unsafe { &mut *attr };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: a live identifier and the program's objects.
    errno::minus_one(unsafe { create_srq(id, attr) })
}

/// Destroys the identifier's shared receive queue.
///
/// # Safety
/// `id` must be live and have one.
pub(super) unsafe fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let srq = unsafe { (*id).srq };
    // SAFETY: live, by the caller's promise; the program's thread is in its call for this
    // identifier.
    unsafe { (*id).srq = ptr::null_mut() };
    // SAFETY: the queue of an identifier is live until here.
    unsafe { ibv_destroy_srq(srq) };
    // SAFETY: queues without a queue pair have no other use.
    unsafe { destroy_cqs(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: a live identifier with a shared receive queue.
    unsafe { destroy_srq(id) };
}
