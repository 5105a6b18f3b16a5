//! The buffers of a direction under credit-based flow control with delayed and piggy-backed
//! acknowledgment (Balaji 2006, chapter 2; chapter 6 compares it with the packed ring): N buffers
//! of S bytes, with one message in each.
//!
//! The writer holds N credits. A message takes one credit for each S bytes begun; the rest of its
//! last buffer stays empty. The reader does not return each credit at once: it returns them when
//! half have been used, and with every message that it sends itself. A writer without credits waits
//! as for a full ring.
//!
//! The buffers lie in the space of the packed direction's big ring, their lengths in that of the
//! small ring.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_sys::Buffers;

use crate::layout::{big_ring_at, small_ring_at};
use crate::limits::{CREDIT_LEN, CREDITS, FILL_LEN};
use crate::registry::Registry;
use crate::ring::{Broken, used};
use crate::words::{Direction, Role};

/// Emptied buffers after which the reader returns the credits unasked.
const DELAY: u64 = CREDITS as u64 / 2;

/// The buffers of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    registry: &'static Registry,
    lengths: usize,
    buffers: usize,
    words: &'static Direction,
}

/// The reader's position: buffers emptied so far, and bytes read of the next one.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    emptied: u64,
    offset: usize,
}

/// A contiguous run of bytes in a buffer.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: usize,
    len: usize,
}

impl Credits {
    /// Bytes that all buffers hold together.
    pub(crate) const LEN: usize = CREDITS * CREDIT_LEN;
    /// Free bytes from which the stream is reported as writable again. It is at most half of `LEN`,
    /// because a reader that has read everything may have returned only half of the credits.
    pub(crate) const WRITABLE_LEN: usize = Self::LEN / 4;

    /// The buffers of the direction in which `from` sends. The caller has allocated the slot's big
    /// rings.
    pub(crate) fn of(registry: &'static Registry, slot: usize, from: Role) -> Self {
        Self {
            registry,
            lengths: small_ring_at(slot, from as usize),
            buffers: big_ring_at(slot, from as usize),
            words: Direction::of(registry, slot, from),
        }
    }

