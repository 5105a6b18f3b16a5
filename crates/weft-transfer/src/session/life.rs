//! The end of a session, which works the same way at the source and at the sink.

use super::fault::{Ending, Fault};
use crate::wire::{Body, Cancel};

/// The stages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The source sends blocks.
    Running,
    /// The session is cancelled, and an end may still use its buffers.
    Closing {
        ending: Ending,
        /// The cancellation, until it is sent to the peer.
        cancel: Option<Cancel>,
        is_closed_sent: bool,
        is_peer_closed: bool,
    },
    /// The session has ended.
    Over(Ending),
}

/// The stage of one end of a session.
#[derive(Clone, Debug)]
pub(super) struct Life(Stage);

impl Life {
    pub(super) fn new() -> Self {
        Self(Stage::Running)
    }

    pub(super) fn is_running(&self) -> bool {
        self.0 == Stage::Running
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.0, Stage::Over(_))
    }

    /// How the session has ended; `None` before its end.
    pub(super) fn ending(&self) -> Option<&Ending> {
        match &self.0 {
            Stage::Over(ending) => Some(ending),
            _ => None,
        }
    }

    /// Cancels the session from this end if it still runs.
    pub(super) fn cancel(&mut self, cancel: Cancel) {
        if self.is_running() {
            self.0 = Stage::Closing {
                ending: Ending::Cancelled(cancel.clone()),
                cancel: Some(cancel),
                is_closed_sent: false,
                is_peer_closed: false,
            };
        }
    }

    /// Handles the peer's cancellation. If both ends cancel, each keeps its own reason.
    pub(super) fn handle_cancel(&mut self, cancel: Cancel) {
        if self.is_running() {
            self.0 = Stage::Closing {
                ending: Ending::CancelledByPeer(cancel),
                cancel: None,
                is_closed_sent: false,
                is_peer_closed: false,
            };
        }
    }

    /// Handles the peer's report that its end is closed.
    ///
    /// # Errors
    /// If the session is not cancelled.
    pub(super) fn handle_closed(&mut self) -> Result<(), Fault> {
        match &mut self.0 {
            Stage::Running => return Err(Fault::Closed),
            Stage::Closing { is_peer_closed, .. } => *is_peer_closed = true,
            Stage::Over(_) => {}
        }
        self.settle();
        Ok(())
    }

    /// Whether the peer has stopped using the session's buffers.
    pub(super) fn is_peer_closed(&self) -> bool {
        matches!(self.0, Stage::Closing { is_peer_closed: true, .. } | Stage::Over(_))
    }

    /// Ends the session: both ends have all blocks.
    pub(super) fn complete(&mut self) {
        self.0 = Stage::Over(Ending::Complete);
    }

    /// Returns the next message to send. `is_at_rest` means that this end has stopped using the
    /// peer's buffers.
    pub(super) fn poll(&mut self, is_at_rest: bool) -> Option<Body> {
        let Stage::Closing { cancel, is_closed_sent, .. } = &mut self.0 else { return None };
        if let Some(cancel) = cancel.take() {
            return Some(Body::Cancel(cancel));
        }
        if *is_closed_sent || !is_at_rest {
            return None;
        }
        *is_closed_sent = true;
        self.settle();
        Some(Body::Closed)
    }

    /// Whether [`Life::poll`] would return a message.
    pub(super) fn has_message(&self, is_at_rest: bool) -> bool {
        match &self.0 {
            Stage::Closing { cancel, is_closed_sent, .. } => {
                cancel.is_some() || (!is_closed_sent && is_at_rest)
            }
            _ => false,
        }
    }

    fn settle(&mut self) {
        if let Stage::Closing { ending, is_closed_sent: true, is_peer_closed: true, .. } = &self.0 {
            self.0 = Stage::Over(ending.clone());
        }
    }
}
