//! The header in front of each message.
//!
//! ```text
//! 0   kind: 0 a message, 1 immediate data alone, 2 nothing but credits
//! 1   reserved, 0
//! 2   credits that the sender returns (16 bits, big-endian)
//! 4   immediate data (32 bits, big-endian); 0 unless the kind is 1
//! ```
//!
//! It is part of the payload and not immediate data of the transport, because iWARP's Send has
//! none.

use crate::limits::HEADER_LEN;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program's bytes follow.
    Message,
    /// The immediate data of a Write, which precedes it.
    Immediate(u32),
    /// Credits alone.
    Credits,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) credits: u16,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let (kind, immediate) = match self.kind {
            Kind::Message => (0, 0),
            Kind::Immediate(immediate) => (1, immediate),
            Kind::Credits => (2, 0),
        };
        let [c0, c1] = self.credits.to_be_bytes();
        let [i0, i1, i2, i3] = u32::to_be_bytes(immediate);
        [kind, 0, c0, c1, i0, i1, i2, i3]
    }

    /// Splits what has arrived; `None` if it is not what this protocol sends.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, reserved, c0, c1, i0, i1, i2, i3], payload) =
            bytes.split_first_chunk::<HEADER_LEN>()?;
        let (credits, immediate) =
            (u16::from_be_bytes([c0, c1]), u32::from_be_bytes([i0, i1, i2, i3]));
        let kind = match kind {
            0 => Kind::Message,
            1 => Kind::Immediate(immediate),
            2 => Kind::Credits,
            _ => return None,
        };
        let is_sound = reserved == 0
            && (immediate == 0 || matches!(kind, Kind::Immediate(_)))
            && (payload.is_empty() || kind == Kind::Message)
            && (credits != 0 || kind != Kind::Credits);
        is_sound.then_some(Self { kind, credits })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let kind = prop_oneof![
            Just(Kind::Message),
            any::<u32>().prop_map(Kind::Immediate),
            Just(Kind::Credits)
        ];
        (kind, 1_u16..).prop_map(|(kind, credits)| Header { kind, credits })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn what_is_decoded_is_what_would_be_encoded(bytes in any::<[u8; HEADER_LEN]>()) {
            if let Some(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn only_messages_have_a_payload() {
        let of = |kind| [&Header { kind, credits: 1 }.encode()[..], b"x"].concat();
        assert!(Header::decode(&of(Kind::Message)).is_some());
        assert_eq!(Header::decode(&of(Kind::Immediate(7))), None);
        assert_eq!(Header::decode(&of(Kind::Credits)), None);
        let nothing = Header { kind: Kind::Credits, credits: 0 }.encode();
        assert_eq!(Header::decode(&nothing), None);
    }
}