    pub(crate) fn words(&self) -> &'static Direction {
        self.words
    }

    /// Bytes that the writer may put in one message.
    #[inline]
    pub(crate) fn room(&self) -> Result<usize, Broken> {
        Ok(self.credits()? * CREDIT_LEN)
    }

    /// Credits that the writer holds.
    #[inline]
    fn credits(&self) -> Result<usize, Broken> {
        let filled = self.words.filled.load(Ordering::Relaxed);
        let acknowledged = self.words.acknowledged.load(Ordering::Acquire);
        let out = filled.checked_sub(acknowledged).ok_or(Broken)?;
        CREDITS.checked_sub(usize::try_from(out).map_err(|_| Broken)?).ok_or(Broken)
    }

    /// Puts a message, or as much of it as there are credits for, and returns how many bytes. The
    /// caller holds the writer's lock.
    pub(crate) fn put(&self, buffers: Buffers<'_>) -> Result<usize, Broken> {
        let mut credits = self.credits()?;
        let mut put = 0;
        let mut in_buffer = 0;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() {
                if credits == 0 {
                    credits = self.credits()?;
                    if credits == 0 {
                        return Ok(put);
                    }
                }
                let len = (CREDIT_LEN - in_buffer).min(region.len() - done);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                let index = self.words.filled.load(Ordering::Relaxed) as usize % CREDITS;
                let at = self.buffers + index * CREDIT_LEN + in_buffer;
                self.registry.memory().copy_from(at, &part);
                done += len;
                in_buffer += len;
                if in_buffer == CREDIT_LEN {
                    self.publish(in_buffer);
                    put += in_buffer;
                    in_buffer = 0;
                    credits -= 1;
                }
            }
        }
        if in_buffer > 0 {
            self.publish(in_buffer);
            put += in_buffer;
        }
        Ok(put)
    }

    /// Publishes the next buffer, with its length, to the reader.
    fn publish(&self, len: usize) {
        let filled = self.words.filled.load(Ordering::Relaxed);
        self.length(filled).store(len as u64, Ordering::Relaxed);
        self.words.filled.store(filled.wrapping_add(1), Ordering::Relaxed);
        let head = self.words.head.load(Ordering::Relaxed);
        self.words.head.store(head.wrapping_add(len as u64), Ordering::Release);
    }

    /// Fills the buffers with unread bytes and returns how many; with `keep` the bytes stay in the
    /// queue. The caller holds the reader's lock.
    pub(crate) fn take(&self, buffers: Buffers<'_>, keep: bool) -> Result<usize, Broken> {
        let tail = self.words.tail.load(Ordering::Relaxed);
        let mut left = used(self.words.head.load(Ordering::Acquire), tail)?;
        let mut cursor = self.cursor()?;
        let mut taken = 0;
        for region in buffers.regions() {
            let mut done = 0;
            while done < region.len() && left > 0 {
                let run = self.run(cursor)?;
                let len = run.len.min(left).min(region.len() - done);
                let Some(part) = region.part(done, len) else { return Err(Broken) };
                self.registry.memory().copy_to(run.at, &part);
                done += len;
                left -= len;
                taken += len;
                self.pass(&mut cursor, run, len, keep);
            }
        }
        if !keep {
            self.settle(cursor, taken);
        }
        Ok(taken)
    }

    /// Drops up to `len` bytes, and returns how many. The caller holds the reader's lock.
    pub(crate) fn skip(&self, len: usize) -> Result<usize, Broken> {
        let tail = self.words.tail.load(Ordering::Relaxed);
        let len = len.min(used(self.words.head.load(Ordering::Acquire), tail)?);
        let mut cursor = self.cursor()?;
        let mut left = len;
        while left > 0 {
            let run = self.run(cursor)?;
            let passed = run.len.min(left);
            left -= passed;
            self.pass(&mut cursor, run, passed, false);
        }
        self.settle(cursor, len);
        Ok(len)
    }

    fn cursor(&self) -> Result<Cursor, Broken> {
        let offset = self.words.read_of_buffer.load(Ordering::Relaxed);
        Ok(Cursor {
            emptied: self.words.emptied.load(Ordering::Relaxed),
            offset: usize::try_from(offset).map_err(|_| Broken)?,
        })
    }

    /// The rest of the buffer at the cursor: at least one byte, since there are unread bytes.
    #[inline]
    fn run(&self, cursor: Cursor) -> Result<Run, Broken> {
        let len = self.length(cursor.emptied).load(Ordering::Relaxed);
        let len = usize::try_from(len).map_err(|_| Broken)?;
        if len > CREDIT_LEN || cursor.offset >= len {
            return Err(Broken);
        }
        let start = self.buffers + cursor.emptied as usize % CREDITS * CREDIT_LEN;
        Ok(Run { at: start + cursor.offset, len: len - cursor.offset })
    }

    /// Advances the cursor by `len` bytes of a run.
    #[inline]
    fn pass(&self, cursor: &mut Cursor, run: Run, len: usize, keep: bool) {
        if len < run.len {
            cursor.offset += len;
            return;
        }
        *cursor = Cursor { emptied: cursor.emptied.wrapping_add(1), offset: 0 };
        if !keep {
            // The writer may overwrite the buffer from here on: its bytes have been copied out.
            self.words.emptied.store(cursor.emptied, Ordering::Release);
            let acknowledged = self.words.acknowledged.load(Ordering::Relaxed);
            if cursor.emptied.wrapping_sub(acknowledged) >= DELAY {
                self.acknowledge();
            }
        }
    }

    fn settle(&self, cursor: Cursor, taken: usize) {
        self.words.read_of_buffer.store(cursor.offset as u64, Ordering::Relaxed);
        let tail = self.words.tail.load(Ordering::Relaxed);
        self.words.tail.store(tail.wrapping_add(taken as u64), Ordering::Release);
    }

    /// Returns the credits of all buffers emptied so far; `false` if there were none. It needs no
    /// lock: one thread may send while another one receives.
    #[inline]
    pub(crate) fn acknowledge(&self) -> bool {
        let emptied = self.words.emptied.load(Ordering::Acquire);
        self.words.acknowledged.load(Ordering::Relaxed) < emptied
            && self.words.acknowledged.fetch_max(emptied, Ordering::AcqRel) < emptied
    }

    /// The word with the number of bytes in the buffer at `position`.
    #[inline]
    pub(crate) fn length(&self, position: u64) -> &AtomicU64 {
        self.registry.word64(self.lengths + position as usize % CREDITS * size_of::<u64>())
    }
}

const _: () = assert!(Credits::LEN <= FILL_LEN && CREDITS.is_power_of_two());
