//! Whether Weft sees calls by hand.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::switch;
use crate::reason;

/// The state of watching calls by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// The process has no socket yet.
    Idle,
    /// A thread is arming the process.
    Beginning,
    /// Threads are being armed, or all are.
    Armed,
    /// Watching is impossible, not wanted, or given up.
    Off,
}

static STATE: AtomicU32 = AtomicU32::new(State::Idle as u32);

/// Sets the state.
pub(super) fn become_state(state: State) {
    STATE.store(state as u32, Ordering::Release);
}

/// Changes the state from `before` to `now`. Returns whether this thread has done it.
pub(super) fn advance(before: State, now: State) -> bool {
    let (before, now) = (before as u32, now as u32);
    STATE.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Returns whether the state is `state`.
pub(super) fn is(state: State) -> bool {
    STATE.load(Ordering::Acquire) == state as u32
}

/// Stops watching: the kernel executes calls by hand, and the process stays on TCP for good.
pub(crate) fn give_up() {
    let before = STATE.swap(State::Off as u32, Ordering::AcqRel);
    if before == State::Armed as u32 {
        switch::let_all_through();
    }
}

/// Logs once that connections wait for threads that are not armed.
#[cold]
pub(super) fn log_waiting(threads: usize) {
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
