//! What the program's signal handlers mean for calls that they interrupt.
//!
//! # Safety
//! The kernel is only asked, and its answers go into local variables.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// Whether calls that handled signals interrupt go on (`SA_RESTART`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Handlers {
    /// To be asked for.
    Unknown,
    /// All say so, or there are none.
    Restart,
    /// None says so.
    Interrupt,
    /// Some do, some do not.
    Differ,
}

/// What is known of the handlers, and above it how often one has been set: what was found before
/// another thread set one is not kept.
static HANDLERS: AtomicU32 = AtomicU32::new(Handlers::Unknown as u32);
/// The bits of [`Handlers`] in it.
const KNOWN: u32 = 0b11;

/// The program has set a handler.
pub(crate) fn changed() {
    let next = |it: u32| Some((it & !KNOWN).wrapping_add(KNOWN + 1) | Handlers::Unknown as u32);
    let _ = HANDLERS.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// Whether a call that a signal has interrupted goes on: each handler says so for its signal
/// (`SA_RESTART`), and which one it was is not known. Those that say neither do not count.
pub(crate) fn restart() -> bool {
    known() == Handlers::Restart as u32
}

/// Whether only the kernel can say whether a call goes on that a signal interrupts.
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
        // SAFETY: only asks; the place for the answer is a local variable.
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
    // A handler that was set meanwhile is asked for next time.
    let _ = HANDLERS.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed);
    found as u32
}
