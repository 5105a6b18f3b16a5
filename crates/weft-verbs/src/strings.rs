//! The texts of statuses, events and states. They equal rdma-core's, which programs print and tests
//! compare.
//!
//! # Safety
//! The exported names are those of rdma-core, with its signatures.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};

const UNKNOWN: &CStr = c"unknown";

const WC_STATUS: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const NODE_TYPE: &[&CStr] = &[
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATE: &[&CStr] =
    &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPE: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

fn pick(texts: &[&'static CStr], value: c_uint) -> *const c_char {
    let text = usize::try_from(value).ok().and_then(|index| texts.get(index));
    text.copied().unwrap_or(UNKNOWN).as_ptr()
}

/// Returns the text of an `enum ibv_wc_status`.
#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    pick(WC_STATUS, status)
}

/// Returns the text of an `enum ibv_node_type`, which may be negative.
#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    pick(NODE_TYPE, kind.cast_unsigned())
}

/// Returns the text of an `enum ibv_port_state`.
#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    pick(PORT_STATE, state)
}

/// Returns the text of an `enum ibv_event_type`.
#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    pick(EVENT_TYPE, event)
}
