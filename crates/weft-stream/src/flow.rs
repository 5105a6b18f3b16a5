//! Flow control of a connection's shared memory. The connecting side chooses it and writes it into
//! the slot; both ends use it.

/// The flow control of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Bytes lie end to end in a ring.
    #[default]
    Packed,
    /// Each message takes one or more of a fixed number of buffers of equal length.
    Credit,
}

impl Flow {
    /// Both kinds of flow control.
    pub const ALL: [Self; 2] = [Self::Packed, Self::Credit];

    /// The name in settings and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Credit => "credit",
        }
    }

    /// The flow control with this name in settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flow| flow.name() == name)
    }

    /// The flow control in a slot's word, which another process may have filled with any value.
    pub(crate) fn of(word: u32) -> Self {
        if word == Self::Credit as u32 { Self::Credit } else { Self::Packed }
    }
}
