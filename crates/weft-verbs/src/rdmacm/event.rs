//! Events: what a program gets from a channel, and how synchronous calls wait for theirs.
//!
//! # Safety
//! Channels, identifiers and events that a program hands in are live ones of ours. An identifier
//! that an event names is not destroyed before the event is acknowledged.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use weft_engine::cm::{DatagramParam, Event as EngineEvent, EventKind, EventParam};
use weft_engine::{Errno, Result};

use super::acked::{Event, acknowledge, acknowledge_own};
use super::channel::Channel;
use super::id::{self, Id, Kind};
use crate::abi::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};
use crate::ah;
use crate::errno;
use crate::object;
use crate::qp::Qp;

/// Retries that are reported as asked for by a peer's program: without end.
const RETRIES: u8 = 7;

/// Takes the next event of a channel. A thread may be cancelled in here: no lock is held while it
/// waits, and there is nothing to drop.
///
/// # Errors
/// `EAGAIN` when the descriptor is non-blocking and nothing is there; `EINTR` after a signal.
///
/// # Safety
/// `channel` must be live.
unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    // SAFETY: live, by the caller's promise.
    let state = unsafe { Channel::of(channel) };
    loop {
        let event = state.engine().next_event(|event| {
            // SAFETY: the channel is locked, and destroying an identifier takes its events out of
            // the channel first.
            let owner = unsafe { Id::c_of(event.owner()) };
            // SAFETY: the channel is locked, and destroying an identifier takes its events out of
            // the channel first.
            unsafe { Id::of(owner) }.acks().delivered();
        })?;
        // SAFETY: the owner waits for the acknowledgement that is due from now on.
        if let Some(c) = unsafe { deliver(event) } {
            return Ok(c);
        }
    }
}

/// Shows in the program's structures what has happened, and makes the program's event. `None` when
/// there is no identifier for a connection request; it has been rejected.
///
/// # Safety
/// The event's owner must be live.
unsafe fn deliver(event: EngineEvent) -> Option<*mut rdma_cm_event> {
    // SAFETY: live, by the caller's promise.
    let owner = unsafe { Id::c_of(event.owner()) };
    // SAFETY: live, by the caller's promise.
    let acks = unsafe { Id::of(owner) }.acks().clone();
    let (mut kind, mut status) = (event.kind as rdma_cm_event_type, event.status);
    let (mut id, mut listener) = (owner, ptr::null_mut());
    if event.listener.is_some() {
        // SAFETY: the owner of a request is its listener.
        let Ok(child) = (unsafe { request(&event, owner) }) else {
            event.id.destroy();
            acks.acknowledge(1);
            return None;
        };
        (id, listener) = (child, owner);
    }
    // SAFETY: live, and the program's thread is in its call.
    if let Err(error) = unsafe { show(id, &event) } {
        status = -error.raw_os_error();
        kind = match event.kind {
            EventKind::MulticastJoin => RDMA_CM_EVENT_MULTICAST_ERROR,
            EventKind::RouteResolved => RDMA_CM_EVENT_ROUTE_ERROR,
            _ => RDMA_CM_EVENT_ADDR_ERROR,
        };
    }
    // SAFETY: the structure consists of integers, pointers and unions of them: zero is valid.
    let mut c: rdma_cm_event = unsafe { MaybeUninit::zeroed().assume_init() };
    (c.id, c.listen_id, c.event, c.status) = (id, listener, kind, status);
    match &event.param.datagram {
        Some(datagram) => c.param.ud = ud_param(&event.param, datagram),
        None => c.param.conn = conn_param(&event.param),
    }
    Some(object::create(c, Event::new(event.param.private_data, acks)))
}

fn conn_param(param: &EventParam) -> rdma_conn_param {
    let data = &param.private_data;
    let pointer = if data.is_empty() { ptr::null() } else { data.as_ptr() };
    rdma_conn_param {
        private_data: pointer.cast(),
        // A foreign peer may send more than an event can carry.
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: param.qp_num,
    }
}

fn ud_param(param: &EventParam, datagram: &DatagramParam) -> rdma_ud_param {
    let data = &param.private_data;
    let private_data = match (data.is_empty(), datagram.context) {
        (false, _) => data.as_ptr().cast(),
        // For a join, this is the program's own pointer.
        (true, context) => ptr::with_exposed_provenance(context),
    };
    rdma_ud_param {
        private_data,
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        ah_attr: ah::attr_of(&datagram.address),
        qp_num: param.qp_num,
        qkey: datagram.qkey,
    }
}

/// Makes the program's identifier for a connection request.
///
/// # Errors
/// `EMFILE` and the like; `ENODEV` when the address has no device.
///
/// # Safety
/// `listener` must be live.
unsafe fn request(event: &EngineEvent, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    // SAFETY: live, by the caller's promise.
    let context = unsafe { (*listener).context };
    // SAFETY: live, by the caller's promise; the port space never changes.
    let ps = unsafe { (*listener).ps };
    // SAFETY: live, by the caller's promise; the kind of queue pair never changes.
    let qp_type = unsafe { (*listener).qp_type };
    // SAFETY: live, by the caller's promise.
    let sync = unsafe { Id::of(listener) }.is_sync();
    let channel = if sync {
        ptr::null_mut()
    } else {
        // SAFETY: live, by the caller's promise.
        unsafe { (*listener).channel }
    };
    let kind = Kind { context, ps, qp_type };
    // SAFETY: the channel of a live identifier is live.
    let id = unsafe { id::wrap(Arc::clone(&event.id), channel, kind) }?;
    // SAFETY: made just now.
    let shown = unsafe { id::show_ends(id) };
    // SAFETY: made just now.
    let shown = shown.and_then(|()| unsafe { id::show_path(id) });
    if let Err(error) = shown {
        // SAFETY: the program has not seen it.
        unsafe { id::destroy(id) };
        return Err(error);
    }
    Ok(id)
}

