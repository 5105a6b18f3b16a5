//! What Weft peers tell each other by the offset of a zero-length RDMA Write.
//!
//! Eight bits say what, eight bits carry the RNR timer, 48 bits count messages. The count starts
//! with the connection and goes up by one for each Send, Write and Immediate Data of a Write that
//! has been placed; 2^48 messages take years.

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// `placed` messages of the receiver of this have been placed by its sender.
    Placed {
        /// The count.
        placed: u64,
    },
    /// The same, and the next message waits for a receive to be posted.
    NotReady {
        /// The count.
        placed: u64,
        /// `min_rnr_timer` of the sender of this.
        timer: u8,
    },
    /// A Write of so many bytes has been placed by its sender itself, through shared memory; the
    /// Immediate Data behind this belongs to it.
    Written {
        /// In bytes.
        length: u32,
    },
}

/// Marks Immediate Data that belongs to the Send behind it; in the last four of its eight bytes.
pub(super) const IMMEDIATE_OF_SEND: [u8; 4] = [0, 0, 0, 1];

const COUNT_BITS: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const PLACED: u8 = 0;
const NOT_READY: u8 = 1;
const WRITTEN: u8 = 2;

impl Control {
    /// The offset that says this.
    pub(crate) fn to_offset(self) -> u64 {
        let (kind, timer, placed) = match self {
            Self::Placed { placed } => (PLACED, 0, placed),
            Self::NotReady { placed, timer } => (NOT_READY, timer, placed),
            Self::Written { length } => (WRITTEN, 0, length.into()),
        };
        u64::from(kind) << 56 | u64::from(timer) << COUNT_BITS | placed & COUNT_MASK
    }

    /// What an offset says; `None` when it is nothing that this version knows.
    pub(crate) fn from_offset(offset: u64) -> Option<Self> {
        let [kind, timer, ..] = offset.to_be_bytes();
        let placed = offset & COUNT_MASK;
        match kind {
            PLACED => Some(Self::Placed { placed }),
            NOT_READY => Some(Self::NotReady { placed, timer }),
            WRITTEN => u32::try_from(placed).ok().map(|length| Self::Written { length }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_round_trip() {
        for control in [
            Control::Placed { placed: 0 },
            Control::Placed { placed: COUNT_MASK },
            Control::NotReady { placed: 77, timer: 31 },
            Control::Written { length: u32::MAX },
        ] {
            assert_eq!(Control::from_offset(control.to_offset()), Some(control));
        }
        assert_eq!(Control::from_offset(0xff << 56), None);
    }
}
