//! Opened devices.
//!
//! # Safety
//! The program holds the address of the `ibv_context` that ends the `verbs_context` at the head of
//! an [`Object`]; the inline functions of `<infiniband/verbs.h>` find the former from the latter.
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
use crate::object::{self, Behind, Object};

/// What is behind an `ibv_context`.
#[derive(Debug)]
pub(crate) struct Context {
    engine: Arc<EngineContext>,
    device: &'static Device,
    /// Held while an event is given to the program, so that its object is not destroyed meanwhile.
    delivery: Lock<()>,
    /// By which a program names the context when it imports it; nothing goes through it.
    _command: OwnedFd,
}

impl Behind for Context {
    type C = verbs_context;
}

impl Context {
    /// A context of the engine's, of a device, and the descriptor that names it.
    pub(crate) fn new(
        engine: Arc<EngineContext>,
        device: &'static Device,
        command: OwnedFd,
    ) -> Self {
        Self { engine, device, delivery: Lock::new(()), _command: command }
    }

    /// Ends the events of a completion or shared receive queue that is about to be destroyed: none
    /// is delivered any more, and those that were are acknowledged on return.
    ///
    /// # Errors
    /// Those of `check`, which says whether the queue may go; then nothing has changed.
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

    /// The device that was opened.
    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Keeps objects from being destroyed, or the program from being given their events.
    pub(crate) fn delivery(&self) -> LockGuard<'_, ()> {
        self.delivery.lock()
    }

    /// The context that a program names.
    ///
    /// # Safety
    /// `c` must come from `ibv_open_device` and not be closed during `'a`.
    pub(crate) unsafe fn of<'a>(c: *mut ibv_context) -> &'a Object<Self> {
        // SAFETY: `ibv_open_device` gave out the address of this field of a `verbs_context`.
        let whole = unsafe { c.byte_sub(offset_of!(verbs_context, context)) };
        // SAFETY: it is the head of an `Object<Context>`, which is not closed yet.
        unsafe { object::object(whole.cast()) }
    }
}
