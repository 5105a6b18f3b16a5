//! Tells whether a call that a signal interrupts restarts.
//!
//! # Safety
//! The kernel writes its answers to local variables.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// Whether the program's handlers restart interrupted calls (`SA_RESTART`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Handlers {
    /// The kernel has to be asked.
    Unknown,
    /// All handlers do, or there are none.
    Restart,
    /// No handler does.
    Interrupt,
    /// Some handlers do.
    Differ,
}

/// The cached answer, and above it a count of handler changes, so that an answer from before
/// another thread's change is not kept.
static HANDLERS: AtomicU32 = AtomicU32::new(Handlers::Unknown as u32);
/// The bits of [`Handlers`] in the word.
const KNOWN: u32 = 0b11;

/// Invalidates the answer, because the program has set a handler.
pub(crate) fn changed() {
    let next = |it: u32| Some((it & !KNOWN).wrapping_add(KNOWN + 1) | Handlers::Unknown as u32);
    let _ = HANDLERS.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// Returns whether a call that a signal has interrupted restarts. It does if every handler has
/// `SA_RESTART`: which one has run is not known.
pub(crate) fn restart() -> bool {
    known() == Handlers::Restart as u32
}

/// Returns whether the handlers differ, so that only the kernel can decide whether a call restarts.
pub(crate) fn differ() -> bool {
    known() == Handlers::Differ as u32
}

fn known() -> u32 {
    let before = HANDLERS.load(Ordering::Acquire);
    if before & KNOWN != Handlers::Unknown as u32 {
        return before & KNOWN;
    }
    let (mut any, mut all) = (false, true);
    for signal in 1..32 {
        // SAFETY: a structure of integers and pointers, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads the action, into a local variable.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        let handler = action.sa_sigaction;
        if known && handler != libc::SIG_DFL && handler != libc::SIG_IGN {
            let restarts = action.sa_flags & libc::SA_RESTART != 0;
            (any, all) = (any | restarts, all & restarts);
        }
    }
    let found = match (any, all) {
        (_, true) => Handlers::Restart,
        (true, false) => Handlers::Differ,
        (false, false) => Handlers::Interrupt,
    };
    let now = before | found as u32;
    // If a handler was set meanwhile the next call asks again.
    let _ = HANDLERS.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed);
    found as u32
}
