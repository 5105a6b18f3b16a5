//! The bytes that a connection is going to send.

/// Bytes to which PDUs are appended. Memory that has been used once is not cleared again: reads of
/// a store fill it.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// Those behind `len` are left over from what was sent.
    memory: Vec<u8>,
    len: usize,
}

impl SendBuffer {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `len` bytes, all of which have to be written: they have any values.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let (start, end) = (self.len, self.len + len);
        if end > self.memory.len() {
            self.memory.resize(end, 0);
        }
        self.len = end;
        &mut self.memory[start..end]
    }

    /// Takes back all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes the first `len` bytes, and moves the others to the start.
    pub fn remove_first(&mut self, len: usize) {
        self.memory.copy_within(len..self.len, 0);
        self.len -= len;
    }

    /// How many bytes of memory it has.
    #[cfg(test)]
    pub(crate) fn memory_len(&self) -> usize {
        self.memory.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Digests, NO_TAG, NopIn, Response, Sequence, append, append_with};

    #[test]
    fn memory_that_is_used_again_shows_nothing_of_what_was_there() {
        let response = Response::Nop(NopIn { task: 1, transfer: NO_TAG, lun: [0; 8] });
        let sequence = Sequence { status: 1, expected_command: 2, command_max: 3 };
        let digests = Digests { header: true, data: true };
        let (mut fresh, mut used) = (SendBuffer::default(), SendBuffer::default());
        used.push(&[0xff; 200]);
        used.remove_first(200);
        for output in [&mut fresh, &mut used] {
            append(output, &response, sequence, digests, b"abcde");
        }
        assert_eq!(used.bytes(), fresh.bytes());
        let len = used.len();
        let failed = append_with(&mut used, &response, sequence, digests, 64, |_| Err(()));
        assert_eq!((failed, used.len()), (Err(()), len));
        used.remove_first(len - 4);
        assert_eq!(used.bytes(), &fresh.bytes()[len - 4..]);
    }
}
