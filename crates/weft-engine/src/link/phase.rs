//! The phases of a connection, and the events that change them.

use weft_wire::rdmap::Terminate;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPhase {
    /// No connection yet.
    Idle {
        /// Whether requests wait for a peer, with a timer.
        awaiting: bool,
    },
    /// Messages flow.
    Open,
    /// The output that is due is sent, and then the stream is closed.
    Closing {
        /// The Terminate message that is still to be sent.
        terminate: Option<Terminate>,
    },
    /// The stream is closed or lost.
    Closed {
        /// The error of the stream, or 0.
        errno: u32,
        /// Whether requests wait, with a timer, for as long as retries take.
        awaiting: bool,
    },
}

/// An event that changes the phase.
#[derive(Clone, Copy, Debug)]
pub(super) enum PhaseEvent {
    /// The MPA exchange is over.
    Opened,
    /// The program closes the connection, or the queue pair is in the error state.
    Closed,
    /// The queue pair is in the error state, and the peer gets the reason.
    Terminated(Terminate),
    /// The stream has ended.
    Lost { errno: u32 },
    /// There is no peer, and none will connect.
    Abandoned,
}

impl LinkPhase {
    /// The phase after an event. An event without effect returns the phase unchanged.
    #[must_use]
    pub(super) fn after(self, event: PhaseEvent) -> Self {
        use LinkPhase::{Closed, Closing, Idle, Open};
        match (self, event) {
            (Idle { .. } | Open | Closing { .. }, PhaseEvent::Opened) => Open,
            (Open, PhaseEvent::Closed) => Closing { terminate: None },
            (Open | Closing { .. }, PhaseEvent::Terminated(last)) => {
                Closing { terminate: Some(last) }
            }
            (Open, PhaseEvent::Lost { errno }) => Closed { errno, awaiting: false },
            (Idle { awaiting }, PhaseEvent::Lost { .. } | PhaseEvent::Abandoned) => {
                Closed { errno: 0, awaiting }
            }
            (Open | Closing { .. }, PhaseEvent::Lost { .. } | PhaseEvent::Abandoned) => {
                Closed { errno: 0, awaiting: false }
            }
            (phase, _) => phase,
        }
    }

    /// Whether messages flow.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle { .. })
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self, Self::Closing { .. })
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Whether a Terminate message has to be sent.
    pub(super) fn owes_terminate(&self) -> bool {
        matches!(self, Self::Closing { terminate: Some(_) })
    }

    /// Takes the Terminate message that has to be sent.
    pub(super) fn take_terminate(&mut self) -> Option<Terminate> {
        match self {
            Self::Closing { terminate } => terminate.take(),
            _ => None,
        }
    }

    /// Sets whether requests wait for a peer, in a phase without one. Returns the old value.
    pub(super) fn set_awaiting(&mut self, value: bool) -> bool {
        match self {
            Self::Idle { awaiting } | Self::Closed { awaiting, .. } => {
                std::mem::replace(awaiting, value)
            }
            Self::Open | Self::Closing { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use weft_wire::error::ProtocolError;

    use super::*;

    const TABLE: &str = "\
idle           | opened     | open
idle           | closed     | idle
idle           | terminated | idle
idle           | lost       | closed 0
idle           | abandoned  | closed 0
idle, awaited  | opened     | open
idle, awaited  | closed     | idle, awaited
idle, awaited  | terminated | idle, awaited
idle, awaited  | lost       | closed 0, awaited
idle, awaited  | abandoned  | closed 0, awaited
open           | opened     | open
open           | closed     | closing
open           | terminated | terminating
open           | lost       | closed 104
open           | abandoned  | closed 0
closing        | opened     | open
closing        | closed     | closing
closing        | terminated | terminating
closing        | lost       | closed 0
closing        | abandoned  | closed 0
terminating    | opened     | open
terminating    | closed     | terminating
terminating    | terminated | terminating
terminating    | lost       | closed 0
terminating    | abandoned  | closed 0
closed 5       | opened     | closed 5
closed 5       | closed     | closed 5
closed 5       | terminated | closed 5
closed 5       | lost       | closed 5
closed 5       | abandoned  | closed 5
";

    fn name(phase: &LinkPhase) -> String {
        let awaited = |awaiting| if awaiting { ", awaited" } else { "" };
        match *phase {
            LinkPhase::Idle { awaiting } => format!("idle{}", awaited(awaiting)),
            LinkPhase::Open => "open".into(),
            LinkPhase::Closing { terminate: None } => "closing".into(),
            LinkPhase::Closing { terminate: Some(_) } => "terminating".into(),
            LinkPhase::Closed { errno, awaiting } => format!("closed {errno}{}", awaited(awaiting)),
        }
    }

    #[test]
    fn each_event_leads_to_the_next_phase_of_the_table() {
        let last = ProtocolError::RdmapCatastrophic.terminate(None, None);
        let phases = [
            LinkPhase::Idle { awaiting: false },
            LinkPhase::Idle { awaiting: true },
            LinkPhase::Open,
            LinkPhase::Closing { terminate: None },
            LinkPhase::Closing { terminate: Some(last) },
            LinkPhase::Closed { errno: 5, awaiting: false },
        ];
        let events = [
            ("opened", PhaseEvent::Opened),
            ("closed", PhaseEvent::Closed),
            ("terminated", PhaseEvent::Terminated(last)),
            ("lost", PhaseEvent::Lost { errno: 104 }),
            ("abandoned", PhaseEvent::Abandoned),
        ];
        let mut table = String::new();
        for phase in &phases {
            for (event_name, event) in &events {
                let after = phase.after(*event);
                let (from, to) = (name(phase), name(&after));
                writeln!(table, "{from:<14} | {event_name:<10} | {to}").expect("a String");
            }
        }
        assert_eq!(table, TABLE);
    }
}
