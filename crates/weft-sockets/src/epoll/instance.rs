//! The lock of an instance, and recheck requests for the thread that holds it.

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use weft_sys::SectionGuard;

use super::{Epoll, Watches};

/// The held lock of an instance's watches.
pub(super) struct Locked<'a> {
    instance: &'a Epoll,
    guard: Option<SectionGuard<'a, Watches, true>>,
}

impl Deref for Locked<'_> {
    type Target = Watches;
    fn deref(&self) -> &Watches {
        let Some(guard) = &self.guard else { unreachable!("taken by `drop` alone") };
        guard
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Watches {
        let Some(guard) = &mut self.guard else { unreachable!("taken by `drop` alone") };
        guard
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.instance.follow_note();
    }
}

impl Epoll {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { instance: self, guard: Some(self.watches.lock()) }
    }

    /// Returns a descriptor of the instance for the kernel's calls.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Requests a check whether a sleeper has to be woken. The caller does it, or the thread that
    /// holds the lock. The caller does not wait for the lock: it may be in a signal handler that
    /// has interrupted the holder.
    pub(super) fn leave_note(&self) {
        self.notes.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.follow_note();
    }

    /// Handles a recheck request, unless another thread holds the lock: that thread then does it.
    pub(super) fn follow_note(&self) {
        while self.notes.load(Ordering::SeqCst) != 0 {
            let Some(mut watches) = self.watches.try_lock() else { return };
            if self.notes.swap(0, Ordering::SeqCst) != 0 {
                watches.recheck(self.fd());
            }
            drop(watches);
            fence(Ordering::SeqCst);
        }
    }
}
