//! Opened devices.
//!
//! # Safety
//! A program has the address of an `ibv_context`, the last field of the `verbs_context` at the
//! start of an [`Object`]. The inline functions of `<infiniband/verbs.h>` compute the address of
//! the `verbs_context` from it.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_engine::event::Element;
use weft_engine::{Context as EngineContext, Result};
use weft_sys::{Lock, LockGuard};

use crate::abi::{ibv_context, verbs_context};
use crate::acks::Acks;
use crate::device::Device;
use crate::object::{self, AbiState, Object};

/// The state of an `ibv_context`.
#[derive(Debug)]
pub(crate) struct Context {
    engine: Arc<EngineContext>,
    device: &'static Device,
    /// Locked while an event is delivered to the program, so that its object is not destroyed
    /// meanwhile.
    delivery: Lock<()>,
    /// The descriptor that identifies the context when a program imports it; it carries no data.
    _command: OwnedFd,
}

impl AbiState for Context {
    type C = verbs_context;
}

impl Context {
    /// Combines a context of the engine with its device and the descriptor that identifies it.
    pub(crate) fn new(
        engine: Arc<EngineContext>,
        device: &'static Device,
        command: OwnedFd,
    ) -> Self {
        Self { engine, device, delivery: Lock::new(()), _command: command }
    }

    /// Prepares a completion queue or shared receive queue for its destruction: stops the delivery
    /// of its events, and waits until the program has acknowledged those that it has taken.
    ///
    /// # Errors
    /// Those of `check`, which decides whether the queue may be destroyed; then nothing has
    /// changed.
    pub(crate) fn retire(
        &self,
        cookie: &AtomicUsize,
        check: impl FnOnce() -> Result<()>,
        is_own: impl Fn(&Element) -> bool,
        acks: &[&Acks],
    ) -> Result<()> {
        {
            let _delivery = self.delivery();
            check()?;
            cookie.store(0, Ordering::Release);
        }
        self.engine.forget_events(|event| is_own(&event.element));
        acks.iter().for_each(|acks| acks.wait());
        Ok(())
    }

    /// The engine's context.
    pub(crate) fn engine(&self) -> &Arc<EngineContext> {
        &self.engine
    }

    /// The opened device.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Locks the delivery of events, so that an object and its events are not used and destroyed at
    /// the same time.
    pub(crate) fn delivery(&self) -> LockGuard<'_, ()> {
        self.delivery.lock()
    }

    /// The context at the address that a program passes.
    ///
    /// # Safety
    /// `c` must come from `ibv_open_device` and not be closed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_context) -> &'a Object<Self> {
        // SAFETY: `c` points to this field of a `verbs_context`, since it came from
        // `ibv_open_device`.
        let whole = unsafe { c.byte_sub(offset_of!(verbs_context, context)) };
        // SAFETY: the `verbs_context` is the first field of an `Object<Context>`, and the caller
        // guarantees that the context is not closed.
        unsafe { object::object(whole.cast()) }
    }
}
