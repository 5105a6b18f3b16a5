//! The headers of a message's segments.

use weft_wire::ddp::{self, Header};
use weft_wire::rdmap::Opcode;

/// The fields that the headers of all segments of a message share.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageHeader {
    Tagged { opcode: Opcode, stag: u32, to: u64 },
    Untagged { opcode: Opcode, ulp_word: u32, qn: u32, msn: u32 },
}

impl MessageHeader {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Tagged { .. } => ddp::TAGGED_LEN,
            Self::Untagged { .. } => ddp::UNTAGGED_LEN,
        }
    }

    pub(super) fn segment(&self, offset: u32, last: bool) -> Header {
        match *self {
            Self::Tagged { opcode, stag, to } => {
                let to = to.wrapping_add(u64::from(offset));
                Header::Tagged { last, ulp: opcode.control(), stag, to }
            }
            Self::Untagged { opcode, ulp_word, qn, msn } => {
                Header::Untagged { last, ulp: opcode.control(), ulp_word, qn, msn, mo: offset }
            }
        }
    }
}
