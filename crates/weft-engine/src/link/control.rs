//! Control messages between Weft peers, encoded in the offset of a zero-length RDMA Write.
//!
//! Eight bits hold the type, eight bits the RNR timer, and 48 bits a count of messages. The count
//! starts at zero with the connection and grows by one for each Send, Write, and Immediate Data of
//! a Write that has been placed. 2^48 messages take years.

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender of this has placed `placed` messages of its receiver.
    Placed {
        /// The number of messages.
        placed: u64,
    },
    /// The sender of this has placed `placed` messages, and waits for a receive for the next one.
    NotReady {
        /// The number of messages.
        placed: u64,
        /// The `min_rnr_timer` of the side that sends this.
        timer: u8,
    },
    /// The sender of this has placed a Write itself, through shared memory. The Immediate Data that
    /// follows belongs to that Write.
    Written {
        /// Length of the Write in bytes.
        length: u32,
    },
}

/// The last four of the eight bytes of an Immediate Data message that belongs to the Send behind
/// it.
pub(super) const IMMEDIATE_OF_SEND: [u8; 4] = [0, 0, 0, 1];

const COUNT_BITS: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const PLACED: u8 = 0;
const NOT_READY: u8 = 1;
const WRITTEN: u8 = 2;

impl Control {
    /// Encodes the message as an offset.
    pub(crate) fn to_offset(self) -> u64 {
        let (kind, timer, placed) = match self {
            Self::Placed { placed } => (PLACED, 0, placed),
            Self::NotReady { placed, timer } => (NOT_READY, timer, placed),
            Self::Written { length } => (WRITTEN, 0, length.into()),
        };
        u64::from(kind) << 56 | u64::from(timer) << COUNT_BITS | placed & COUNT_MASK
    }

    /// Decodes an offset; `None` for a type that this version does not know.
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
    fn control_message_survives_encoding_as_offset() {
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
