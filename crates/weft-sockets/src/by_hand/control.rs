//! Decides when the process begins and stops to watch calls by hand.

use weft_sys::{Section, Uncancelled};

use super::code;
use super::outside::{self, Callbacks, outside};
use super::state::{State, advance, become_state, give_up, is};
use super::switch::arm;
use super::{signals, stacks, switch, threads, trap};
use crate::mode;
use crate::settings::{self, ByHand};

/// Reads the settings, when the process begins.
pub(crate) fn read(outside: Callbacks) {
    outside::set(outside);
    code::find_own();
    stacks::note_main();
    if !mode::enabled() || settings::by_hand() == ByHand::Trust {
        become_state(State::Off);
    } else {
        signals::let_inherited_through();
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
    // Threads that begin wait for this one. So no handler jumps out of what follows, and the thread
    // is not cancelled.
    let _uncancelled = Uncancelled::begin();
    let _section = Section::begin();
    if !advance(State::Idle, State::Beginning) {
        return; // Another thread's socket; a connection waits until all threads are armed.
    }
    match threads::arm_process(trap::handle) {
        Ok(()) if advance(State::Beginning, State::Armed) => threads::arm_others(),
        Ok(()) => switch::let_all_through(), // Another thread has given up meanwhile.
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
    if advance(State::Beginning, State::Off) {
        // The thread that was arming the parent is not here.
        (outside().keep_on_tcp)("calls by hand cannot be seen: the parent was about to watch them");
    } else if is(State::Armed) {
        threads::forget_others();
        signals::let_through(); // The forking thread may not have been armed.
        if let Err(why) = arm() {
            give_up();
            (outside().keep_on_tcp)(why);
        }
    }
}
