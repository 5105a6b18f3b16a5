//! The descriptors that become readable when something has happened at the end of a connection, or
//! when a peer calls.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weft_sys::calls::event::{EventfdFlags, eventfd};
use weft_sys::{consume, notify};

use super::connections::Wakeup;
use crate::Result;

/// A descriptor, and whether it is readable.
#[derive(Debug)]
struct Descriptor {
    fd: Arc<OwnedFd>,
    is_raised: bool,
}

/// The descriptors of a port.
#[derive(Debug, Default)]
pub(super) struct Wakeups(HashMap<Wakeup, Descriptor>);

impl Wakeups {
    /// Makes the descriptor of a wakeup.
    ///
    /// # Errors
    /// `EMFILE` and similar if no descriptor is left.
    pub(super) fn add(&mut self, wakeup: Wakeup) -> Result<Arc<OwnedFd>> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.0.insert(wakeup, Descriptor { fd: Arc::clone(&fd), is_raised: false });
        Ok(fd)
    }

    /// Removes the descriptor of a wakeup.
    pub(super) fn remove(&mut self, wakeup: Wakeup) {
        self.0.remove(&wakeup);
    }

    /// Makes the descriptor readable.
    pub(super) fn raise(&mut self, wakeup: Wakeup) {
        if let Some(descriptor) = self.0.get_mut(&wakeup)
            && !std::mem::replace(&mut descriptor.is_raised, true)
        {
            notify(&descriptor.fd);
        }
    }

    /// Makes the descriptor not readable. Returns whether it was.
    pub(super) fn drain(&mut self, wakeup: Wakeup) -> bool {
        let Some(descriptor) = self.0.get_mut(&wakeup) else { return false };
        let was_raised = std::mem::take(&mut descriptor.is_raised);
        if was_raised {
            consume(&descriptor.fd);
        }
        was_raised
    }
}
