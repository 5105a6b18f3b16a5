//! Weft's own threads in the process of a program, and the program's.
//!
//! # Safety
//! Signal masks consist of integers that the C library fills in. `pthread_self` has no conditions.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::io::Errno;
use crate::forkable::Forkable;

/// Number of Weft's threads that have started. A child has none of them.
static QUIET: Forkable<AtomicUsize> = Forkable::new(|| AtomicUsize::new(0));

/// Number of threads started by [`spawn_quiet`] that live in this process. It may be too low while
/// one is starting or ending, but never too high.
pub(crate) fn quiet_threads() -> usize {
    QUIET.get().load(Ordering::SeqCst)
}

/// Returns a number that no other living thread of the process has. A signal handler may ask, too;
/// there is no system call.
#[must_use]
pub fn thread_number() -> usize {
    // SAFETY: the function has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// Starts a detached thread that receives none of the program's signals. Only `SIGBUS` is not
/// blocked, which is raised by the thread's own access to a file that was cut off: blocked, it
/// would end the process instead of being handled.
///
/// # Errors
/// `EAGAIN` if the process may have no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is a local variable of the type of a signal set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was filled above.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS) };
    // SAFETY: `all` was filled above, and `before` is a local variable for the old mask. Only the
    // calling thread's mask changes; the new thread inherits it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let body = move || {
        QUIET.get().fetch_add(1, Ordering::SeqCst);
        body();
        QUIET.get().fetch_sub(1, Ordering::SeqCst);
    };
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    // SAFETY: the call above has filled `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned.map(drop).map_err(|_| Errno::AGAIN)
}
