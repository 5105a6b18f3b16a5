//! Whether Weft carries connections in this process, and may still make system calls for them.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any connection may be carried.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// Whether the process has fallen back: see [`crate::seccomp_fallback`].
static IN_FALLBACK: AtomicBool = AtomicBool::new(false);

/// Whether a seccomp filter may kill the process for system calls that are not the program's.
static MAY_NOT_CALL: AtomicBool = AtomicBool::new(false);

/// Has sockets carried from here on.
pub(crate) fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Carries no further connections; those in memory continue.
pub(crate) fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Returns whether sockets may be carried.
#[inline]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Enters the fallback. Returns whether this call has done it.
pub(crate) fn enter_fallback() -> bool {
    ENABLED.swap(false, Ordering::Relaxed) && !IN_FALLBACK.swap(true, Ordering::Relaxed)
}

/// Records that the program has installed a seccomp filter itself.
pub(crate) fn give_up_calls() {
    MAY_NOT_CALL.store(true, Ordering::Relaxed);
}

/// Returns whether this process must make no system calls of its own.
#[inline]
pub(crate) fn may_not_call() -> bool {
    MAY_NOT_CALL.load(Ordering::Relaxed)
}

/// Returns whether the process has fallen back, because of a filter or of calls that Weft cannot
/// see.
#[inline]
pub(crate) fn is_in_fallback() -> bool {
    IN_FALLBACK.load(Ordering::Relaxed)
}
