//! Events of the connection manager: programs take them from a channel, and synchronous calls wait
//! for theirs.
//!
//! # Safety
//! A program passes live channels, identifiers and events of this library. The identifier that an
//! event names is not destroyed before the program has acknowledged the event.
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

/// The retry counts that connection parameters report for a peer: 7, which means unlimited.
const RETRIES: u8 = 7;

/// Takes the next event of a channel. A cancellation point: while the thread waits it holds no lock
/// and owns nothing that needs a drop.
///
/// # Errors
/// `EAGAIN` if the descriptor is non-blocking and no event is pending; `EINTR` after a signal.
///
/// # Safety
/// `channel` must be live.
unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    // SAFETY: the caller guarantees that `channel` is live.
    let state = unsafe { Channel::of(channel) };
    loop {
        let event = state.engine().next_event(|event| {
            // SAFETY: the owner is live: the channel is locked, and destroying an identifier takes
            // its events out of the channel first.
            let owner = unsafe { Id::c_of(event.owner()) };
            // SAFETY: the owner is live: the channel is locked, and destroying an identifier takes
            // its events out of the channel first.
            unsafe { Id::of(owner) }.acks().delivered();
        })?;
        // SAFETY: the event counts as delivered, and the owner is not destroyed before it is
        // acknowledged.
        if let Some(c) = unsafe { deliver(event) } {
            return Ok(c);
        }
    }
}

/// Updates the program's structures, and creates the program's event. Returns `None` if no
/// identifier could be created for a connection request, which is then rejected.
///
/// # Safety
/// The event's owner must be live.
unsafe fn deliver(event: EngineEvent) -> Option<*mut rdma_cm_event> {
    // SAFETY: the caller guarantees that the event's owner is live.
    let owner = unsafe { Id::c_of(event.owner()) };
    // SAFETY: the caller guarantees that the event's owner is live.
    let acks = unsafe { Id::of(owner) }.acks().clone();
    let (mut kind, mut status) = (event.kind as rdma_cm_event_type, event.status);
    let (mut id, mut listener) = (owner, ptr::null_mut());
    if event.listener.is_some() {
        // SAFETY: the caller guarantees that the owner is live; the owner of a connection request
        // is its listener.
        let Ok(child) = (unsafe { request(&event, owner) }) else {
            event.id.destroy();
            acks.acknowledge(1);
            return None;
        };
        (id, listener) = (child, owner);
    }
    // SAFETY: `id` is live, and the program's thread is in its call for it.
    if let Err(error) = unsafe { update(id, &event) } {
        status = -error.raw_os_error();
        kind = match event.kind {
            EventKind::MulticastJoin => RDMA_CM_EVENT_MULTICAST_ERROR,
            EventKind::RouteResolved => RDMA_CM_EVENT_ROUTE_ERROR,
            _ => RDMA_CM_EVENT_ADDR_ERROR,
        };
    }
    // SAFETY: the structure consists of integers, pointers and unions of those, for which zero is
    // valid.
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
        // A foreign peer can send more private data than the field can describe; the length is
        // capped.
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
        // For a join the field is the program's context pointer.
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

/// Creates the program's identifier for a connection request.
///
/// # Errors
/// `EMFILE` or `ENFILE` if no descriptor is left; `ENODEV` if the address has no device.
///
/// # Safety
/// `listener` must be live.
unsafe fn request(event: &EngineEvent, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    // SAFETY: the caller guarantees that `listener` is live.
    let context = unsafe { (*listener).context };
    // SAFETY: the caller guarantees that `listener` is live; its port space never changes.
    let ps = unsafe { (*listener).ps };
    // SAFETY: the caller guarantees that `listener` is live; its type of queue pair never changes.
    let qp_type = unsafe { (*listener).qp_type };
    // SAFETY: the caller guarantees that `listener` is live.
    let sync = unsafe { Id::of(listener) }.is_sync();
    let channel = if sync {
        ptr::null_mut()
    } else {
        // SAFETY: the caller guarantees that `listener` is live.
        unsafe { (*listener).channel }
    };
    let kind = Kind { context, ps, qp_type };
    // SAFETY: `channel` is NULL, or the channel of a live identifier, which the program keeps live.
    let id = unsafe { id::wrap(Arc::clone(&event.id), channel, kind) }?;
    // SAFETY: `id` was created above and is live, as `id::update_endpoints` requires.
    let updated = unsafe { id::update_endpoints(id) };
    // SAFETY: `id` was created above and is live, as `id::update_path` requires.
    let updated = updated.and_then(|()| unsafe { id::update_path(id) });
    if let Err(error) = updated {
        // SAFETY: the object was created above, and the program does not have it yet, so that this
        // is its last use.
        unsafe { id::destroy(id) };
        return Err(error);
    }
    Ok(id)
}

/// # Safety
/// `id` must be live.
unsafe fn update(id: *mut rdma_cm_id, event: &EngineEvent) -> Result<()> {
    match event.kind {
        // SAFETY: the caller guarantees what `id::update_endpoints` requires.
        EventKind::AddrResolved => unsafe { id::update_endpoints(id) },
        // SAFETY: the caller guarantees what `id::update_path` requires.
        EventKind::RouteResolved => unsafe { id::update_path(id) },
        // SAFETY: the caller guarantees what `joined` requires.
        EventKind::MulticastJoin => unsafe { joined(id, &event.param) },
        _ => {
            // SAFETY: the caller guarantees what `update_qp_state` requires.
            unsafe { update_qp_state(id) };
            Ok(())
        }
    }
}

/// Updates the state in the C structure of the identifier's queue pair, whose state the engine
/// changes.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn update_qp_state(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() {
        // SAFETY: an identifier keeps its queue pair live until `rdma_destroy_qp` clears the field.
        let state = unsafe { Qp::of(qp) }.engine().state();
        // SAFETY: an identifier keeps its queue pair live until `rdma_destroy_qp` clears the field,
        // and the program only reads the state.
        unsafe { (*qp).state = state as u32 };
    }
}

