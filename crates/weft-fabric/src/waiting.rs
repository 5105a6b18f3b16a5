//! Waiting for something of an endpoint, as a future or with a blocked thread.
//!
//! Both look at the endpoint for as long as that tends to pay off ([`Spin`]), and then sleep. A
//! future that looks wakes itself, so that its executor runs others between two looks. While
//! anybody sleeps, one *leader* waits for the endpoint's events, and wakes those whose operations
//! have ended: the first blocked thread, or, if there is none, the thread of the fabric's watcher.
//!
//! [`Spin`]: weft_sys::Spin

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weft_sys::nanoseconds;

use crate::carrier::simulated::Network;
use crate::core::Core;
use crate::limits::LOOKS_PER_CLOCK;
use crate::sleeper::Sleeper;
use crate::state::State;

/// What can be waited for.
pub(crate) trait Awaited {
    /// What it becomes.
    type Output;

    /// Takes the result, if it is there.
    fn take(&mut self, core: &Core, state: &mut State) -> Option<Self::Output>;

    /// Has the waker called when it is worth looking again.
    fn call(&mut self, state: &mut State, waker: &Waker);

    /// Takes the waker back, because its owner waits no longer.
    fn forget(&mut self, state: &mut State, waker: &Waker);
}

/// How far the wait of a future is.
#[derive(Debug, Default)]
pub(crate) struct Since {
    start: Option<Instant>,
    /// Who is to be called, once it sleeps.
    waker: Option<Waker>,
}

/// Polls a future.
pub(crate) fn poll<A: Awaited>(
    core: &Arc<Core>,
    awaited: &mut A,
    since: &mut Since,
    cx: &Context<'_>,
) -> Poll<A::Output> {
    let look = |awaited: &mut A| core.look(|state| awaited.take(core, state));
    if let Some(found) = look(awaited) {
        if let Some(start) = since.start {
            core.future_spin.learn(nanoseconds(start.elapsed()));
        }
        *since = Since::default();
        return Poll::Ready(found);
    }
    let waited = match since.start {
        Some(start) => nanoseconds(start.elapsed()),
        None => {
            since.start = Some(Instant::now());
            0
        }
    };
    if waited < core.future_spin_ns() {
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    let waker = since.waker.insert(cx.waker().clone());
    core.with(|state, _| awaited.call(state, waker));
    // What comes from now on makes an event; what came before is seen by one more look.
    core.arm();
    if let Some(found) = look(awaited) {
        *since = Since::default();
        return Poll::Ready(found);
    }
    core.be_watched();
    Poll::Pending
}

/// Takes back the waker of a future that is dropped.
pub(crate) fn dropped<A: Awaited>(core: &Core, awaited: &mut A, since: &mut Since) {
    if let Some(waker) = since.waker.take() {
        core.with(|state, _| awaited.forget(state, &waker));
        // Another future of its task may wait for the same, and then has to say so again.
        waker.wake();
    }
}

/// Blocks the thread until the result is there; `None` if it is not before the deadline.
pub(crate) fn wait<A: Awaited>(
    core: &Arc<Core>,
    awaited: &mut A,
    deadline: Option<Instant>,
) -> Option<A::Output> {
    if let Some(simulation) = core.parts.link.simulation() {
        return simulated(core, awaited, simulation);
    }
    // What is there at once needs no clock.
    if let Some(found) = core.look(|state| awaited.take(core, state)) {
        core.spin.learn(0);
        return Some(found);
    }
    let start = Instant::now();
    let spin = core.spin.ns(false);
    let (mut waited, mut looks) = (0, 0);
    while waited < spin {
        if let Some(found) = core.look(|state| awaited.take(core, state)) {
            core.spin.learn(waited);
            return Some(found);
        }
        looks += 1;
        if looks % LOOKS_PER_CLOCK == 0 {
            waited = nanoseconds(start.elapsed());
        }
    }
    let (sleeper, waker) = Sleeper::new();
    loop {
        core.with(|state, _| awaited.call(state, &waker));
        core.arm();
        if let Some(found) = core.look(|state| awaited.take(core, state)) {
            core.spin.learn(nanoseconds(start.elapsed()));
            return Some(found);
        }
        let left = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
        {
            Some(Duration::ZERO) => {
                core.with(|state, _| awaited.forget(state, &waker));
                return None;
            }
            left => left,
        };
        if core.lead(&waker) {
            core.await_event(left);
            core.stop_leading();
        } else {
            sleeper.sleep(left);
        }
    }
}

/// Has a simulation go on until the result is there. There is no time in it, so limits are over
/// when nothing more can happen.
fn simulated<A: Awaited>(
    core: &Arc<Core>,
    awaited: &mut A,
    simulation: &Network,
) -> Option<A::Output> {
    loop {
        if let Some(found) = core.look(|state| awaited.take(core, state)) {
            return Some(found);
        }
        if !simulation.step() {
            return None;
        }
    }
}
