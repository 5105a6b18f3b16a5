//! Queue pairs and shared receive queues of identifiers, and the completion queues that this
//! library creates for them if the program passes none.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own.
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
    // SAFETY: the caller guarantees that `id` is live.
    let verbs = unsafe { (*id).verbs };
    // SAFETY: the caller guarantees that `id` is live and has a device, whose context is never
    // closed.
    let channel = unsafe { ibv_create_comp_channel(verbs) };
    if channel.is_null() {
        return Err(last_error());
    }
    let size = c_int::try_from(size).unwrap_or(c_int::MAX);
    // SAFETY: the device's context is never closed, and the channel was created in it above.
    let cq = unsafe { ibv_create_cq(verbs, size, id.cast(), channel, 0) };
    if cq.is_null() {
        let error = last_error();
        // SAFETY: the channel was created above, and nothing uses it.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(error);
    }
    Ok((channel, cq))
}

/// Creates a completion queue with a channel for each size that is not 0.
///
/// # Safety
/// `id` must be live and have a device.
unsafe fn create_cqs(id: *mut rdma_cm_id, send_size: u32, recv_size: u32) -> Result<()> {
    if recv_size != 0 {
        // SAFETY: the caller guarantees what `create_cq` requires.
        let (channel, cq) = unsafe { create_cq(id, recv_size) }?;
        // SAFETY: the caller guarantees that `id` is live.
        let c = unsafe { &mut *id };
        (c.recv_cq_channel, c.recv_cq) = (channel, cq);
    }
    if send_size != 0 {
        // SAFETY: the caller guarantees what `create_cq` requires.
        let (channel, cq) = unsafe { create_cq(id, send_size) }?;
        // SAFETY: the caller guarantees that `id` is live.
        let c = unsafe { &mut *id };
        (c.send_cq_channel, c.send_cq) = (channel, cq);
    }
    Ok(())
}

/// Destroys the completion queues and channels in the identifier's structure.
///
/// # Safety
/// `id` must be live, and no queue pair may use them.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let c = unsafe { &mut *id };
    let recv_cq = std::mem::replace(&mut c.recv_cq, ptr::null_mut());
    let send_cq = std::mem::replace(&mut c.send_cq, ptr::null_mut());
    for cq in [recv_cq, if send_cq == recv_cq { ptr::null_mut() } else { send_cq }] {
        if !cq.is_null() {
            // SAFETY: `create_cqs` created it, or the program stored it in the structure to be
            // destroyed here.
            unsafe { ibv_destroy_cq(cq) };
        }
    }
    let recv = std::mem::replace(&mut c.recv_cq_channel, ptr::null_mut());
    let send = std::mem::replace(&mut c.send_cq_channel, ptr::null_mut());
    for channel in [recv, if send == recv { ptr::null_mut() } else { send }] {
        if !channel.is_null() {
            // SAFETY: `create_cqs` created it, or the program stored it in the structure to be
            // destroyed here.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
}

/// Creates the identifier's queue pair and moves it to INIT.
///
/// # Errors
/// `EINVAL` if the identifier has a queue pair or no device, or if `attr` contradicts its domain or
/// queues; otherwise as `ibv_create_qp(3)`.
///
/// # Safety
/// `id` and the objects that `attr` names must be live.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    let c = unsafe { &*id };
    if !c.qp.is_null() || c.verbs.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = c.pd;
    // SAFETY: the caller guarantees that `attr.pd` is live.
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
    // SAFETY: the caller guarantees that `id` is live, and it has a device (checked above).
    unsafe { create_cqs(id, send_size, recv_size) }?;
    // SAFETY: the caller guarantees that `id` is live; the reference inside `create_cqs` has ended.
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
    // SAFETY: the caller guarantees that the objects that `attr` names are live.
    let qp = unsafe { create_qp_ex(c.verbs, attr) };
    if qp.is_null() {
        return Err(last_error());
    }
    // SAFETY: the caller guarantees that `id` is live, and `qp` was created above.
    if let Err(error) = unsafe { initialise(id, qp) } {
        // SAFETY: the queue pair was created above, and the program does not have it yet.
        unsafe { ibv_destroy_qp(qp) };
        return Err(error);
    }
    // SAFETY: the caller guarantees that `id` is live.
    let c = unsafe { &mut *id };
    (c.qp, c.pd) = (qp, attr.pd);
    Ok(())
}

/// Moves a new queue pair to INIT, or, if it is of type UD, to RTS.
///
/// # Safety
/// `id` and `qp` must be live.
unsafe fn initialise(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: the caller guarantees that `qp` is live.
    let states: &[QpState] = match unsafe { (*qp).qp_type } {
        IBV_QPT_UD => &[QpState::Init, QpState::Rtr, QpState::Rts],
        _ => &[QpState::Init],
    };
    for &state in states {
        // SAFETY: the caller guarantees that `id` is live.
        let (attr, mask) = unsafe { Id::of(id) }.engine().qp_attributes(state)?;
        let mut attr = c_attr_of(&attr);
        // SAFETY: the caller guarantees that `qp` is live, as `ibv_modify_qp` requires.
        let changed = unsafe { ibv_modify_qp(qp, &raw mut attr, mask.bits().cast_signed()) };
        if changed != 0 {
            return Err(Errno::from_raw_os_error(changed));
        }
    }
    Ok(())
}

