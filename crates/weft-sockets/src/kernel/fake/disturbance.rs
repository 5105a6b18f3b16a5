//! Acts of peers and other threads in the middle of the core's calls. At moments where another
//! thread could run, the thread itself runs a planned act. An act may be disturbed in turn, as far
//! as its thread is not busy with one already.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::panicking;

use super::Act;

/// An act that is still to come.
struct Planned {
    /// How many moments come before it.
    moments: u32,
    /// The threads that it stands for, one bit each.
    threads: u8,
    act: Act,
}

static PLANNED: Mutex<VecDeque<Planned>> = Mutex::new(VecDeque::new());

thread_local! {
    /// The threads that are in the middle of something.
    static BUSY: Cell<u8> = const { Cell::new(0) };
}

/// An act needs a lock that a thread below it holds. The real thread would wait for it, and act
/// after the lock has been released, so this schedule does not exist.
#[derive(Debug)]
pub(crate) struct Impossible;

fn planned() -> MutexGuard<'static, VecDeque<Planned>> {
    PLANNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plans an act of the `threads` so many moments after the act that was planned before it, at the
/// latest when a thread sleeps.
pub(crate) fn disturb_after(moments: u32, threads: u8, act: impl FnOnce() + Send + 'static) {
    planned().push_back(Planned { moments, threads, act: Box::new(act) });
}

/// Returns how many acts have not run.
pub(crate) fn disturbances_left() -> usize {
    planned().len()
}

/// Executes a call of the `threads`.
pub(crate) fn as_threads<R>(threads: u8, call: impl FnOnce() -> R) -> R {
    let _restored = Restored(BUSY.replace(BUSY.get() | threads));
    call()
}

/// Restores the busy threads when it is dropped.
struct Restored(u8);

impl Drop for Restored {
    fn drop(&mut self) {
        BUSY.set(self.0);
    }
}

/// Returns whether these threads are in the middle of something.
pub(crate) fn are_busy(threads: u8) -> bool {
    BUSY.get() & threads != 0
}

/// Forgets acts that have not run.
pub(crate) fn forget_disturbances() {
    planned().clear();
}

/// Returns a number for the thread that acts now, which is alive.
pub(super) fn own() -> u32 {
    (1 << 30) + u32::from(BUSY.get())
}

/// Runs the next act, if its moment has come.
pub(super) fn moment() {
    if panicking() {
        return; // The schedule does not exist, or the test has failed.
    }
    let due = {
        let mut planned = planned();
        match planned.front_mut() {
            Some(next) if next.moments > 0 => {
                next.moments -= 1;
                None
            }
            Some(next) if !are_busy(next.threads) => planned.pop_front(),
            _ => None,
        }
    };
    due.into_iter().for_each(run);
}

/// Runs the next act that can run, because a thread sleeps. Returns whether there was one.
pub(super) fn run_next() -> bool {
    let next = {
        let mut planned = planned();
        let at = planned.iter().position(|next| !are_busy(next.threads));
        at.and_then(|at| planned.remove(at))
    };
    let is_any = next.is_some();
    next.into_iter().for_each(run);
    is_any
}

fn run(next: Planned) {
    as_threads(next.threads, next.act);
}

/// Handles a wait for a lock, which only a thread below could release.
pub(super) fn wait_for_lock() {
    if BUSY.get() != 0 && !panicking() {
        panic::resume_unwind(Box::new(Impossible));
    }
}
