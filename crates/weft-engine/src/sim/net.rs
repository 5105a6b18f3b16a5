//! One direction of a TCP connection: bytes in order, which can be cut and delayed.

use std::collections::VecDeque;

/// The result of [`Pipe::take`].
pub(super) enum Taken {
    Bytes(Vec<u8>),
    Nothing,
    Fin,
    Reset,
}

#[derive(Debug)]
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    fin: bool,
    reset: bool,
    held_until: u64,
}

impl Pipe {
    pub(super) fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), capacity, fin: false, reset: false, held_until: 0 }
    }

    /// Number of bytes that the sender's system accepts now.
    pub(super) fn room(&self) -> usize {
        if self.fin || self.reset { 0 } else { self.capacity - self.bytes.len() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Lets nothing arrive before `until`.
    pub(super) fn hold(&mut self, until: u64) {
        self.held_until = until;
    }

    pub(super) fn finish(&mut self) {
        self.fin = true;
    }

    /// Breaks the stream after `keep` more bytes.
    pub(super) fn cut(&mut self, keep: usize) {
        self.bytes.truncate(keep);
        self.reset = true;
    }

    pub(super) fn is_cut(&self) -> bool {
        self.reset
    }

    /// Changes one byte in the stream.
    pub(super) fn corrupt(&mut self, at: usize) -> bool {
        match self.bytes.get_mut(at) {
            Some(byte) => {
                *byte ^= 0x40;
                true
            }
            None => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes what arrives now, at most `limit` bytes.
    pub(super) fn take(&mut self, now: u64, limit: usize) -> Taken {
        if now < self.held_until {
            return Taken::Nothing;
        }
        if !self.bytes.is_empty() {
            let count = self.bytes.len().min(limit);
            return Taken::Bytes(self.bytes.drain(..count).collect());
        }
        match (self.reset, self.fin) {
            (true, _) => Taken::Reset,
            (false, true) => Taken::Fin,
            (false, false) => Taken::Nothing,
        }
    }
}
