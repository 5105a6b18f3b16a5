//! A mutual-exclusion lock for short critical sections on the data path.
//!
//! # Safety
//! The value is accessible only through a [`LockGuard`], and at most one guard exists at a time.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::futex::Futex;
use crate::limits::LOCK_SPINS_MAX;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Longest sleep of a thread before it checks again whether a plain [`Lock`] is free.
const SLEEP_TIME: Duration = Duration::from_micros(100);

/// A futex lock without poisoning: a critical section must not panic half-way.
///
/// Without contention it is taken by one compare-and-swap and freed by one store. A second atomic
/// operation would wait until the stores before it have got their cache lines, which another
/// process may own; the plain store does not. It may miss a thread that begins to wait at that
/// moment, which then sleeps for `SLEEP_TIME`.
///
/// With `KEEPS_NOTES` the lock can pass on work. A thread stores a note (sequentially consistent)
/// and then calls [`Lock::try_lock`]. If that fails, the holder is guaranteed to find the note when
/// it checks (likewise) after it has released the lock. This needs an atomic operation for the
/// release, too.
pub struct Lock<T, const KEEPS_NOTES: bool = false> {
    state: Futex,
    value: UnsafeCell<T>,
}

/// A lock whose holder finds the notes of threads that found it taken.
pub type NoteLock<T> = Lock<T, true>;

// SAFETY: the lock gives the value to one thread at a time, so `T: Send` is sufficient.
unsafe impl<T: Send, const KEEPS_NOTES: bool> Sync for Lock<T, KEEPS_NOTES> {}

impl<T, const KEEPS_NOTES: bool> Lock<T, KEEPS_NOTES> {
    /// Creates a free lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { state: Futex::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Creates a free lock around `value`; in a model check this cannot be `const`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { state: Futex::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. Waits while another thread holds it.
    pub fn lock(&self) -> LockGuard<'_, T, KEEPS_NOTES> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        self.lock_slow();
        LockGuard { lock: self }
    }

    /// Takes the lock if no thread holds it.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T, KEEPS_NOTES>> {
        // `then`, not `then_some`, which would create a guard in any case, and drop it.
        self.try_take().then(|| LockGuard { lock: self })
    }

    /// Takes the lock for longer than a scope: across a fork, so that the child, which has only one
    /// thread, finds it in a known state. [`Lock::thaw`] frees it, in parent and child.
    pub fn freeze(&self) {
        std::mem::forget(self.lock());
    }

    /// Frees a lock that [`Lock::freeze`] took.
    ///
    /// # Safety
    /// The calling thread, or in a forked child its copy in the parent, has frozen the lock and has
    /// not thawed it since.
    pub unsafe fn thaw(&self) {
        drop(LockGuard { lock: self });
    }

    /// The value of a frozen lock.
    ///
    /// # Safety
    /// The conditions of [`Lock::thaw`] hold, and the reference is not used after thawing.
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: the lock is held on behalf of the caller, so no guard exists.
        unsafe { &*self.value.get() }
    }

    /// The value, through exclusive ownership of the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..LOCK_SPINS_MAX {
            if self.state.load(Ordering::Relaxed) == FREE && self.try_take() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            // A wait may end too early, and the loop checks again.
            self.state.wait(CONTENDED, (!KEEPS_NOTES).then_some(SLEEP_TIME));
        }
    }

    fn try_take(&self) -> bool {
        // Sequentially consistent because of notes: see the type.
        self.state.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl<T, const KEEPS_NOTES: bool> fmt::Debug for Lock<T, KEEPS_NOTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// Exclusive access to the value of a [`Lock`], until dropped.
pub struct LockGuard<'a, T, const KEEPS_NOTES: bool = false> {
    lock: &'a Lock<T, KEEPS_NOTES>,
}

// SAFETY: sharing the guard shares only `&T`.
unsafe impl<T: Sync, const KEEPS_NOTES: bool> Sync for LockGuard<'_, T, KEEPS_NOTES> {}

