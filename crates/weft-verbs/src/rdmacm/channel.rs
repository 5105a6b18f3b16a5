//! Event channels.
//!
//! # Safety
//! A channel that a program hands in is a live one of ours.
#![allow(unsafe_code)]

use std::sync::Arc;

use weft_engine::Result;
use weft_engine::cm::Channel as EngineChannel;

use crate::abi::rdma_event_channel;
use crate::errno;
use crate::object::{self, Behind, Object};

/// What is behind a `rdma_event_channel`.
#[derive(Debug)]
pub(super) struct Channel {
    engine: Arc<EngineChannel>,
}

impl Behind for Channel {
    type C = rdma_event_channel;
}

impl Channel {
    /// The engine's channel.
    pub(super) fn engine(&self) -> &Arc<EngineChannel> {
        &self.engine
    }

    /// The channel that a program names.
    ///
    /// # Safety
    /// `c` must be a channel that is not destroyed during `'a`.
    pub(super) unsafe fn of<'a>(c: *mut rdma_event_channel) -> &'a Object<Self> {
        // SAFETY: every channel that programs have is made by `create`.
        unsafe { object::object(c) }
    }
}

/// Makes a channel.
///
/// # Errors
/// `EMFILE` and the like when there is no descriptor left.
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let engine = EngineChannel::new()?;
    let c = rdma_event_channel { fd: engine.raw_fd() };
    Ok(object::create(c, Channel { engine }))
}

/// Frees a channel.
///
/// # Safety
/// It must be live, and nobody may use it afterwards.
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise.
    unsafe { object::destroy::<Channel>(channel) };
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    errno::pointer(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program gives it up.
    unsafe { destroy(channel) };
}
