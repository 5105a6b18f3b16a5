//! Process-wide objects that a forked child must not share with its parent.
//!
//! # Safety
//! The object is leaked, so references to it are valid for ever. That includes a child, in which a
//! thread that held one of the object's locks does not exist: the child leaves the parent's object
//! untouched and makes its own.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::calls::io::Errno;
use crate::cancellation::Uncancelled;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

#[derive(Debug)]
struct Made<T> {
    generation: u32,
    value: T,
}

/// An object that is made lazily, at most once in each process.
#[derive(Debug)]
pub struct Forkable<T: 'static> {
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

impl<T: Sync + 'static> Forkable<T> {
    /// Creates the handle. `make` makes the object at the first use, and again at the first use in
    /// a child.
    pub const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// This process's object, which is made if there is none yet.
    pub fn get(&self) -> &'static T {
        let made = self.load();
        match made {
            Some(made) if made.generation == GENERATION.load(Ordering::Relaxed) => &made.value,
            _ => self.make(),
        }
    }

    /// This process's object, if it has been made.
    pub fn existing(&self) -> Option<&'static T> {
        let made = self.load()?;
        (made.generation == GENERATION.load(Ordering::Relaxed)).then_some(&made.value)
    }

    /// The parent's object, in a child that has not used its own yet. The caller must not lock
    /// anything in it.
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
            // If the handler cannot be registered, children share the object.
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
            // SAFETY: `fresh` came from `Box::leak` just now, and is never freed.
            Ok(_) => unsafe { &(*fresh).value },
            Err(other) => {
                // SAFETY: `fresh` came from `Box::leak`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: `other` came from another thread's `Box::leak`, and is never freed.
                unsafe { &(*other).value }
            }
        }
    }
}

/// Calls `handler` in every child that this process and its children fork from now on. The handler
/// must not take a lock that another thread could have held.
///
/// # Errors
/// `ENOMEM` if the C library cannot register it.
pub fn in_forked_child(handler: unsafe extern "C" fn()) -> Result<(), Errno> {
    // SAFETY: `handler` is a function, so it is valid for ever; the caller guarantees that it may
    // run in a child.
    let code = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code)) }
}

/// Replaces descriptors that a child inherited by `/dev/null`, so that the parent's connections end
/// with the parent. The numbers stay taken, because objects of the parent still name them.
pub fn neutralise(fds: impl Iterator<Item = RawFd>) {
    let _uncancelled = Uncancelled::begin(); // A fork is no cancellation point.
    // SAFETY: the path is a C string that lives during the call.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    for fd in fds {
        // SAFETY: both are descriptors of this process, and `fd` belongs to an object that this
        // process does not use any more.
        unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
    }
    // SAFETY: `null` was opened above, and nothing else uses it.
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
        assert_eq!(OBJECT.existing(), None);
        assert_eq!(OBJECT.get(), OBJECT.get());
        assert_eq!(OBJECT.existing(), Some(OBJECT.get()));
        assert_eq!(MADE.load(Ordering::SeqCst), 1);
        // SAFETY: the child only calls `get`, which allocates (glibc's allocator supports `fork`),
        // and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = OBJECT.existing().is_none();
            let fresh = none && *OBJECT.get() == 1 && OBJECT.get() == OBJECT.get();
            // SAFETY: `_exit` ends the child at once, and accesses no memory.
            unsafe { libc::_exit(if fresh { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable, and `child` is a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child made its own");
    }
}
