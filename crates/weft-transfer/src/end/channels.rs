//! The data channels of an end: each is served by a thread of its own.

use std::sync::mpsc::RecvTimeoutError;
use std::thread::Scope;

use super::closers::Closer;
use super::driver::{Machine as _, SessionEnd};
use super::shared::Channels;
use crate::limits::CHANNEL_WAIT;

/// Serves new data channels until no more come or the session is over. `begin` takes a channel
/// before the machine uses it, and returns the work of its thread.
pub(super) fn serve<'scope, C, W: FnOnce() + Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    end: &'scope impl SessionEnd,
    channels: &Channels<C>,
    closer: impl Fn(&C) -> Closer,
    begin: impl Fn(u16, C) -> W,
) {
    let closers = end.closers();
    while !closers.is_stopped() {
        let (number, channel) = match channels.recv_timeout(CHANNEL_WAIT) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        closers.add(number, closer(&channel));
        let work = begin(number, channel);
        let is_up = end.change(|state| !state.is_over() && state.machine.channel_up(number));
        if is_up {
            scope.spawn(work);
        }
        // The session may have ended before the closer was in the map.
        if !is_up || closers.is_stopped() {
            end.close_channel(number);
        }
    }
}
