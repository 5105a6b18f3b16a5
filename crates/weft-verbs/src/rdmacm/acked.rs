//! Events that a program has taken and not acknowledged yet.
//!
//! # Safety
//! A program passes live identifiers and events of this library.
#![allow(unsafe_code)]

use std::ptr;

use crate::abi::{rdma_cm_event, rdma_cm_id};
use crate::acks::Acks;
use crate::object::{self, AbiState};

/// The state of a `rdma_cm_event`.
#[derive(Debug)]
pub(super) struct Event {
    /// The private data that the C structure points to.
    _private_data: Vec<u8>,
    /// The counter of the event's identifier, which waits for the acknowledgement.
    acks: Acks,
}

impl AbiState for Event {
    type C = rdma_cm_event;
}

impl Event {
    /// The state of an event with this private data, whose acknowledgement `acks` counts.
    pub(super) fn new(private_data: Vec<u8>, acks: Acks) -> Self {
        Self { _private_data: private_data, acks }
    }
}

/// Acknowledges the event in the structure of a synchronous identifier, if there is one.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn acknowledge_own(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live.
    let event = unsafe { (*id).event };
    // SAFETY: the caller guarantees that `id` is live, and a program uses an identifier from one
    // thread at a time, so that nothing else accesses its structure.
    unsafe { (*id).event = ptr::null_mut() };
    if !event.is_null() {
        // SAFETY: the identifier had the only pointer to this event, which nobody has acknowledged.
        unsafe { acknowledge(event) };
    }
}

/// # Safety
/// `event` must be live, and not be used afterwards.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller guarantees that `event` is live.
    let acks = unsafe { object::object::<Event>(event) }.acks.clone();
    // SAFETY: the caller guarantees that `event` is live and not used afterwards.
    unsafe { object::destroy::<Event>(event) };
    acks.acknowledge(1);
}
