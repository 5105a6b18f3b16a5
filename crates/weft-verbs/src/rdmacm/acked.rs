//! Events that a program has taken, until it acknowledges them.
//!
//! # Safety
//! Identifiers and events that a program hands in are live ones of ours.
#![allow(unsafe_code)]

use std::ptr;

use crate::abi::{rdma_cm_event, rdma_cm_id};
use crate::acks::Acks;
use crate::object::{self, Behind};

/// What is behind a `rdma_cm_event`.
#[derive(Debug)]
pub(super) struct Event {
    /// Where the program finds the private data.
    _private_data: Vec<u8>,
    /// The acknowledgements that the event's identifier waits for.
    acks: Acks,
}

impl Behind for Event {
    type C = rdma_cm_event;
}

impl Event {
    /// An event that counts as acknowledged at `acks`, and the private data that it shows.
    pub(super) fn new(private_data: Vec<u8>, acks: Acks) -> Self {
        Self { _private_data: private_data, acks }
    }
}

/// Acknowledges the event that a synchronous identifier keeps for its program.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn acknowledge_own(id: *mut rdma_cm_id) {
    // SAFETY: live, by the caller's promise.
    let event = unsafe { (*id).event };
    // SAFETY: live, by the caller's promise; the program's thread is in its call for this
    // identifier.
    unsafe { (*id).event = ptr::null_mut() };
    if !event.is_null() {
        // SAFETY: an event that nobody has acknowledged.
        unsafe { acknowledge(event) };
    }
}

/// # Safety
/// `event` must be live, and nobody may use it afterwards.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: live, by the caller's promise.
    let acks = unsafe { object::object::<Event>(event) }.acks.clone();
    // SAFETY: live, by the caller's promise; this is its end.
    unsafe { object::destroy::<Event>(event) };
    acks.acknowledge(1);
}
