//! Threads of our own inside somebody else's process.
//!
//! # Safety
//! Signal masks are plain values that the C library fills in.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::forkable::Forkable;

/// Threads of ours that have started. A child has none of them.
static QUIET: Forkable<AtomicUsize> = Forkable::new(|| AtomicUsize::new(0));

/// How many threads that [`spawn_quiet`] has started live in this process; perhaps fewer while one
/// is about to start or to end, but never more.
pub(crate) fn quiet_threads() -> usize {
    QUIET.get().load(Ordering::SeqCst)
}

/// Starts a detached thread that receives none of the program's signals.
///
/// # Errors
/// `EAGAIN` when the process may have no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is a valid place for a signal set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was filled above, `before` is a valid place for the old mask. The mask is the
    // calling thread's only; the new thread inherits it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let body = move || {
        QUIET.get().fetch_add(1, Ordering::SeqCst);
        body();
        QUIET.get().fetch_sub(1, Ordering::SeqCst);
    };
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned.map(drop).map_err(|_| Errno::AGAIN)
}
