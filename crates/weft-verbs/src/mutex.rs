//! The mutexes inside C structures. They may stay locked across calls of a program: from the start
//! of a batch to its end.
//!
//! # Safety
//! The functions take mutexes that the structure's maker has initialised.
#![allow(unsafe_code)]

use libc::pthread_mutex_t;

/// Locks a mutex.
///
/// # Safety
/// It must be initialised, live, and not locked by this thread.
pub(crate) unsafe fn lock(mutex: *mut pthread_mutex_t) {
    // SAFETY: the caller's promise. A plain mutex fails only where that is broken.
    unsafe { libc::pthread_mutex_lock(mutex) };
}

/// Unlocks a mutex.
///
/// # Safety
/// It must be locked by this thread.
pub(crate) unsafe fn unlock(mutex: *mut pthread_mutex_t) {
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}
