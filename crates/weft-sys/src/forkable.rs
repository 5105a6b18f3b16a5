//! Process-wide objects that a forked child must not share with its parent.
//!
//! # Safety
//! The object is leaked, so that references to it are valid for ever, also in a child, where a
//! thread that held one of its locks does not exist any more: the child leaves the parent's object
//! untouched and makes its own.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

#[derive(Debug)]
struct Made<T> {
    generation: u32,
    value: T,
}

/// A lazily made object, at most one a process.
#[derive(Debug)]
pub struct Forkable<T: 'static> {
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

impl<T: Sync + 'static> Forkable<T> {
    /// An object that `make` makes at the first use, and again at the first use in a child.
    pub const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// This process's object, made now if there is none.
    pub fn get(&self) -> &'static T {
        let made = self.load();
        match made {
            Some(made) if made.generation == GENERATION.load(Ordering::Relaxed) => &made.value,
            _ => self.make(),
        }
    }

    /// In a child that has not used the object yet: the parent's, for a look that takes no lock.
    pub fn inherited(&self) -> Option<&'static T> {
        self.load().map(|made| &made.value)
    }

    fn load(&self) -> Option<&'static Made<T>> {
        // SAFETY: the pointer is null or came from `Box::leak` below and is never freed.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn make(&self) -> &'static T {
        static COUNTING: AtomicBool = AtomicBool::new(false);
        if !COUNTING.swap(true, Ordering::AcqRel) {
            // Without memory for the handler, children share the object: no worse than no handler.
            let _ = in_forked_child(count_fork);
        }
        let generation = GENERATION.load(Ordering::Acquire);
        let old = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::leak` below and is never freed.
        if let Some(made) = unsafe { old.as_ref() }
            && made.generation == generation
        {
            return &made.value;
        }
        let value = (self.make)();
        let fresh: *mut Made<T> = Box::leak(Box::new(Made { generation, value }));
        let won = self.current.compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire);
        match won {
            // SAFETY: leaked just now, never freed.
            Ok(_) => unsafe { &(*fresh).value },
            Err(other) => {
                // SAFETY: `fresh` came from a `Box` and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: another thread's leaked object, never freed.
                unsafe { &(*other).value }
            }
        }
    }
}

/// Calls `handler` in every child that this process and its children fork from now on. It may take
/// no lock that another thread could have held.
///
/// # Errors
/// `ENOMEM` when the C library cannot remember it.
pub fn in_forked_child(handler: unsafe extern "C" fn()) -> Result<(), Errno> {
    // SAFETY: `handler` is a function that lives for ever; what it does is its own concern.
    let code = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code)) }
}

/// Makes descriptors that a child inherited stand for nothing, so that the parent's connections end
/// with the parent. Their numbers stay taken: objects of the parent's still name them.
pub fn neutralise(fds: impl Iterator<Item = RawFd>) {
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    for fd in fds {
        // SAFETY: both are descriptors of this process; `fd` belongs to an object that nobody uses
        // in this process any more.
        unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
    }
    // SAFETY: opened above and used by nothing else.
    unsafe { libc::close(null) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static MADE: AtomicU32 = AtomicU32::new(0);
    static OBJECT: Forkable<u32> = Forkable::new(|| MADE.fetch_add(1, Ordering::SeqCst));

    #[test]
    fn object_is_made_once_per_process_and_again_in_a_child() {
        assert_eq!(OBJECT.get(), OBJECT.get());
        assert_eq!(MADE.load(Ordering::SeqCst), 1);
        // SAFETY: the child calls nothing but `get`, an allocation with glibc's own fork handling,
        // and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fresh = *OBJECT.get() == 1 && OBJECT.get() == OBJECT.get();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fresh { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place, `child` is our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child made its own");
    }
}