/// # Safety
/// `id` must be live.
unsafe fn show(id: *mut rdma_cm_id, event: &EngineEvent) -> Result<()> {
    match event.kind {
        // SAFETY: the caller's promise.
        EventKind::AddrResolved => unsafe { id::show_ends(id) },
        // SAFETY: the caller's promise.
        EventKind::RouteResolved => unsafe { id::show_path(id) },
        // SAFETY: the caller's promise.
        EventKind::MulticastJoin => unsafe { joined(id, &event.param) },
        _ => {
            // SAFETY: the caller's promise.
            unsafe { show_qp_state(id) };
            Ok(())
        }
    }
}

/// The engine moves a queue pair that belongs to the identifier through its states; its structure
/// follows, as it would have if the program had done that.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn show_qp_state(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: the queue pair of an identifier is live until `rdma_destroy_qp`.
        let state = unsafe { Qp::of(qp) }.engine().state();
        // SAFETY: the queue pair of an identifier is live until `rdma_destroy_qp`; the program only
        // reads this field.
        unsafe { (*qp).state = state as u32 };
    }
}

/// Waits for the outcome of a call on a synchronous identifier, which the program finds in its
/// structure. A thread may be cancelled in here.
///
/// # Errors
/// What the outcome is: `ECONNREFUSED` for a rejection.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: live, by the caller's promise.
    if !unsafe { Id::of(id) }.is_sync() {
        return Ok(());
    }
    // SAFETY: live, by the caller's promise.
    unsafe { acknowledge_own(id) };
    // SAFETY: live, by the caller's promise.
    let channel = unsafe { (*id).channel };
    // SAFETY: a synchronous identifier has a channel of its own, which lives as long as it.
    let event = unsafe { next(channel) }?;
    // SAFETY: the program's thread is in its call for this identifier.
    unsafe { (*id).event = event };
    // SAFETY: made just now, and acknowledged by this thread's next call at the earliest.
    let &rdma_cm_event { event: kind, status, .. } = unsafe { &*event };
    match status {
        0 => Ok(()),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno::CONNREFUSED),
        status => Err(Errno::from_raw_os_error(status.abs())),
    }
}

/// Takes the next event of a synchronous listener.
///
/// # Errors
/// `EINTR` after a signal.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn next_of(id: *mut rdma_cm_id) -> Result<*mut rdma_cm_event> {
    // SAFETY: live, by the caller's promise.
    unsafe { acknowledge_own(id) };
    // SAFETY: live, by the caller's promise.
    let channel = unsafe { (*id).channel };
    // SAFETY: a synchronous identifier has a channel of its own, which lives as long as it.
    unsafe { next(channel) }
}

/// A thread may be cancelled in here: no lock is held while it waits, and there is nothing to drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: a live channel.
    errno::minus_one(unsafe { next(channel) }.map(|found| {
        // SAFETY: the program's place for the result.
        unsafe { *event = found };
    }))
}

/// Attaches the identifier's queue pair, if it has one, to the group that it has joined to receive.
///
/// # Errors
/// As [`weft_engine::qp::Qp::attach_multicast`].
///
/// # Safety
/// `id` must be live.
unsafe fn joined(id: *mut rdma_cm_id, param: &EventParam) -> Result<()> {
    let datagram = param.datagram.filter(|datagram| !datagram.sends_only);
    let route = datagram.and_then(|datagram| datagram.address.global);
    // SAFETY: live, by the caller's promise.
    let qp = unsafe { (*id).qp };
    match route {
        Some(route) if !qp.is_null() => {
            // SAFETY: the queue pair of an identifier is live until `rdma_destroy_qp`.
            unsafe { Qp::of(qp) }.engine().attach_multicast(route.dgid)
        }
        _ => Ok(()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: a live event, which the program gives up.
    unsafe { acknowledge(event) };
    0
}

fn name(event: rdma_cm_event_type) -> &'static CStr {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    name(event).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_the_engines_events() {
        for (kind, text) in [
            (EventKind::AddrResolved, "RDMA_CM_EVENT_ADDR_RESOLVED"),
            (EventKind::RouteResolved, "RDMA_CM_EVENT_ROUTE_RESOLVED"),
            (EventKind::ConnectRequest, "RDMA_CM_EVENT_CONNECT_REQUEST"),
            (EventKind::ConnectResponse, "RDMA_CM_EVENT_CONNECT_RESPONSE"),
            (EventKind::ConnectError, "RDMA_CM_EVENT_CONNECT_ERROR"),
            (EventKind::Unreachable, "RDMA_CM_EVENT_UNREACHABLE"),
            (EventKind::Rejected, "RDMA_CM_EVENT_REJECTED"),
            (EventKind::Established, "RDMA_CM_EVENT_ESTABLISHED"),
            (EventKind::Disconnected, "RDMA_CM_EVENT_DISCONNECTED"),
            (EventKind::MulticastJoin, "RDMA_CM_EVENT_MULTICAST_JOIN"),
            (EventKind::TimewaitExit, "RDMA_CM_EVENT_TIMEWAIT_EXIT"),
        ] {
            assert_eq!(name(kind as rdma_cm_event_type).to_str(), Ok(text));
        }
    }
}
