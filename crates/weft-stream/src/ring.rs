//! The ring of a direction, in which bytes lie end to end (RDMA-supported packetized flow control,
//! Balaji 2006, chapter 6): the sender knows the free space at the receiver and puts each message
//! behind the last one. On one host the receiver's ring is memory that the sender writes directly.
//!
//! A direction starts with a small ring. When that has been full once, a big ring replaces it from
//! that position. Positions count bytes from the start and never wrap.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_sys::Buffers;

use crate::layout::{big_ring_at, small_ring_at};
use crate::limits::{BIG_RING_LEN, PUBLISH_LEN, SMALL_RING_LEN};
use crate::registry::Registry;
use crate::words::{Direction, NONE, Role};

/// The peer has written impossible values into the shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The two rings of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    registry: &'static Registry,
    slot: usize,
    direction: usize,
    filled: &'static AtomicU32,
    small: usize,
    big: usize,
    words: &'static Direction,
}

impl Ring {
    /// The rings of the direction in which `from` sends.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> Self {
        Self {
            registry,
            slot,
            direction: from as usize,
            filled: registry.filled(slot, from as usize),
            small: small_ring_at(slot, from as usize),
            big: big_ring_at(slot, from as usize),
            words: Direction::of(registry, slot, from),
        }
    }

    pub(crate) fn words(&self) -> &'static Direction {
        self.words
    }

    /// Bytes of memory that unread bytes may use at the moment.
    pub(crate) fn allotted(&self) -> usize {
        let tail = self.words.tail.load(Ordering::Relaxed);
        match self.words.grown_at.load(Ordering::Relaxed) {
            NONE => SMALL_RING_LEN,
            // The small ring still holds unread bytes.
            grown_at if tail < grown_at => SMALL_RING_LEN + BIG_RING_LEN,
            _ => BIG_RING_LEN,
        }
    }

    /// Bytes that the writer may put without a bigger ring.
    #[inline]
    pub(crate) fn room(&self) -> Result<usize, Broken> {
        let head = self.words.head.load(Ordering::Relaxed);
        let tail = self.words.tail.load(Ordering::Acquire);
        used(head, tail)?;
        let grown_at = self.words.grown_at.load(Ordering::Relaxed);
        let (len, from) = if grown_at == NONE {
            (SMALL_RING_LEN, tail)
        } else {
            (BIG_RING_LEN, tail.max(grown_at))
        };
        let taken = usize::try_from(head.checked_sub(from).ok_or(Broken)?).map_err(|_| Broken)?;
        len.checked_sub(taken).ok_or(Broken)
    }

    /// Puts as many bytes as there is room for, and returns how many. The caller holds the writer's
    /// lock.
    pub(crate) fn put(&self, buffers: Buffers<'_>) -> Result<usize, Broken> {
        let mut room = self.room()?;
        let mut head = self.words.head.load(Ordering::Relaxed);
        let mut published = head;
        let first = head;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() {
                if room == 0 {
                    room = self.more_room(&mut published, head)?;
                    if room == 0 {
                        self.words.head.store(head, Ordering::Release);
                        return Ok(head.wrapping_sub(first) as usize);
                    }
                }
                let (at, run) = self.place(head);
                let run = run.min(self.filled_from(at));
                if run == 0 {
                    room = 0; // Out of memory: treat the ring as full.
                    continue;
                }
                let len = run.min(room).min(region.len() - done).min(PUBLISH_LEN);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                self.registry.memory().copy_from(at, &part);
                done += len;
                room -= len;
                head = head.wrapping_add(len as u64);
                if head.wrapping_sub(published) >= PUBLISH_LEN as u64 {
                    self.words.head.store(head, Ordering::Release);
                    published = head;
                }
            }
        }
        self.words.head.store(head, Ordering::Release);
        Ok(head.wrapping_sub(first) as usize)
    }

    /// Allocates memory for the whole big ring, and returns whether that succeeded. The caller
    /// holds the writer's lock.
    pub(crate) fn reserve(&self) -> bool {
        while (self.filled.load(Ordering::Relaxed) as usize) < BIG_RING_LEN {
            let from = self.filled.load(Ordering::Relaxed) as usize;
            if self.registry.fill(self.slot, self.direction, from) <= from {
                return false;
            }
        }
        if self.words.grown_at.load(Ordering::Relaxed) == NONE {
            let head = self.words.head.load(Ordering::Relaxed);
            self.words.grown_at.store(head, Ordering::Release);
        }
        true
    }

    /// Publishes what has been put, and returns the room that the reader has made since, or that of
    /// the big ring.
    #[cold]
    fn more_room(&self, published: &mut u64, head: u64) -> Result<usize, Broken> {
        self.words.head.store(head, Ordering::Release);
        *published = head;
        let fresh = self.room()?;
        if self.words.grown_at.load(Ordering::Relaxed) != NONE {
            let (at, _) = self.place(head);
            return Ok(if self.filled_from(at) == 0 { 0 } else { fresh });
        }
        if fresh != 0 {
            return Ok(fresh);
        }
        if self.registry.fill(self.slot, self.direction, 0) == 0 {
            return Ok(0);
        }
        self.words.grown_at.store(head, Ordering::Release);
        Ok(BIG_RING_LEN)
    }

    /// Fills the buffers with unread bytes and returns how many; with `keep` the bytes stay in the
    /// ring. The caller holds the reader's lock.
    pub(crate) fn take(&self, buffers: Buffers<'_>, keep: bool) -> Result<usize, Broken> {
        let first = self.words.tail.load(Ordering::Relaxed);
        let mut left = used(self.words.head.load(Ordering::Acquire), first)?;
        let mut tail = first;
        let mut published = first;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() && left > 0 {
                let (at, run) = self.place(tail);
                let len = run.min(left).min(region.len() - done).min(PUBLISH_LEN);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                self.registry.memory().copy_to(at, &part);
                done += len;
                left -= len;
                tail = tail.wrapping_add(len as u64);
                if !keep && tail.wrapping_sub(published) >= PUBLISH_LEN as u64 {
                    self.words.tail.store(tail, Ordering::Release);
                    published = tail;
                    if left == 0 {
                        left = used(self.words.head.load(Ordering::Acquire), tail)?;
                    }
                }
            }
        }
        if !keep {
            self.words.tail.store(tail, Ordering::Release);
        }
        Ok(tail.wrapping_sub(first) as usize)
    }

    /// Drops up to `len` bytes, and returns how many. The caller holds the reader's lock.
    pub(crate) fn skip(&self, len: usize) -> Result<usize, Broken> {
        let tail = self.words.tail.load(Ordering::Relaxed);
        let len = len.min(used(self.words.head.load(Ordering::Acquire), tail)?);
        self.words.tail.store(tail.wrapping_add(len as u64), Ordering::Release);
        Ok(len)
    }

    /// Returns how many bytes have memory from offset `at` on, after allocating more if needed.
    #[inline]
    fn filled_from(&self, at: usize) -> usize {
        let Some(offset) = at.checked_sub(self.big) else { return usize::MAX };
        let filled = self.filled.load(Ordering::Relaxed) as usize;
        let filled = filled.min(BIG_RING_LEN);
        if offset < filled {
            return filled - offset;
        }
        self.registry.fill(self.slot, self.direction, offset).saturating_sub(offset)
    }

    /// The offset of the byte at `position`, and how many bytes follow it contiguously.
    #[inline]
    fn place(&self, position: u64) -> (usize, usize) {
        let grown_at = self.words.grown_at.load(Ordering::Relaxed);
        if position < grown_at {
            let at = position as usize % SMALL_RING_LEN;
            let run = usize::try_from(grown_at - position).unwrap_or(usize::MAX);
            (self.small + at, run.min(SMALL_RING_LEN - at))
        } else {
            let at = (position - grown_at) as usize % BIG_RING_LEN;
            (self.big + at, BIG_RING_LEN - at)
        }
    }
}

/// Bytes between two positions.
#[inline]
pub(crate) fn used(head: u64, tail: u64) -> Result<usize, Broken> {
    let used = usize::try_from(head.checked_sub(tail).ok_or(Broken)?).map_err(|_| Broken)?;
    if used <= SMALL_RING_LEN + BIG_RING_LEN { Ok(used) } else { Err(Broken) }
}