impl<T, const KEEPS_NOTES: bool> Deref for LockGuard<'_, T, KEEPS_NOTES> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, and borrows the value for its own lifetime.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const KEEPS_NOTES: bool> DerefMut for LockGuard<'_, T, KEEPS_NOTES> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and it is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const KEEPS_NOTES: bool> Drop for LockGuard<'_, T, KEEPS_NOTES> {
    fn drop(&mut self) {
        let state = &self.lock.state;
        if !KEEPS_NOTES && state.load(Ordering::Relaxed) == HELD {
            state.store(FREE, Ordering::Release);
        } else if state.swap(FREE, Ordering::SeqCst) == CONTENDED {
            state.wake_one();
        }
    }
}

impl<T: fmt::Debug, const KEEPS_NOTES: bool> fmt::Debug for LockGuard<'_, T, KEEPS_NOTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn count_under_contention<const KEEPS_NOTES: bool>() {
        let lock = Arc::new(Lock::<u64, KEEPS_NOTES>::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        *lock.lock() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn counts_under_contention() {
        count_under_contention::<false>();
        count_under_contention::<true>();
    }

    #[test]
    fn try_lock_sees_a_holder() {
        let lock = NoteLock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}

/// Model checks of all interleavings: `make test` runs them with `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::thread;

    /// A value on which loom reports unordered accesses.
    struct Watched(UnsafeCell<u32>);

    impl Watched {
        fn add_one(&mut self) {
            // SAFETY: the value is borrowed exclusively; loom checks that threads really take
            // turns.
            self.0.with_mut(|value| unsafe { *value += 1 });
        }

        fn get(&self) -> u32 {
            // SAFETY: no thread writes while the value is borrowed; loom checks that, too.
            self.0.with(|value| unsafe { *value })
        }
    }

    fn watched<const KEEPS_NOTES: bool>() -> Arc<Lock<Watched, KEEPS_NOTES>> {
        Arc::new(Lock::new(Watched(UnsafeCell::new(0))))
    }

    /// The lock admits one thread at a time, each of which sees the changes of the one before, and
    /// no sleeper is forgotten (loom reports threads that sleep for ever).
    #[test]
    fn threads_take_turns() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let lock = watched::<true>();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || lock.lock().add_one())
                })
                .collect();
            lock.lock().add_one();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert_eq!(lock.lock().get(), 3);
        });
    }

    /// The same with a lock that is freed by a store. No thread waits here: loom would try every
    /// delay of that store, of which there are infinitely many.
    #[test]
    fn store_that_frees_the_lock_publishes_its_data() {
        loom::model(|| {
            fn try_to_add(lock: &Lock<Watched>) -> u32 {
                lock.try_lock().map_or(0, |mut guard| {
                    guard.add_one();
                    1
                })
            }
            let lock = watched();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || try_to_add(&lock))
                })
                .collect();
            let mut added = try_to_add(&lock);
            for thread in threads {
                added += thread.join().expect("no panic");
            }
            assert_eq!(lock.lock().get(), added);
        });
    }

    /// The handshake of a queue pair's `drive`: a thread that finds the lock taken leaves a note
    /// and returns, and the holder does that work, too.
    #[test]
    fn holder_finds_the_note_of_a_failed_try_lock() {
        fn drive(lock: &NoteLock<Watched>, note: &AtomicU32) {
            note.fetch_or(1, Ordering::SeqCst);
            // Loom treats sequentially consistent loads as weaker ones; its fences are exact.
            fence(Ordering::SeqCst);
            while note.load(Ordering::SeqCst) != 0 {
                let Some(mut guard) = lock.try_lock() else { return };
                if note.swap(0, Ordering::SeqCst) != 0 {
                    guard.add_one();
                }
                drop(guard);
                fence(Ordering::SeqCst);
            }
        }
        loom::model(|| {
            let lock = watched();
            let note = Arc::new(AtomicU32::new(0));
            let other = {
                let (lock, note) = (Arc::clone(&lock), Arc::clone(&note));
                thread::spawn(move || drive(&lock, &note))
            };
            drive(&lock, &note);
            other.join().expect("no panic");
            assert_eq!(note.load(Ordering::SeqCst), 0, "no note is left");
            assert_ne!(lock.lock().get(), 0);
        });
    }
}
