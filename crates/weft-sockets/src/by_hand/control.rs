//! When calls by hand are to be seen.

use super::outside::{self, Outside, outside};
use super::state::{State, advance, become_state, give_up, is};
use super::switch::arm;
use super::{stacks, threads, trap};
use crate::mode;
use crate::settings::{self, ByHand};

/// The process begins.
pub(crate) fn read(outside: Outside) {
    outside::set(outside);
    stacks::note_main();
    if !mode::enabled() || settings::by_hand() == ByHand::Trust {
        become_state(State::Off);
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
    if !advance(State::Idle, State::Beginning) {
        return; // Another thread's socket; a connection waits until all threads are armed.
    }
    match threads::arm_process(trap::handle) {
        Ok(()) => {
            become_state(State::Armed);
            threads::arm_others();
        }
        Err(why) => {
            become_state(State::Off);
            (outside().keep_on_tcp)(why);
        }
    }
}

/// Whether a connection may leave TCP: no thread makes calls that are not seen.
#[inline]
pub(crate) fn is_ready() -> bool {
    is(State::Off) || threads::are_all_armed()
}

/// A fork's child is one thread, of which the kernel reports nothing until it is armed again.
pub(crate) fn in_child() {
    if is(State::Armed) {
        threads::forget_others();
        if let Err(why) = arm() {
            give_up();
            (outside().keep_on_tcp)(why);
        }
    }
}
