//! A place for a value that threads look up while others take it away and put in the next one.
//!
//! The places live for ever, and are used again and again. A table names the place of a value; a
//! thread that looks it up counts itself in ([`Slot::hold`]) and then looks whether the table still
//! names the place. In between the value may have gone, and another may be there. So a count of
//! zero never rises but by [`Slot::fill`]: a thread that comes late holds nothing, or holds the
//! next value, which stays until that thread finds that it is not what it looked for.
//!
//! # Safety
//! The value is written by [`Slot::fill`], before the count is more than zero, and taken by the
//! thread that makes it zero; in between it is shared by those who hold it.
#![allow(unsafe_code)]

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

use crate::atomic::{AtomicU32, Ordering, fence};

/// A place for a value, empty at first.
#[derive(Debug)]
pub struct Slot<T> {
    /// Those who hold the value; 0: there is none.
    holders: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: threads that hold the value share it, and any of them may be the one that takes it out.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { holders: AtomicU32::new(0), value: UnsafeCell::new(None) }
    }
}

impl<T> Slot<T> {
    /// Puts a value in, which the caller holds.
    ///
    /// # Safety
    /// The caller alone fills the place: it is fresh, or has been empty since [`Slot::release`] has
    /// given the last value to the caller, or to somebody who has left the place to it.
    pub unsafe fn fill(&self, value: T) {
        // SAFETY: the caller's promise; nobody holds what is in an empty place.
        self.write(|place| unsafe { *place = Some(value) });
        self.holders.store(1, Ordering::Release);
    }

    /// Holds the value that is there, whichever that is. `false`: there is none.
    #[inline]
    #[must_use]
    pub fn hold(&self) -> bool {
        let mut holders = self.holders.load(Ordering::Relaxed);
        while holders != 0 {
            let more = holders + 1;
            let tried = self.holders.compare_exchange_weak(
                holders,
                more,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match tried {
                Ok(_) => return true,
                Err(now) => holders = now,
            }
        }
        false
    }

    /// Holds it once more.
    ///
    /// # Safety
    /// The caller holds it.
    #[inline]
    pub unsafe fn hold_again(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a hold. Returns the value if it was the last one: the place is the caller's to fill.
    ///
    /// # Safety
    /// The caller holds it, and does not any more.
    #[inline]
    #[must_use]
    pub unsafe fn release(&self) -> Option<T> {
        if self.holders.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        fence(Ordering::Acquire);
        // SAFETY: nobody else holds it, and nobody can from here on.
        self.write(|place| unsafe { (*place).take() })
    }

    /// The value.
    ///
    /// # Safety
    /// The caller holds it, for as long as it uses the reference.
    #[inline]
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: the caller's promise; it is not written while somebody holds it.
        self.read(|place| unsafe { (*place).as_ref() })
    }

    #[cfg(not(loom))]
    fn write<R>(&self, act: impl FnOnce(*mut Option<T>) -> R) -> R {
        act(self.value.get())
    }

    #[cfg(not(loom))]
    fn read<'a, R>(&'a self, act: impl FnOnce(*const Option<T>) -> R) -> R
    where
        T: 'a,
    {
        act(self.value.get())
    }

    #[cfg(loom)]
    fn write<R>(&self, act: impl FnOnce(*mut Option<T>) -> R) -> R {
        self.value.with_mut(act)
    }

    #[cfg(loom)]
    fn read<R>(&self, act: impl FnOnce(*const Option<T>) -> R) -> R {
        self.value.with(act)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_empty_slot_is_not_held() {
        let slot = Slot::default();
        assert!(!slot.hold());
        // SAFETY: fresh.
        unsafe { slot.fill(7) };
        assert!(slot.hold());
        // SAFETY: held twice.
        assert_eq!(unsafe { slot.get() }, Some(&7));
        // SAFETY: held twice.
        assert_eq!(unsafe { slot.release() }, None);
        // SAFETY: held once.
        assert_eq!(unsafe { slot.release() }, Some(7));
        assert!(!slot.hold());
    }
}

/// Every order in which look-ups, closes and opens can meet: `make test` runs it with `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// A descriptor table of two numbers: each names one more than the index of a slot, whose value
    /// is the number; 0: closed.
    struct Table {
        numbers: [AtomicU32; 2],
        slots: [Slot<u32>; 2],
        spare: Mutex<Vec<u32>>,
    }

    impl Table {
        fn new() -> Self {
            let table = Self {
                numbers: [AtomicU32::new(0), AtomicU32::new(0)],
                slots: [Slot::default(), Slot::default()],
                spare: Mutex::new(vec![1, 0]),
            };
            table.open(0);
            table
        }

        fn open(&self, number: u32) {
            let index = self.spare.lock().expect("no panic").pop().expect("few are open");
            let slot = &self.slots[index as usize];
            // SAFETY: it was spare.
            unsafe { slot.fill(number) };
            self.numbers[number as usize].store(index + 1, Ordering::Release);
        }

        fn close(&self, number: u32) {
            let index = self.numbers[number as usize].swap(0, Ordering::AcqRel);
            if index != 0 {
                self.release(index - 1);
            }
        }

        fn release(&self, index: u32) {
            // SAFETY: held by the table, or by `find`.
            if unsafe { self.slots[index as usize].release() }.is_some() {
                let mut spare = self.spare.lock().expect("no panic");
                assert!(!spare.contains(&index), "given back once");
                spare.push(index);
            }
        }

        /// Looks a number up, and what it is.
        fn find(&self, number: u32) -> Option<u32> {
            let cell = &self.numbers[number as usize];
            loop {
                let index = cell.load(Ordering::Acquire).checked_sub(1)?;
                if !self.slots[index as usize].hold() {
                    if cell.load(Ordering::Acquire) == index + 1 {
                        thread::yield_now();
                    }
                    continue;
                }
                if cell.load(Ordering::Acquire) == index + 1 {
                    // SAFETY: held.
                    let value = unsafe { self.slots[index as usize].get() }.copied();
                    self.release(index);
                    return Some(value.expect("a value is held"));
                }
                self.release(index);
            }
        }
    }

    /// A look-up finds what the number is, or nothing, whatever is closed and opened meanwhile.
    #[test]
    fn a_lookup_beside_close_and_open_finds_its_own() {
        loom::model(|| {
            let table = Arc::new(Table::new());
            let other = Arc::clone(&table);
            let closer = thread::spawn(move || {
                other.close(0);
                other.open(1);
                other.close(1);
            });
            assert!(table.find(0).is_none_or(|value| value == 0));
            closer.join().expect("no panic");
            assert_eq!(table.find(1), None);
            assert_eq!(table.spare.lock().expect("no panic").len(), 2, "all are spare");
        });
    }

    /// The same where the number is opened again.
    #[test]
    fn a_lookup_beside_reuse_of_its_number_finds_its_own() {
        loom::model(|| {
            let table = Arc::new(Table::new());
            let other = Arc::clone(&table);
            let closer = thread::spawn(move || {
                other.close(0);
                other.open(0);
            });
            assert!(table.find(0).is_none_or(|value| value == 0));
            closer.join().expect("no panic");
            assert_eq!(table.find(0), Some(0));
        });
    }
}
