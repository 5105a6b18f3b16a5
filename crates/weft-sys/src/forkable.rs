//! A process-wide object that a forked child must not share with its parent.
//!
//! # Safety
//! The object is leaked, so that references to it are valid for ever, also in a child, where a
//! thread that held one of its locks does not exist any more: the child leaves the parent's object
//! untouched and makes its own.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

/// A lazily made object, at most one a process.
#[derive(Debug)]
pub struct Forkable<T: 'static> {
    current: AtomicPtr<T>,
    make: fn() -> T,
}

impl<T: Sync + 'static> Forkable<T> {
    /// An object that `make` makes at the first use.
    pub const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// This process's object, made now if there is none.
    pub fn get(&self) -> &'static T {
        self.existing().unwrap_or_else(|| self.make())
    }

    /// This process's object, if it has been made.
    pub fn existing(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null or came from `Box::leak` below and is never freed.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// Forgets the object; to be called in a forked child only. What it was, for clean-up that
    /// takes no lock.
    pub fn abandon(&self) -> Option<&'static T> {
        // SAFETY: as in `existing`.
        unsafe { self.current.swap(std::ptr::null_mut(), Ordering::AcqRel).as_ref() }
    }

    #[cold]
    fn make(&self) -> &'static T {
        let fresh: *mut T = Box::leak(Box::new((self.make)()));
        let won = self.current.compare_exchange(
            std::ptr::null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match won {
            // SAFETY: leaked just now, never freed.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: `fresh` came from a `Box` and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: another thread's leaked object, never freed.
                unsafe { &*other }
            }
        }
    }
}

/// Calls `handler` in every child that this process forks from now on.
///
/// # Errors
/// `ENOMEM` when the C library cannot remember it.
pub fn in_forked_child(handler: unsafe extern "C" fn()) -> Result<(), rustix::io::Errno> {
    // SAFETY: `handler` is a function that lives for ever. What it may do in a child of a process
    // with threads is its own concern: it must take no lock that another thread could have held.
    let code = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
    if code == 0 { Ok(()) } else { Err(rustix::io::Errno::from_raw_os_error(code)) }
}
