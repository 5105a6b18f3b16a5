//! Why commands do nothing.

use super::sense::Sense;

/// Why a command does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Sense data tells.
    Sense(Sense),
    /// Another initiator has reserved the unit.
    Conflict,
    /// Another initiator has aborted the command: it gets no response (SAM-5, TAS is 0).
    Aborted,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}
