//! Bytes that have arrived and are not used up.

use crate::limits::READ_LEN;

/// A buffer between a socket and a parser.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Returns space for bytes that arrive.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() - self.end < READ_LEN {
            if self.start >= self.bytes.len() / 2 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.bytes.len() - self.end < READ_LEN {
                let len = (self.end + READ_LEN).max(self.bytes.len().saturating_mul(2));
                self.bytes.resize(len, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that this many bytes have been written into [`Self::space`].
    pub fn received(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Returns the bytes that are not used up.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Uses up the first bytes.
    pub fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
        // A long message does not keep its memory for good.
        if self.start == self.end && self.bytes.len() > 16 * READ_LEN {
            *self = Self::default();
        }
    }
}
