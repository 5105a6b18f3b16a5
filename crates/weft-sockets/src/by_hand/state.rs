//! Whether calls by hand are seen.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::outside::{self, Outside, outside};
use super::{stacks, threads};
use crate::reason;
use crate::settings::{self, ByHand};

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

pub(super) fn is(state: State) -> bool {
    STATE.load(Ordering::Acquire) == state as u32
}

/// The process begins.
pub(crate) fn read(outside: Outside) {
    outside::set(outside);
    stacks::note_main();
    if !settings::enabled() || settings::by_hand() == ByHand::Trust {
        STATE.store(State::Off as u32, Ordering::Release);
    }
}

/// The process is about to have a socket of ours.
#[inline]
pub(crate) fn begin() {
    if is(State::Idle) {
        begin_once();
    }
}

#[cold]
fn begin_once() {
    let (before, now) = (State::Idle as u32, State::Beginning as u32);
    if STATE.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return; // Another thread's socket; a connection waits until all threads are armed.
    }
    match threads::arm_process() {
        Ok(()) => {
            STATE.store(State::Armed as u32, Ordering::Release);
            threads::arm_others();
        }
        Err(why) => {
            STATE.store(State::Off as u32, Ordering::Release);
            (outside().keep_on_tcp)(why);
        }
    }
}

/// Whether a connection may leave TCP: no thread makes calls that are not seen.
#[inline]
pub(crate) fn is_ready() -> bool {
    is(State::Off) || threads::are_all_armed()
}

/// From here on calls by hand are the kernel's: the process is on TCP for good.
pub(crate) fn give_up() {
    let before = STATE.swap(State::Off as u32, Ordering::AcqRel);
    if before == State::Armed as u32 {
        threads::let_all_through();
    }
}

/// A fork's child is one thread, of which the kernel reports nothing until it is armed again.
pub(crate) fn in_child() {
    if is(State::Armed) {
        threads::forget_others();
        if let Err(why) = threads::arm() {
            give_up();
            (outside().keep_on_tcp)(why);
        }
    }
}

/// Says once that connections wait for threads that are not armed.
#[cold]
pub(super) fn tell_waiting(threads: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        reason::write_with(|line| {
            write!(
                line,
                "connections stay on tcp while calls by hand of {threads} threads cannot be seen"
            )
        });
    }
}
