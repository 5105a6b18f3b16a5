//! What both ends say of themselves in the private data of a connection, before the program's own.
//!
//! ```text
//! 0   magic "WFAB"
//! 4   version, 1
//! 5   reserved, 0
//! 6   window: messages that this end is ready to receive (16 bits, big-endian)
//! 8   bytes of the longest message that it receives (32 bits, big-endian)
//! 12  bytes of the program's private data (16 bits, big-endian)
//! 14  the program's private data
//! ```
//!
//! Zeros may follow: InfiniBand fills the private data up.

use crate::limits::{HELLO_LEN, MESSAGE_MAX, WINDOW_MAX};

const MAGIC: &[u8; 4] = b"WFAB";
const VERSION: u8 = 1;

/// What an end is ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Messages, from 1 to [`WINDOW_MAX`].
    pub(crate) window: u16,
    /// Bytes of the longest one, at most [`MESSAGE_MAX`].
    pub(crate) message_max: u32,
}

impl Hello {
    /// The private data to send.
    pub(crate) fn encode(self, program: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HELLO_LEN + program.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, 0]);
        bytes.extend_from_slice(&self.window.to_be_bytes());
        bytes.extend_from_slice(&self.message_max.to_be_bytes());
        // Less than 64 KiB, as the limits of the carriers say.
        let len = u16::try_from(program.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(program);
        bytes
    }

    /// Splits the private data of a peer into its hello and the program's part; `None` if the peer
    /// is no fabric of this version, or offers what no end does.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HELLO_LEN>()?;
        let &[a, b, c, d, version, reserved, w0, w1, m0, m1, m2, m3, l0, l1] = head;
        let window = u16::from_be_bytes([w0, w1]);
        let message_max = u32::from_be_bytes([m0, m1, m2, m3]);
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let (program, padding) = rest.split_at_checked(len)?;
        let is_sound = [a, b, c, d] == *MAGIC
            && (version, reserved) == (VERSION, 0)
            && (1..=WINDOW_MAX).contains(&usize::from(window))
            && message_max as usize <= MESSAGE_MAX
            && padding.iter().all(|&byte| byte == 0);
        is_sound.then_some((Self { window, message_max }, program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let hello = Hello { window: 64, message_max: 16_384 };
        let bytes = hello.encode(b"program");
        assert_eq!(Hello::decode(&bytes), Some((hello, &b"program"[..])));
        let padded = [&bytes[..], &[0; 30]].concat();
        assert_eq!(Hello::decode(&padded), Some((hello, &b"program"[..])));
        assert_eq!(Hello::decode(&[&padded[..], &[1]].concat()), None);
        assert_eq!(Hello::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn strangers_and_impossible_offers_are_refused() {
        let sound = Hello { window: 1, message_max: 0 }.encode(b"");
        assert!(Hello::decode(&sound).is_some());
        for len in 0..HELLO_LEN {
            assert_eq!(Hello::decode(&sound[..len]), None);
        }
        // Each byte of the magic, the version and the reserved one; a window of 0 and one that is
        // too large; a length that is too large.
        let wrong = [(0, 0), (3, 0), (4, 2), (5, 1), (7, 0), (6, 0xff), (8, 0xff), (13, 1)];
        for (at, byte) in wrong {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            assert_eq!(Hello::decode(&bytes), None, "{at}");
        }
    }
}
