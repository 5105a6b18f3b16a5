//! An opened device.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use weft_sys::calls::file_flags;
use weft_sys::calls::fs::OFlags;
use weft_sys::{Lock, consume, counting_eventfd, notify, wait_readable};

use crate::device::Device;
use crate::event::AsyncEvent;
use crate::limits::ASYNC_EVENTS_MAX;
use crate::reactor::Handle;
use crate::{Errno, Result};

/// An opened device: what `ibv_open_device` returns.
#[derive(Debug)]
pub struct Context {
    device: Device,
    reactor: Handle,
    events_fd: OwnedFd,
    events: Lock<VecDeque<AsyncEvent>>,
}

impl Context {
    /// Opens a device without starting what the process serves to others.
    ///
    /// # Errors
    /// `EMFILE` and similar if no descriptor is left.
    pub(crate) fn new(device: &Device) -> Result<Arc<Self>> {
        let events_fd = counting_eventfd()?;
        let events = Lock::new(VecDeque::new());
        let (device, reactor) = (device.clone(), Handle::of_process());
        Ok(Arc::new(Self { device, reactor, events_fd, events }))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The reactor of all objects of this context.
    #[must_use]
    pub fn reactor(&self) -> Handle {
        self.reactor
    }

    /// The descriptor that is readable while asynchronous events are queued. The context owns it.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.events_fd.as_raw_fd()
    }

    /// `ibv_get_async_event`: returns the next event; waits unless the descriptor is non-blocking.
    /// It holds no lock while it waits, so that the thread may be cancelled.
    ///
    /// # Errors
    /// `EAGAIN` if the descriptor is non-blocking and there is no event; `EINTR` after a signal.
    pub fn next_event(&self) -> Result<AsyncEvent> {
        loop {
            if let Some(event) = self.take_event() {
                return Ok(event);
            }
            if file_flags(&self.events_fd)?.contains(OFlags::NONBLOCK) {
                return Err(Errno::AGAIN);
            }
            wait_readable([self.events_fd.as_fd()], None)?;
        }
    }

    /// Queues an event for the program. A full queue drops the new event, never an older one.
    pub fn post_event(&self, event: AsyncEvent) {
        let mut events = self.events.lock();
        if events.len() < ASYNC_EVENTS_MAX {
            events.push_back(event);
            notify(&self.events_fd);
        }
    }

    /// Removes the queued events for which `gone` is true, because their object is being destroyed.
    pub fn forget_events(&self, gone: impl Fn(&AsyncEvent) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event| !gone(event));
        for _ in events.len()..before {
            consume(&self.events_fd);
        }
    }

    pub(crate) fn take_event(&self) -> Option<AsyncEvent> {
        let mut events = self.events.lock();
        let event = events.pop_front()?;
        consume(&self.events_fd);
        Some(event)
    }
}