/// Does what [`create`] does, and on failure destroys the completion queues that it created.
///
/// # Safety
/// `id` and the objects that `attr` names must be live.
unsafe fn create_or_undo(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    let send_cq = unsafe { (*id).send_cq };
    // SAFETY: the caller guarantees that `id` is live.
    let recv_cq = unsafe { (*id).recv_cq };
    let had_cqs = !send_cq.is_null() || !recv_cq.is_null();
    // SAFETY: the caller guarantees what `create` requires.
    let created = unsafe { create(id, attr) };
    if created.is_err() && !had_cqs {
        // SAFETY: the caller guarantees that `id` is live; the queues were created for a queue pair
        // whose creation failed.
        unsafe { destroy_cqs(id) };
    }
    created
}

/// `rdma_create_qp`.
///
/// # Errors
/// Those of [`create`].
///
/// # Safety
/// `id` must be live, `pd` NULL or live, and the objects that `init` names live.
pub(super) unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the structure consists of integers and pointers, for which zero is valid.
    let mut attr: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    let plain = ptr::from_mut(&mut attr).cast::<ibv_qp_init_attr>();
    // SAFETY: the extended structure begins with the fields of the plain one (see `layout`).
    unsafe { *plain = *init };
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    // SAFETY: the caller guarantees what `create_or_undo` requires.
    let created = unsafe { create_or_undo(id, &mut attr) };
    // Return the actual sizes and the queues created here to the program.
    // SAFETY: the extended structure begins with the fields of the plain one (see `layout`).
    *init = unsafe { *ptr::from_ref(&attr).cast::<ibv_qp_init_attr>() };
    created
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &mut *init };
    // SAFETY: the program passes a live identifier and live objects.
    errno::minus_one(unsafe { create_plain(id, pd, init) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &mut *attr };
    // SAFETY: the program passes a live identifier and live objects.
    errno::minus_one(unsafe { create_or_undo(id, attr) })
}

/// Destroys the identifier's queue pair and its completion queues.
///
/// # Safety
/// `id` must be live and have a queue pair.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    unsafe { (*id).qp = ptr::null_mut() };
    // SAFETY: the queue pair of an identifier is live until this call destroys it.
    unsafe { ibv_destroy_qp(qp) };
    // SAFETY: the caller guarantees that `id` is live.
    let c = unsafe { &*id };
    // A shared receive queue of an XRC domain still uses the completion queues; `destroy_srq`
    // destroys them.
    if c.qp_type != IBV_QPT_XRC_RECV || c.srq.is_null() {
        // SAFETY: the caller guarantees that `id` is live; the queue pair that used the queues is
        // destroyed.
        unsafe { destroy_cqs(id) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the program passes a live identifier.
    let has_none = unsafe { (*id).qp.is_null() };
    // qperf's server names its listener, which has none, at the end of each test.
    if !has_none {
        // SAFETY: the program passes a live identifier, and it has a queue pair.
        unsafe { destroy(id) };
    }
}

/// Creates the identifier's shared receive queue. A queue of type XRC gets the default XRC domain
/// and a completion queue of the identifier if the program passes none.
///
/// # Errors
/// `EINVAL` if the identifier has no device; otherwise as `ibv_create_srq_ex(3)`.
///
/// # Safety
/// `id` and the objects that `attr` names must be live.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
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
                // SAFETY: the caller guarantees that `id` is live, and it has a device (checked
                // above).
                unsafe { create_cqs(id, 0, attr.attr.max_wr) }?;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
            // SAFETY: the caller guarantees that `id` is live.
            attr.cq = unsafe { (*id).recv_cq };
        }
    }
    // SAFETY: the caller guarantees that the objects that `attr` names are live.
    let srq = unsafe { create_srq_ex(verbs, attr) };
    if srq.is_null() {
        return Err(last_error());
    }
    // SAFETY: the caller guarantees that `id` is live.
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
    // SAFETY: the program passes `init` as a pointer to a valid structure.
    let init = unsafe { &mut *init };
    // SAFETY: the structure consists of integers and pointers, for which zero is valid.
    let mut attr: ibv_srq_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.srq_context, attr.attr, attr.pd) = (init.srq_context, init.attr, pd);
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: the program passes a live identifier.
    let is_xrc = unsafe { (*id).qp_type } == IBV_QPT_XRC_RECV;
    attr.srq_type = if is_xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    // SAFETY: the program passes a live identifier, and a live domain or NULL.
    let created = unsafe { create_srq(id, &mut attr) };
    init.attr = attr.attr;
    errno::minus_one(created)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the program passes `attr` as a pointer to a valid structure.
    let attr = unsafe { &mut *attr };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: the program passes a live identifier and live objects.
    errno::minus_one(unsafe { create_srq(id, attr) })
}

/// Destroys the identifier's shared receive queue.
///
/// # Safety
/// `id` must be live and have a shared receive queue.
pub(super) unsafe fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let srq = unsafe { (*id).srq };
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    unsafe { (*id).srq = ptr::null_mut() };
    // SAFETY: the shared receive queue of an identifier is live until this call destroys it.
    unsafe { ibv_destroy_srq(srq) };
    // SAFETY: the caller guarantees that `id` is live; without a queue pair only the shared receive
    // queue used the completion queues.
    unsafe { destroy_cqs(id) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the program passes a live identifier that has a shared receive queue.
    unsafe { destroy_srq(id) };
}
