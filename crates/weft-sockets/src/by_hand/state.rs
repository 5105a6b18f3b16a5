//! Whether calls by hand are seen.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::switch;
use crate::reason;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// No socket yet.
    Idle,
    /// Some thread is at it.
    Beginning,
    /// Threads are being armed, or all are.
    Armed,
    /// It is not to be had, or not wanted (any more).
    Off,
}

static STATE: AtomicU32 = AtomicU32::new(State::Idle as u32);

/// It has come so far.
pub(super) fn become_state(state: State) {
    STATE.store(state as u32, Ordering::Release);
}

/// It has come from one state to the next. Whether it was this thread that has brought it there.
pub(super) fn advance(before: State, now: State) -> bool {
    let (before, now) = (before as u32, now as u32);
    STATE.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Whether it is there.
pub(super) fn is(state: State) -> bool {
    STATE.load(Ordering::Acquire) == state as u32
}

/// From here on calls by hand are the kernel's: the process is on TCP for good.
pub(crate) fn give_up() {
    let before = STATE.swap(State::Off as u32, Ordering::AcqRel);
    if before == State::Armed as u32 {
        switch::let_all_through();
    }
}

/// Says once that connections wait for threads that are not armed.
#[cold]
pub(super) fn tell_waiting(threads: usize) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        reason::write_with(|line| {
            write!(
                line,
                "connections stay on tcp while calls by hand of {threads} threads cannot be seen"
            )
        });
    }
}
