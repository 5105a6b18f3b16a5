//! Messages that have arrived.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::limits::HEADER_LEN;
use crate::memory::Place;
use crate::state::State;
use crate::waiting::{self, Awaited, Since};

/// A message of the peer, as a slice of bytes. While it lives, it takes one of the messages of
/// [`Options::window`](crate::Options::window); dropping it makes room for another.
pub struct Message {
    core: Arc<Core>,
    /// `None` only while it is dropped.
    place: Option<Place>,
    len: usize,
    immediate: Option<u32>,
}

impl Message {
    /// The immediate data, if the peer has announced a Write by this message
    /// ([`Endpoint::write_with_immediate`](crate::Endpoint::write_with_immediate)). The bytes of
    /// that Write are in the memory then, and the message itself is empty.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.place.as_ref().map(|place| self.core.parts.receives.bytes(place));
        bytes.and_then(|bytes| bytes.get(HEADER_LEN..HEADER_LEN + self.len)).unwrap_or_default()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.core.with(|state, _| state.free(&self.core.parts, place));
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len)
            .field("immediate", &self.immediate)
            .finish_non_exhaustive()
    }
}

/// The wait for the next message: [`Endpoint::receive`](crate::Endpoint::receive). Messages come in
/// the order in which the peer has sent them. A message that came is lost only with the endpoint,
/// whether or not this value is dropped.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Receive {
    core: Arc<Core>,
    since: Since,
}

struct Next<'a>(&'a Arc<Core>);

impl Awaited for Next<'_> {
    type Output = Result<Message>;

    fn take(&mut self, _: &Core, state: &mut State) -> Option<Self::Output> {
        if let Some(arrived) = state.arrivals.pop_front() {
            let core = Arc::clone(self.0);
            let (place, len, immediate) = (Some(arrived.place), arrived.len, arrived.immediate);
            return Some(Ok(Message { core, place, len, immediate }));
        }
        state.end.clone().map(Err)
    }

    fn call(&mut self, state: &mut State, waker: &Waker) {
        state.receivers.add(waker);
    }

    fn forget(&mut self, state: &mut State, waker: &Waker) {
        state.receivers.remove(waker);
    }
}

impl Receive {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), since: Since::default() }
    }

    /// Blocks the thread until there is a message.
    ///
    /// # Errors
    /// Why there will be none: [`Error::Closed`] when the peer has closed the connection.
    pub fn wait(self) -> Result<Message> {
        let closed = Error::Closed { peer: self.core.peer };
        waiting::wait(&self.core, &mut Next(&self.core), None).unwrap_or(Err(closed))
    }

    /// Blocks the thread until there is a message, but no longer than `limit`.
    ///
    /// # Errors
    /// As [`Receive::wait`].
    pub fn wait_for(self, limit: Duration) -> Option<Result<Message>> {
        let deadline = Instant::now() + limit;
        waiting::wait(&self.core, &mut Next(&self.core), Some(deadline))
    }

    /// Returns the next message if it is there, without waiting.
    ///
    /// # Errors
    /// As [`Receive::wait`].
    pub fn try_wait(self) -> Option<Result<Message>> {
        let mut next = Next(&self.core);
        self.core.look(|state| next.take(&self.core, state))
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        waiting::dropped(&self.core, &mut Next(&self.core), &mut self.since);
    }
}

impl Future for Receive {
    type Output = Result<Message>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        waiting::poll(&this.core, &mut Next(&this.core), &mut this.since, cx)
    }
}

impl fmt::Debug for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receive").field("peer", &self.core.peer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::sim::Simulation;

    #[test]
    fn dropped_waits_leave_nothing_behind() {
        let simulation = Simulation::new(1).expect("descriptors");
        let fabric = simulation.host().open(Options::default()).expect("options");
        let listener = fabric.listen(([0, 0, 0, 0], 0).into()).expect("a port");
        let connecting = fabric.connect(listener.address(), b"").expect("a route");
        let server = listener.accept().wait().expect("a peer").accept(b"").expect("a peer");
        let client = connecting.wait().expect("an answer").endpoint;
        let mut cx = Context::from_waker(Waker::noop());
        let mut receive = server.receive();
        assert!(Pin::new(&mut receive).poll(&mut cx).is_pending());
        let core = Arc::clone(&receive.core);
        assert!(core.with(|state, _| state.has_sleepers()));
        drop(receive);
        assert!(!core.with(|state, _| state.has_sleepers()));

        let sent = client.send(b"x").expect("a connection");
        let mut close = client.clone().close();
        assert!(Pin::new(&mut close).poll(&mut cx).is_pending(), "a message is under way");
        drop(close);
        sent.wait().expect("a connection");
        assert_eq!(*server.receive().wait().expect("a message"), *b"x");
    }
}
