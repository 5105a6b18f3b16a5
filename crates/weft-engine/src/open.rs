//! Opening a device, which brings the parts of the engine together.

use std::sync::Arc;

use crate::context::Context;
use crate::device::Device;
use crate::qp::peers::{Rendezvous, meet_by};
use crate::{Result, acceptor, debug, rendezvous};

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// `EMFILE` and the like when there is no descriptor left.
    pub fn open(device: &Device) -> Result<Arc<Self>> {
        let (connect, forget) = (rendezvous::connect, rendezvous::forget);
        meet_by(Rendezvous { serve: acceptor::serve, connect, forget });
        debug::serve();
        Self::new(device)
    }
}
