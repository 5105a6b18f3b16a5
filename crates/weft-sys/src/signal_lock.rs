//! A lock that a signal handler may take, whatever it has interrupted.
//!
//! # Safety
//! A signal set is an integer that the kernel reads and writes. What a [`SignalLock`] keeps while
//! it is frozen is accessed only while the lock is held.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::by_hand::system_call;
use crate::cancellation::Uncancelled;
use crate::lock::{Lock, LockGuard};

/// The kernel's signal set (`_NSIG / 8` bytes), which is shorter than the C library's.
pub(crate) type Mask = u64;

/// Signals that an instruction of the critical section itself could raise. If they were blocked,
/// they would kill the process.
pub const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The set of all other signals.
pub(crate) const ALL_BUT_FAULTS: Mask = {
    let (mut mask, mut at) = (Mask::MAX, 0);
    while at < FAULTS.len() {
        mask &= !(1 << (FAULTS[at] - 1));
        at += 1;
    }
    mask
};

/// Blocks the calling thread's signals until it is dropped, and its cancellation: a thread that is
/// cancelled must not leave a critical section.
#[derive(Debug)]
struct SignalsHeld {
    before: Mask,
    _uncancelled: Uncancelled,
}

impl SignalsHeld {
    /// Blocks the signals.
    fn begin() -> Self {
        let uncancelled = Uncancelled::begin();
        Self { before: set_mask(ALL_BUT_FAULTS), _uncancelled: uncancelled }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Replaces the calling thread's mask and returns the old one, without the C library, which never
/// blocks its own signals.
pub(crate) fn set_mask(mask: Mask) -> Mask {
    let mut before: Mask = 0;
    let how = libc::SIG_SETMASK as usize;
    let places = [&raw const mask as usize, &raw mut before as usize];
    let arguments = [how, places[0], places[1], size_of::<Mask>(), 0, 0];
    // SAFETY: both pointers are to local variables of the size of the kernel's signal set. The call
    // cannot fail then.
    let _ = unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    before
}

/// A [`Lock`] whose holder gets no signals. Taking and freeing it costs two system calls, so it is
/// for operations once per connection, not once per message.
pub struct SignalLock<T> {
    lock: Lock<T>,
    /// What ends when the lock is thawed.
    frozen: UnsafeCell<Option<SignalsHeld>>,
}

// SAFETY: only the holder of the lock, one thread at a time, accesses both fields. So a
// value that may move between threads (`Send`) may be shared behind the lock.
unsafe impl<T: Send> Sync for SignalLock<T> {}

impl<T> SignalLock<T> {
    /// Creates a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(value), frozen: UnsafeCell::new(None) }
    }

    /// Takes the lock. Waits while another thread holds it.
    pub fn lock(&self) -> SignalLockGuard<'_, T> {
        let signals = SignalsHeld::begin();
        SignalLockGuard { guard: self.lock.lock(), _signals: signals }
    }

    /// Takes the lock across a fork, like [`Lock::freeze`]. Several locks are thawed in the reverse
    /// order, because each restores the mask that it found.
    pub fn freeze(&self) {
        let signals = SignalsHeld::begin();
        self.lock.freeze();
        // SAFETY: the lock is held.
        unsafe { *self.frozen.get() = Some(signals) };
    }

    /// Frees a lock that [`SignalLock::freeze`] took.
    ///
    /// # Safety
    /// Those of [`Lock::thaw`].
    pub unsafe fn thaw(&self) {
        // SAFETY: the lock is held on behalf of the caller.
        let signals = unsafe { (*self.frozen.get()).take() };
        // SAFETY: the caller fulfils the conditions of `Lock::thaw`.
        unsafe { self.lock.thaw() };
        drop(signals);
    }
}

impl<T> fmt::Debug for SignalLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalLock").finish_non_exhaustive()
    }
}

/// Exclusive access to the value of a [`SignalLock`], until dropped. The lock is freed before
/// signals are unblocked, because fields are dropped in order.
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
    fn handler_waits_until_the_lock_is_free() {
        // SAFETY: `sigaction` consists of integers and pointers, for which zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler lives for ever, and only takes the lock.
        let set = unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        // SAFETY: the signal is handled, and goes to this thread.
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
        // SAFETY: this thread has frozen the lock above.
        unsafe { COUNT.thaw() };
        assert_eq!((HANDLED.load(Ordering::SeqCst), *COUNT.lock()), (2, 12));
    }
}
