//! The connection manager's view of a queue pair.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::hello::Identity;
use crate::qp::{AttrMask, Connection, Monitor, Qp, QpAttr};
use crate::{Errno, Result};

/// One end of a connection: a queue pair, or a stand-in for one.
pub(super) trait Endpoint: Send + Sync + fmt::Debug {
    /// The identity that a Weft peer needs.
    fn identity(&self) -> Identity;

    /// Attaches a connection; `monitor` is notified of its end.
    ///
    /// # Errors
    /// `EINVAL` if the state does not allow connecting it.
    fn attach(&self, connection: Connection, monitor: Weak<dyn Monitor>) -> Result<()>;

    /// Changes the state.
    ///
    /// # Errors
    /// As for `ibv_modify_qp(3)`.
    fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()>;

    /// Closes the connection in an orderly way.
    fn disconnect(&self);

    /// Whether the program has completions to take.
    fn has_unread(&self) -> bool;
}

/// A queue pair. The program may destroy it, and then the objects that it used, at any time, so the
/// connection manager must not keep it alive.
#[derive(Debug)]
pub(super) struct QpEndpoint {
    qp: Weak<Qp>,
    identity: Identity,
}

impl QpEndpoint {
    pub(super) fn new(qp: &Arc<Qp>) -> Self {
        Self { qp: Arc::downgrade(qp), identity: qp.identity() }
    }

    fn qp(&self) -> Result<Arc<Qp>> {
        self.qp.upgrade().ok_or(Errno::INVAL)
    }
}

impl Endpoint for QpEndpoint {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn attach(&self, connection: Connection, monitor: Weak<dyn Monitor>) -> Result<()> {
        let qp = self.qp()?;
        qp.set_monitor(monitor);
        qp.attach(connection)
    }

    fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.qp()?.modify(attr, mask)
    }

    fn disconnect(&self) {
        if let Ok(qp) = self.qp() {
            qp.disconnect();
        }
    }

    fn has_unread(&self) -> bool {
        self.qp().is_ok_and(|qp| qp.has_unread())
    }
}
