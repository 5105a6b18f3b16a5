//! Opening a device, which connects the parts of the engine.

use std::sync::Arc;

use crate::context::Context;
use crate::device::Device;
use crate::qp::peers::{Rendezvous, set_rendezvous};
use crate::{Result, acceptor, debug, rendezvous};

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// `EMFILE` and similar if no descriptor is left.
    pub fn open(device: &Device) -> Result<Arc<Self>> {
        let (connect, forget) = (rendezvous::connect, rendezvous::forget);
        set_rendezvous(Rendezvous { serve: acceptor::serve, connect, forget });
        debug::serve();
        Self::new(device)
    }
}
