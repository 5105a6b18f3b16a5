//! Locks of which a panic says nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is whole between any two steps, also if a thread has panicked with the lock; or what
/// is of no use then, which its user notices by what is in it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
