//! Memory whose start is a multiple of a page, as direct I/O needs it.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::limits::PAGE_LEN;

/// Bytes that begin at a multiple of [`PAGE_LEN`]. Their number is fixed.
pub(crate) struct Aligned {
    /// Never grows, so that it stays where it is.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Returns `len` bytes, all like `byte`. If that is not zero, their pages are there afterwards.
    pub(crate) fn filled(len: usize, byte: u8) -> Self {
        let memory = vec![byte; len + PAGE_LEN - 1];
        let start = memory.as_ptr().align_offset(PAGE_LEN);
        Self { memory, start, len }
    }
}

impl fmt::Debug for Aligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page() {
        for len in [0, 1, 512, 65_536] {
            let mut memory = Aligned::filled(len, 7);
            assert_eq!(memory.as_ptr() as usize % PAGE_LEN, 0);
            assert_eq!(*memory, *vec![7; len]);
            memory.fill(8);
            assert_eq!(memory.len(), len);
        }
    }
}
