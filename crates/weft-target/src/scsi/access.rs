//! Which commands reservations, ejected media and write protection leave to an initiator (SPC-5,
//! section 5.14.1; SBC-4, section 4.17).

/// A command's use of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It works always, and does not report unit attentions: INQUIRY, REPORT LUNS, REQUEST SENSE.
    Always,
    /// It asks for properties, or has rules of its own. Reservations leave it to all.
    Free,
    /// It needs a medium. Persistent reservations leave it to all, those of RESERVE do not.
    Probe,
    /// It reads the medium.
    Read,
    /// It writes the medium.
    Write,
    /// It changes the state of the unit, or reports it.
    Manage,
}

impl Access {
    /// A unit without a medium refuses it.
    pub(super) fn needs_medium(self) -> bool {
        matches!(self, Self::Probe | Self::Read | Self::Write)
    }

    /// A pending unit attention is reported instead.
    pub(super) fn reports_attentions(self) -> bool {
        self != Self::Always
    }

    /// Another initiator's RESERVE refuses it.
    pub(super) fn conflicts_with_reserve(self) -> bool {
        !matches!(self, Self::Always | Self::Free)
    }

    /// A persistent reservation whose holders this initiator is not one of refuses it.
    pub(super) fn conflicts_with_persistent(self, is_exclusive: bool) -> bool {
        match self {
            Self::Always | Self::Free | Self::Probe => false,
            Self::Read => is_exclusive,
            Self::Write | Self::Manage => true,
        }
    }
}
