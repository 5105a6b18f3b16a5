//! A reusable slot for a value that threads look up while others remove and replace it.
//!
//! Slots live for ever, and are reused. A table names the slot of a value. A thread that looks it
//! up first counts itself as a holder ([`Slot::hold`]) and then checks that the table still names
//! the slot. In between the value may have been removed, and another one may be there. So only
//! [`Slot::fill`] raises a count of zero: a late thread holds nothing, or holds the next value,
//! which stays until the thread finds that it is the wrong one.
//!
//! # Safety
//! [`Slot::fill`] writes the value before the count is more than zero, and the thread that makes
//! the count zero takes it. In between the holders share it.
#![allow(unsafe_code)]

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

use crate::atomic::{AtomicU32, Ordering, fence};

/// A slot for a value, initially empty.
#[derive(Debug)]
pub struct Slot<T> {
    /// Number of holders of the value; 0 if there is none.
    holders: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: holders share the value, and any of them may be the one that takes it out.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { holders: AtomicU32::new(0), value: UnsafeCell::new(None) }
    }
}

impl<T> Slot<T> {
    /// Puts a value into the slot. The caller becomes its holder.
    ///
    /// # Safety
    /// Only the caller fills the slot: it is new, or has been empty since [`Slot::release`]
    /// returned the last value to the caller, or to a thread that has left the slot to the caller.
    pub unsafe fn fill(&self, value: T) {
        // SAFETY: the caller guarantees that no other thread fills the slot, and an empty slot has
        // no holders.
        self.write(|place| unsafe { *place = Some(value) });
        self.holders.store(1, Ordering::Release);
    }

    /// Holds the current value, whichever it is. `false` if there is none.
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

    /// Holds the value once more.
    ///
    /// # Safety
    /// The caller holds the value.
    #[inline]
    pub unsafe fn hold_again(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a hold. Returns the value if it was the last one; the caller may fill the slot then.
    ///
    /// # Safety
    /// The caller holds the value, and does not use it afterwards.
    #[inline]
    #[must_use]
    pub unsafe fn release(&self) -> Option<T> {
        if self.holders.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        fence(Ordering::Acquire);
        // SAFETY: this was the last holder, and no thread can become one while the count is zero.
        self.write(|place| unsafe { (*place).take() })
    }

    /// The value.
    ///
    /// # Safety
    /// The caller holds the value for as long as it uses the reference.
    #[inline]
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: the caller holds the value, and it is not written while it has holders.
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
    fn empty_slot_cannot_be_held() {
        let slot = Slot::default();
        assert!(!slot.hold());
        // SAFETY: the slot is new.
        unsafe { slot.fill(7) };
        assert!(slot.hold());
        // SAFETY: the value is held twice.
        assert_eq!(unsafe { slot.get() }, Some(&7));
        // SAFETY: the value is held twice.
        assert_eq!(unsafe { slot.release() }, None);
        // SAFETY: the value is held once.
        assert_eq!(unsafe { slot.release() }, Some(7));
        assert!(!slot.hold());
    }
}

/// Model checks of all interleavings of lookups, closes and opens: `make test` runs them with
/// `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// A descriptor table with two numbers. Each contains the index of a slot plus one, or 0 if
    /// closed. The slot's value is the number.
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
            // SAFETY: the slot was spare.
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
            // SAFETY: the table or `find` holds the value.
            if unsafe { self.slots[index as usize].release() }.is_some() {
                let mut spare = self.spare.lock().expect("no panic");
                assert!(!spare.contains(&index), "given back once");
                spare.push(index);
            }
        }

        /// Looks up a number, and returns the value of its slot.
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
                    // SAFETY: the value is held.
                    let value = unsafe { self.slots[index as usize].get() }.copied();
                    self.release(index);
                    return Some(value.expect("a value is held"));
                }
                self.release(index);
            }
        }
    }

    /// A lookup finds the value of its number, or nothing, whatever is closed and opened meanwhile.
    #[test]
    fn lookup_during_close_and_open_finds_its_own_value() {
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

    /// The same if the number is opened again.
    #[test]
    fn lookup_during_reuse_of_its_number_finds_its_own_value() {
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
