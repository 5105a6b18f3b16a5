//! Event channels.
//!
//! # Safety
//! A program passes live channels of this library.
#![allow(unsafe_code)]

use std::sync::Arc;

use weft_engine::Result;
use weft_engine::cm::Channel as EngineChannel;

use crate::abi::rdma_event_channel;
use crate::errno;
use crate::object::{self, AbiState, Object};

/// The state of a `rdma_event_channel`.
#[derive(Debug)]
pub(super) struct Channel {
    engine: Arc<EngineChannel>,
}

impl AbiState for Channel {
    type C = rdma_event_channel;
}

impl Channel {
    /// The engine's channel.
    pub(super) fn engine(&self) -> &Arc<EngineChannel> {
        &self.engine
    }

    /// The channel at the address that a program passes.
    ///
    /// # Safety
    /// `c` must be a channel that is not destroyed during `'a`.
    pub(super) unsafe fn of<'a>(c: *mut rdma_event_channel) -> &'a Object<Self> {
        // SAFETY: every channel that a program has was created by `create`, and the caller
        // guarantees that it is live.
        unsafe { object::object(c) }
    }
}

/// Creates a channel.
///
/// # Errors
/// `EMFILE` or `ENFILE` when no descriptor is left.
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let engine = EngineChannel::new()?;
    let c = rdma_event_channel { fd: engine.raw_fd() };
    Ok(object::create(c, Channel { engine }))
}

/// Frees a channel.
///
/// # Safety
/// `channel` must be live, and not be used afterwards.
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: the caller guarantees that the channel is live and not used afterwards.
    unsafe { object::destroy::<Channel>(channel) };
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    errno::pointer(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program passes a live object and does not use it after this call.
    unsafe { destroy(channel) };
}
