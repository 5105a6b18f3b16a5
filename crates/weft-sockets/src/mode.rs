//! Whether this process carries anything, and whether it may still make system calls for that.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anything is carried at all.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// Whether the program may make no system calls but its own: see [`crate::seccomp_fallback`].
static IN_FALLBACK: AtomicBool = AtomicBool::new(false);

/// Whether it may be killed for one that is not the program's.
static MAY_NOT_CALL: AtomicBool = AtomicBool::new(false);

/// Sockets are looked at from here on.
pub(crate) fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Nothing is carried any more but what is on its way.
pub(crate) fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Whether sockets are to be looked at.
#[inline]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// The program is about to give up system calls. Whether that is news.
pub(crate) fn enter_fallback() -> bool {
    ENABLED.swap(false, Ordering::Relaxed) && !IN_FALLBACK.swap(true, Ordering::Relaxed)
}

/// The program gives up system calls of its own will.
pub(crate) fn give_up_calls() {
    MAY_NOT_CALL.store(true, Ordering::Relaxed);
}

/// Whether this process makes no system calls but the program's, for that reason.
#[inline]
pub(crate) fn may_not_call() -> bool {
    MAY_NOT_CALL.load(Ordering::Relaxed)
}

/// Whether the program has given up system calls, or does what cannot be seen.
#[inline]
pub(crate) fn is_in_fallback() -> bool {
    IN_FALLBACK.load(Ordering::Relaxed)
}
