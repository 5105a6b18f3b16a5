//! The bytes that a connection sends.

use crate::wire::SendBuffer;

/// Bytes to be sent, in their order.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: SendBuffer,
    /// Bytes at the start that have been sent.
    sent: usize,
}

impl Output {
    /// The bytes that have not been sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes.bytes()[self.sent..]
    }

    /// Where bytes are appended.
    pub(super) fn bytes(&mut self) -> &mut SendBuffer {
        &mut self.bytes
    }

    /// Notes that the first `len` bytes were sent.
    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        // Where there is always more to send, the memory of what was sent is used again. No byte is
        // moved for which another one was not sent.
        if 2 * self.sent >= self.bytes.len() {
            self.bytes.remove_first(self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_while_there_is_always_more_to_send() {
        let mut output = Output::default();
        let (mut appended, mut taken) = (0_u64, 0_u64);
        for round in 0..10_000_usize {
            while output.unsent().len() < 4_096 {
                output.bytes().push(&appended.to_ne_bytes());
                appended += 1;
            }
            let len = 8 * (round % 500);
            for word in output.unsent()[..len].chunks_exact(8) {
                assert_eq!(u64::from_ne_bytes(word.try_into().unwrap()), taken);
                taken += 1;
            }
            output.sent(len);
        }
        assert!(output.bytes.memory_len() <= 4 * 4_096, "{}", output.bytes.memory_len());
    }
}
