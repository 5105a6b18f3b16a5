//! Waiting for any future with a blocked thread.
//!
//! [`crate::waiting`] is for operations of endpoints: there the blocked thread waits for their
//! events itself. Here the watcher does, and wakes the thread.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::carrier::Domain;
use crate::common::Common;
use crate::sleeper::Sleeper;
use crate::stop::Stop;

/// Blocks the thread until the future is ready. Returns `None` if `stop` ends the wait before, or
/// if nothing more can happen in a simulation.
pub(crate) fn wait<F: Future>(
    common: &Common,
    future: F,
    stop: Option<&Stop>,
) -> Option<F::Output> {
    let (sleeper, waker) = Sleeper::new();
    let _called = stop.map(|stop| stop.call(&waker));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    while !stop.is_some_and(Stop::is_stopped) {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        match &common.domain {
            Domain::Simulated(domain) => {
                if !domain.network().step() {
                    return None;
                }
            }
            _ => match stop.and_then(Stop::left) {
                Some(Duration::ZERO) => return None,
                left => sleeper.sleep(left),
            },
        }
    }
    None
}
