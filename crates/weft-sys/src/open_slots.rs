//! Tracks which slots of a shared file are accessible in this process. The whole file is mapped,
//! most of it without access; a slot is opened at its first use. A process that limits its address
//! space unmaps the slots that it has not used.
//!
//! # Safety
//! An unmapped slot stays unmapped: no other code knows its range before it is opened, and it is
//! not opened afterwards.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::io::Errno;
use crate::named::NamedMemory;

const UNUSED: u32 = 0;
const UNMAPPED: u32 = u32::MAX;
/// The slot is open, or a thread is about to open it.
const OPENING: u32 = u32::MAX - 1;

/// One word for each slot: unused, unmapped, or in use with a stamp of the user's.
#[derive(Debug)]
pub struct OpenSlots(Vec<AtomicU32>);

impl OpenSlots {
    /// The state of `count` slots, all unused.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU32::new(UNUSED)).collect())
    }

    /// Whether there are no slots.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Opens a slot by `open`, unless that has been done with this stamp. A stamp is neither 0 nor
    /// one of the last two values of `u32`.
    ///
    /// # Errors
    /// `EINVAL` if there is no such slot; `ENOMEM` if it has been unmapped; those of `open`.
    #[inline]
    pub fn open(
        &self,
        slot: usize,
        stamp: u32,
        open: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let state = self.0.get(slot).ok_or(Errno::INVAL)?;
        if state.load(Ordering::Acquire) == stamp {
            return Ok(());
        }
        let taken = state.compare_exchange(UNUSED, OPENING, Ordering::AcqRel, Ordering::Acquire);
        if taken == Err(UNMAPPED) {
            return Err(Errno::NOMEM);
        }
        open()?;
        state.store(stamp, Ordering::Release);
        Ok(())
    }

    /// Unmaps the unused slots. Each has `len` bytes, in whole pages, and the first starts at
    /// `start`.
    ///
    /// # Panics
    /// If a slot does not lie inside the file.
    pub fn give_back(&self, file: &'static NamedMemory, start: usize, len: usize) {
        let take = |state: &AtomicU32| {
            state.compare_exchange(UNUSED, UNMAPPED, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        // One call unmaps a run of slots: there are thousands.
        let mut run = 0..0;
        for slot in 0..=self.0.len() {
            if self.0.get(slot).is_some_and(take) {
                run = if run.is_empty() { slot..slot + 1 } else { run.start..slot + 1 };
            } else if !run.is_empty() {
                // SAFETY: no thread has opened one of these slots, and `open` will refuse to.
                unsafe { file.unmap_range(start + run.start * len, run.len() * len) };
                run = 0..0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_slot_is_not_opened() {
        const PAGE: usize = 4_096;
        let path = std::env::temp_dir().join(format!("weft-open-slots-{}", std::process::id()));
        let file = NamedMemory::open(&path, 4 * PAGE, true).expect("a new file");
        file.unlink(&path);
        let file: &'static NamedMemory = Box::leak(Box::new(file));
        let slots = OpenSlots::new(3);
        let open = |slot| slots.open(slot, 7, || file.open_range(PAGE * (slot + 1), PAGE));
        assert_eq!(open(1), Ok(()));
        slots.give_back(file, PAGE, PAGE);
        assert_eq!(
            [0, 1, 2, 3].map(open),
            [Err(Errno::NOMEM), Ok(()), Err(Errno::NOMEM), Err(Errno::INVAL)]
        );
        file.memory().copy_in(2 * PAGE, b"still there");
        assert_eq!(file.open_range(PAGE, PAGE), Err(Errno::NOMEM), "nothing is mapped there");
    }
}
