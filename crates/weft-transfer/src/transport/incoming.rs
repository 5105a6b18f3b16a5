//! Splits a stream of bytes into control messages.

use super::channel::TransportError;
use crate::wire::ControlHeader;

/// Bytes of a stream that have arrived, up to the last message that was taken.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    /// The number of bytes that have been taken.
    taken: usize,
    /// No more bytes will come.
    pub(super) has_ended: bool,
}

impl Incoming {
    /// Moves the first message into `message`, replacing its contents. Returns false if the message
    /// is not complete.
    ///
    /// # Errors
    /// If the stream has an invalid header there.
    pub(super) fn take(&mut self, message: &mut Vec<u8>) -> Result<bool, TransportError> {
        let rest = &self.bytes[self.taken..];
        let Some(header) = rest.first_chunk() else { return Ok(false) };
        let len = ControlHeader::LEN + ControlHeader::parse(header)?.len as usize;
        let Some(bytes) = rest.get(..len) else { return Ok(false) };
        message.clear();
        message.extend_from_slice(bytes);
        self.taken += len;
        Ok(true)
    }

    /// Whether no bytes are left, not even a part of a message.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Returns the buffer to which new bytes are appended.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(session: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).expect("short");
        [&ControlHeader { session, kind: 8, len }.emit(), body].concat()
    }

    proptest! {
        #[test]
        fn messages_are_complete_for_any_split_of_the_stream(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            piece in 1..100_usize,
            cut in 1..16_usize,
        ) {
            let messages: Vec<_> = (1..).zip(&bodies).map(|(at, it)| message(at, it)).collect();
            let mut stream = messages.concat();
            // The last message is incomplete.
            stream.extend_from_slice(&message(99, b"")[..cut]);
            let (mut incoming, mut out, mut next) = (Incoming::default(), Vec::new(), Vec::new());
            for piece in stream.chunks(piece) {
                incoming.room().extend_from_slice(piece);
                while incoming.take(&mut next).expect("ours") {
                    out.push(next.clone());
                }
            }
            prop_assert_eq!(out, messages);
            prop_assert!(!incoming.is_empty());
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_incomplete(
            bytes in prop::collection::vec(any::<u8>(), 0..99),
        ) {
            let mut incoming = Incoming::default();
            incoming.room().extend_from_slice(&bytes);
            let mut next = Vec::new();
            while matches!(incoming.take(&mut next), Ok(true)) {
                prop_assert!(bytes.windows(next.len()).any(|part| part == next));
            }
        }
    }
}
