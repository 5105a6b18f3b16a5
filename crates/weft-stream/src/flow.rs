//! How a direction's memory is shared out. The connecting side chooses; its choice is in the slot,
//! and both ends obey it.

/// Flow control of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Bytes lie end to end in a ring.
    #[default]
    Packed,
    /// Each message has a buffer, or several, of a fixed number of equal ones.
    Credit,
}

impl Flow {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Packed, Self::Credit];

    /// As settings and reports call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Credit => "credit",
        }
    }

    /// What settings call so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flow| flow.name() == name)
    }

    /// As a slot has it. It may be anything that another process has written.
    pub(crate) fn of(word: u32) -> Self {
        if word == Self::Credit as u32 { Self::Credit } else { Self::Packed }
    }
}
