//! The mutexes inside C structures, which stay locked across calls of a program, from the start of
//! a batch to its end.
//!
//! # Safety
//! The functions take mutexes that were initialised with the structure.
#![allow(unsafe_code)]

use libc::pthread_mutex_t;

/// Locks a mutex.
///
/// # Safety
/// `mutex` must be initialised, live, and not locked by this thread.
pub(crate) unsafe fn lock(mutex: *mut pthread_mutex_t) {
    // SAFETY: the caller guarantees that the mutex is initialised, live, and not locked by this
    // thread, so that locking cannot fail.
    unsafe { libc::pthread_mutex_lock(mutex) };
}

/// Unlocks a mutex.
///
/// # Safety
/// `mutex` must be locked by this thread.
pub(crate) unsafe fn unlock(mutex: *mut pthread_mutex_t) {
    // SAFETY: the caller guarantees that this thread has locked the mutex.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}
