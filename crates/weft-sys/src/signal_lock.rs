//! A lock that a signal's handler may take, whatever it has interrupted.
//!
//! # Safety
//! A signal set is plain data that the kernel reads and writes. The mask in a [`SignalLock`] is
//! read and written only while the lock is held.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::by_hand::system_call;
use crate::lock::{Lock, LockGuard};

/// The kernel's signal set (`_NSIG / 8` bytes), which is shorter than the C library's.
pub(crate) type Mask = u64;

/// Signals that an instruction of the section itself would raise: held off, they kill the process.
pub const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// All signals but those, as a set.
pub(crate) const ALL_BUT_FAULTS: Mask = {
    let (mut mask, mut at) = (Mask::MAX, 0);
    while at < FAULTS.len() {
        mask &= !(1 << (FAULTS[at] - 1));
        at += 1;
    }
    mask
};

/// Holds the calling thread's signals off until it is dropped, those of the C library included: a
/// thread that is cancelled must not leave a section.
#[derive(Debug)]
pub struct SignalsHeld(Mask);

impl SignalsHeld {
    /// Holds them off from here on.
    #[must_use]
    pub fn begin() -> Self {
        Self(set_mask(ALL_BUT_FAULTS))
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Replaces the calling thread's mask, without the C library, which leaves its own signals out.
pub(crate) fn set_mask(mask: Mask) -> Mask {
    let mut before: Mask = 0;
    let how = libc::SIG_SETMASK as usize;
    let places = [&raw const mask as usize, &raw mut before as usize];
    let arguments = [how, places[0], places[1], size_of::<Mask>(), 0, 0];
    // SAFETY: both places are as long as the kernel's signal set. It cannot fail then.
    let _ = unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    before
}

/// A [`Lock`] whose holder gets no signals. Taking and freeing it costs two system calls, so it is
/// for what is done once a connection, and not once a message.
pub struct SignalLock<T> {
    lock: Lock<T>,
    /// The mask to go back to when the lock is thawed.
    frozen: UnsafeCell<Mask>,
}

// SAFETY: the value is reached by one thread at a time, the lock's holder, as is the mask; so a
// value that may go from thread to thread (`Send`) may be shared behind the lock.
unsafe impl<T: Send> Sync for SignalLock<T> {}

impl<T> SignalLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(value), frozen: UnsafeCell::new(0) }
    }

    /// Takes the lock, waiting while another thread holds it.
    pub fn lock(&self) -> SignalLockGuard<'_, T> {
        let signals = SignalsHeld::begin();
        SignalLockGuard { guard: self.lock.lock(), _signals: signals }
    }

    /// Takes the lock over a fork, as [`Lock::freeze`] does. Several are thawed in the reverse
    /// order, as each restores the mask that it found.
    pub fn freeze(&self) {
        let signals = SignalsHeld::begin();
        self.lock.freeze();
        // SAFETY: the lock is held.
        unsafe { *self.frozen.get() = signals.0 };
        std::mem::forget(signals);
    }

    /// Frees what [`SignalLock::freeze`] took.
    ///
    /// # Safety
    /// As for [`Lock::thaw`].
    pub unsafe fn thaw(&self) {
        // SAFETY: the lock is held on behalf of the caller.
        let mask = unsafe { *self.frozen.get() };
        // SAFETY: the caller's promise.
        unsafe { self.lock.thaw() };
        set_mask(mask);
    }
}

impl<T> fmt::Debug for SignalLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalLock").finish_non_exhaustive()
    }
}

/// Exclusive access to the value of a [`SignalLock`], until dropped. The lock is freed before the
/// signals come: fields are dropped in this order.
pub struct SignalLockGuard<'a, T> {
    guard: LockGuard<'a, T>,
    _signals: SignalsHeld,
}

impl<T> Deref for SignalLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for SignalLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for SignalLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static COUNT: SignalLock<u32> = SignalLock::new(0);
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        *COUNT.lock() += 1;
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_handler_waits_for_the_section_that_it_would_interrupt() {
        // SAFETY: a structure of integers and pointers, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler lives for ever and only takes the lock.
        let set = unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        // SAFETY: sends a signal that is handled to this thread.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
        let mut held = COUNT.lock();
        raise();
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0, "the section goes on undisturbed");
        *held += 10;
        drop(held);
        assert_eq!((HANDLED.load(Ordering::SeqCst), *COUNT.lock()), (1, 11));

        COUNT.freeze();
        raise();
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1, "frozen as well");
        // SAFETY: frozen above, by this thread.
        unsafe { COUNT.thaw() };
        assert_eq!((HANDLED.load(Ordering::SeqCst), *COUNT.lock()), (2, 12));
    }
}
