//! Splits a message for a deferred send: the whole pages of its longest part stay in place, and the
//! bytes before and behind them are copied (Balaji 2006, 5.3: hybrid with buffer copies).

use std::ops::Range;

use weft_sys::{Buffers, Region};

use crate::layout::PAGE;
use crate::limits::PLAN_PIECES_MAX;

/// Fewer bytes of whole pages are not worth protecting.
const PAGES_LEN_MIN: usize = 8 * PAGE;
/// The pieces of a source, before it is posted.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pieces: [(usize, usize); PLAN_PIECES_MAX],
    count: usize,
    pages: Range<usize>,
    len: usize,
    copied: usize,
}

impl Plan {
    /// Maximum number of bytes that are copied.
    pub const EDGES_LEN: usize = 16 << 10;
    /// Maximum number of bytes of a source that stay in place.
    pub const PAGES_LEN_MAX: usize = 1 << 20;

    /// The pieces: addresses and lengths in bytes.
    #[must_use]
    pub fn pieces(&self) -> &[(usize, usize)] {
        &self.pieces[..self.count]
    }

    /// The pages to protect; empty if everything is copied.
    #[must_use]
    pub fn pages(&self) -> &Range<usize> {
        &self.pages
    }

    /// Plans a source for the first bytes of the buffers, `most` at most. `copy` is called for each
    /// head and tail with the address to copy it to. `edges` is an address with room for
    /// [`Plan::EDGES_LEN`] bytes.
    #[must_use]
    pub fn of(
        buffers: Buffers<'_>,
        most: usize,
        edges: usize,
        mut copy: impl FnMut(&Region, usize),
    ) -> Self {
        let mut plan = Self::default();
        for region in buffers.regions().filter(|region| !region.is_empty()) {
            let wanted = region.len().min(most - plan.len);
            let pages = whole_pages(region.addr(), wanted);
            let whole = if pages.len() < PAGES_LEN_MIN {
                plan.add_edge(&region, 0, wanted, edges, &mut copy)
            } else if plan.pages.is_empty() && !plan.is_edge_full(pages.start - region.addr()) {
                let head = pages.start - region.addr();
                plan.add_edge(&region, 0, head, edges, &mut copy);
                plan.add((pages.start, pages.len()));
                let tail = head + pages.len();
                plan.pages = pages;
                let rest = wanted - tail;
                rest < PAGE && plan.add_edge(&region, tail, rest, edges, &mut copy)
            } else {
                false // It belongs to the next source.
            };
            if !whole || wanted < region.len() {
                break;
            }
        }
        plan
    }

    /// Number of bytes of the message that the plan covers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the plan covers no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn is_edge_full(&self, more: usize) -> bool {
        self.copied + more > Self::EDGES_LEN
    }

    /// Copies as many bytes of a region as there is room for, and returns whether these were all.
    fn add_edge(
        &mut self,
        region: &Region,
        offset: usize,
        len: usize,
        edges: usize,
        copy: &mut impl FnMut(&Region, usize),
    ) -> bool {
        let taken = len.min(Self::EDGES_LEN - self.copied);
        if let Some(part) = region.part(offset, taken).filter(|part| !part.is_empty()) {
            copy(&part, edges + self.copied);
            self.add((edges + self.copied, taken));
            self.copied += taken;
        }
        taken == len
    }

    /// Adds a piece, or extends the last one.
    fn add(&mut self, (addr, len): (usize, usize)) {
        self.len += len;
        if let Some(last) = self.count.checked_sub(1).map(|last| &mut self.pieces[last])
            && last.0 + last.1 == addr
        {
            last.1 += len;
            return;
        }
        self.pieces[self.count] = (addr, len);
        self.count += 1;
    }
}

fn whole_pages(addr: usize, len: usize) -> Range<usize> {
    let start = addr.next_multiple_of(PAGE);
    let end = (addr + len) / PAGE * PAGE;
    start..end.min(start + Plan::PAGES_LEN_MAX).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::IoSliceMut;
    use weft_testing::seeds::cases;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(64)))]

        /// For any layout, the sources of a message together are the message, their pages are whole
        /// pages within it, and the number of sources is finite.
        #[test]
        fn sources_together_make_up_the_message(
            lens in prop::collection::vec(prop_oneof![0..300_usize, 0..200_000_usize], 1..6),
            shift in 0..PAGE,
            most in 1..3 * Plan::PAGES_LEN_MAX,
        ) {
            let mut memory: Vec<u8> = (0..lens.iter().sum::<usize>() + shift)
                .map(|at| (at % 251) as u8)
                .collect();
            let message = memory[shift..].to_vec();
            let mut left = &mut memory[shift..];
            let mut slices = Vec::new();
            for len in lens {
                let (slice, rest) = left.split_at_mut(len);
                slices.push(IoSliceMut::new(slice));
                left = rest;
            }
            let buffers = Buffers::of(&mut slices);
            let edges = vec![0_u8; Plan::EDGES_LEN];
            let mut sent = Vec::new();
            while sent.len() < message.len() {
                let mut copied = Vec::new();
                let base = edges.as_ptr() as usize;
                let plan = Plan::of(buffers.after(sent.len()), most, base, |region, to| {
                    assert_eq!(to, base + copied.len(), "edges lie one behind the other");
                    region.copy_out(&mut copied);
                });
                prop_assert!(plan.len > 0 && plan.len <= most);
                prop_assert!(plan.pages.start.is_multiple_of(PAGE));
                prop_assert!(plan.pages.len().is_multiple_of(PAGE));
                for &(addr, len) in plan.pieces() {
                    if addr == plan.pages.start && len == plan.pages.len() {
                        let from = addr - (buffers.regions().next().expect("one").addr());
                        sent.extend_from_slice(&message[from..from + len]);
                    } else {
                        sent.extend_from_slice(&copied[addr - base..addr - base + len]);
                    }
                }
                prop_assert_eq!(&sent[..], &message[..sent.len()]);
            }
        }
    }
}