/// Waits for the result of a call on a synchronous identifier, and stores the event in the
/// identifier's structure. A cancellation point.
///
/// # Errors
/// The error that the event reports: `ECONNREFUSED` for a rejection.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller guarantees that `id` is live.
    if !unsafe { Id::of(id) }.is_sync() {
        return Ok(());
    }
    // SAFETY: the caller guarantees that `id` is live, as `acknowledge_own` requires.
    unsafe { acknowledge_own(id) };
    // SAFETY: the caller guarantees that `id` is live.
    let channel = unsafe { (*id).channel };
    // SAFETY: a synchronous identifier has its own channel, which lives as long as it does.
    let event = unsafe { next(channel) }?;
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    unsafe { (*id).event = event };
    // SAFETY: the event was created by `next`, and this thread's next call acknowledges it at the
    // earliest.
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
    // SAFETY: the caller guarantees that `id` is live, as `acknowledge_own` requires.
    unsafe { acknowledge_own(id) };
    // SAFETY: the caller guarantees that `id` is live.
    let channel = unsafe { (*id).channel };
    // SAFETY: a synchronous identifier has its own channel, which lives as long as it does.
    unsafe { next(channel) }
}

/// A cancellation point: while the thread waits it holds no lock and owns nothing that needs a
/// drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return errno::minus_one(Err(Errno::INVAL));
    }
    // SAFETY: the program passes a live channel.
    errno::minus_one(unsafe { next(channel) }.map(|found| {
        // SAFETY: the program passes `event` as a valid pointer for the result.
        unsafe { *event = found };
    }))
}

/// Attaches the identifier's queue pair, if it has one, to the group that the identifier has
/// joined, unless it only sends to the group.
///
/// # Errors
/// As [`weft_engine::qp::Qp::attach_multicast`].
///
/// # Safety
/// `id` must be live.
unsafe fn joined(id: *mut rdma_cm_id, param: &EventParam) -> Result<()> {
    let datagram = param.datagram.filter(|datagram| !datagram.sends_only);
    let route = datagram.and_then(|datagram| datagram.address.global);
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    match route {
        Some(route) if !qp.is_null() => {
            // SAFETY: an identifier keeps its queue pair live until `rdma_destroy_qp` clears the
            // field.
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
    // SAFETY: the program passes a live event and does not use it after this call.
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
    fn event_kinds_of_the_engine_match_the_c_events() {
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
