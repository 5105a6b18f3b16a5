//! Decides when the process begins and stops to watch calls by hand.

use super::outside::{self, Callbacks, outside};
use super::state::{State, advance, become_state, give_up, is};
use super::switch::arm;
use super::{stacks, threads, trap};
use crate::mode;
use crate::settings::{self, ByHand};

/// Reads the settings, when the process begins.
pub(crate) fn read(outside: Callbacks) {
    outside::set(outside);
    stacks::note_main();
    if !mode::enabled() || settings::by_hand() == ByHand::Trust {
        become_state(State::Off);
    }
}

/// Arms the process before it gets its first socket.
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

/// Returns whether a connection may leave TCP: no thread makes calls that Weft does not see.
#[inline]
pub(crate) fn is_ready() -> bool {
    is(State::Off) || threads::are_all_armed()
}

/// Arms the child of a fork. It has one thread, and the kernel does not inherit the setting.
pub(crate) fn in_child() {
    if is(State::Armed) {
        threads::forget_others();
        if let Err(why) = arm() {
            give_up();
            (outside().keep_on_tcp)(why);
        }
    }
}
