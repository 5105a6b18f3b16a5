//! Asynchronous events.
//!
//! # Safety
//! A program passes live objects of this library and valid structures of its own. The object that
//! an event names is not destroyed before the program has acknowledged the event.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering;

use weft_engine::Result;
use weft_engine::event::{AsyncEvent, Element};

use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    ibv_async_event, ibv_context, zeroed,
};
use crate::acks::Acks;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno;
use crate::qp::Qp;
use crate::srq::Srq;

/// Converts an event to its C form and counts it as delivered; returns `None` if its object is
/// being destroyed. The caller holds the context's delivery lock.
fn deliver(event: &AsyncEvent) -> Option<ibv_async_event> {
    let mut c: ibv_async_event = zeroed();
    c.event_type = event.kind as u32;
    let address = match &event.element {
        Element::Qp(object) | Element::Cq(object) | Element::Srq(object) => {
            object.cookie().load(Ordering::Acquire)
        }
        Element::Port(port) => {
            c.element.port_num = c_int::from(*port);
            return Some(c);
        }
    };
    if address == 0 {
        return None;
    }
    match &event.element {
        Element::Qp(_) => c.element.qp = with_exposed_provenance_mut(address),
        Element::Cq(_) => c.element.cq = with_exposed_provenance_mut(address),
        Element::Srq(_) => c.element.srq = with_exposed_provenance_mut(address),
        Element::Port(_) => {}
    }
    // SAFETY: the cookie is not 0, and destroying the object sets it to 0 under the delivery lock,
    // which the caller holds, so that the object is live.
    if let Some(acks) = unsafe { acks(&c) } {
        acks.delivered();
    }
    Some(c)
}

/// The acknowledgement counter of an event's object; ports have none.
///
/// # Safety
/// The event must name a live object of the kind that its type says.
unsafe fn acks<'a>(event: &ibv_async_event) -> Option<&'a Acks> {
    match event.event_type {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: an event of these types names a queue pair.
            let qp = unsafe { event.element.qp };
            // SAFETY: the caller guarantees that `qp` is live.
            Some(unsafe { Qp::of(qp) }.async_acks())
        }
        IBV_EVENT_CQ_ERR => {
            // SAFETY: an event of this type names a completion queue.
            let cq = unsafe { event.element.cq };
            // SAFETY: the caller guarantees that `cq` is live.
            Some(unsafe { Cq::of(cq) }.async_acks())
        }
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: an event of these types names a shared receive queue.
            let srq = unsafe { event.element.srq };
            // SAFETY: the caller guarantees that `srq` is live.
            Some(unsafe { Srq::of(srq) }.async_acks())
        }
        _ => None,
    }
}

fn next(context: &Context) -> Result<ibv_async_event> {
    loop {
        let event = context.engine().next_event()?;
        let _delivery = context.delivery();
        if let Some(c) = deliver(&event) {
            return Ok(c);
        }
    }
}

/// A cancellation point: while the thread waits it holds no lock and owns nothing that needs a
/// drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the program passes an open context.
    let state = unsafe { Context::of(context) };
    errno::minus_one(next(state).map(|found| {
        // SAFETY: the program passes `event` as a valid pointer for the result.
        unsafe { event.write(found) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the program passes a structure that `ibv_get_async_event` has filled in.
    let event = unsafe { &*event };
    // SAFETY: the event's object is not destroyed before this acknowledgement.
    if let Some(acks) = unsafe { acks(event) } {
        acks.acknowledge(1);
    }
}
