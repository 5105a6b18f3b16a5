//! Memory that is taken piece by piece, and given back in the same order.

/// The offsets of a ring. It has no bytes itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staging {
    len: usize,
    /// Where the next piece begins.
    next: usize,
    /// Bytes that are taken, or skipped at the end of the ring.
    held: usize,
}

impl Staging {
    /// Returns a ring of this many bytes.
    pub(super) fn new(len: usize) -> Self {
        Self { len, next: 0, held: 0 }
    }

    /// Whether `len` bytes can be taken, wherever the ring ends.
    pub(super) fn has_room(&self, len: usize) -> bool {
        // Fewer are skipped at the end of the ring.
        self.held + 2 * len <= self.len
    }

    /// Takes `len` contiguous bytes. Returns their offset, and how many bytes to give back.
    pub(super) fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        if self.held == 0 {
            self.next = 0;
        }
        // A piece that does not fit at the end begins at the start.
        let fits = self.next + len <= self.len;
        let (at, skipped) = if fits { (self.next, 0) } else { (0, self.len - self.next) };
        let held = skipped + len;
        if self.held + held > self.len {
            return None;
        }
        self.next = at + len;
        self.held += held;
        Some((at, held))
    }

    /// Gives the oldest piece back.
    pub(super) fn give_back(&mut self, held: usize) {
        self.held -= held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn pieces_do_not_overlap() {
        const LEN: usize = 1_000;
        let mut staging = Staging::new(LEN);
        let mut pieces: VecDeque<(usize, usize, usize)> = VecDeque::new();
        let mut number = 12_345_u64;
        for _ in 0..100_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (number >> 40) as usize % 300;
            if number >> 33 & 1 == 0 {
                let had_room = staging.has_room(len);
                match staging.take(len) {
                    Some((at, held)) => {
                        assert!(at + len <= LEN);
                        let overlaps = |&(other, its, _): &(usize, usize, usize)| {
                            len > 0 && its > 0 && at < other + its && other < at + len
                        };
                        assert!(!pieces.iter().any(overlaps), "{at}+{len}: {pieces:?}");
                        pieces.push_back((at, len, held));
                    }
                    None => assert!(!had_room),
                }
            } else if let Some((_, _, held)) = pieces.pop_front() {
                staging.give_back(held);
            }
        }
        pieces.drain(..).for_each(|(_, _, held)| staging.give_back(held));
        assert!(staging.take(LEN).is_some(), "all is given back");
    }
}
