//! Runs a [`Dialer`] with its sockets and timers.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use weft_sys::Lock;
use weft_sys::calls;
use weft_sys::calls::net::sockopt;
use weft_wire::mpa::negotiate::Params;

use super::dialer::{Agreed, Answer, Awaits, Dialer, Effect, Failure, Path, Plan};
use super::limits::REPLY_READ_LEN;
use crate::reactor::{self, Handle, Source};
use crate::timer::Timer;
use crate::watched::Watched;
use crate::{Errno, Result};

/// The outcome of a dial: the stream with the result of the negotiation, or the failure.
pub(crate) type Outcome = std::result::Result<(OwnedFd, Agreed), Failure>;

/// The owner of a dial. Only [`Caller::dialled`] is called without a lock.
pub(crate) trait Caller: Send + Sync + Sized + 'static {
    /// The query for the peer's TCP port.
    type PendingQuery: PendingQuery;

    /// What is known about a peer that has to be asked for its TCP port; `None` if the port is
    /// known.
    fn path(&self, now: Instant) -> Option<Path>;

    /// Starts to query the peer's TCP port. `owner` is called when there may be an answer.
    fn ask(&self, reactor: Handle, owner: &Arc<dyn Source>) -> Result<Self::PendingQuery>;

    /// Stores the peer's answer.
    fn learn(&self, now: Instant, answer: Answer);

    /// Starts to connect to the peer, at the TCP port that it has named, if any. `spare` is the
    /// socket of the last attempt, if that was refused.
    fn open(&self, port: Option<u16>, spare: Option<OwnedFd>) -> Result<OwnedFd>;

    /// The parameters and private data of the MPA request.
    fn mpa_request(&self, weft: bool) -> Result<(Params, Vec<u8>)>;

    /// Called when an attempt has failed and another will follow.
    fn retries(&self, failure: &Failure);

    /// Called once with the outcome, unless the dial was cancelled.
    fn dialled(dial: &Dial<Self>, outcome: Outcome);
}

/// A query for a TCP port.
pub(crate) trait PendingQuery: Send {
    /// Repeats the query.
    fn again(&mut self, owner: &Arc<dyn Source>);

    /// Reads an answer that has arrived.
    fn listen(&self) -> Option<Answer>;
}

impl PendingQuery for std::convert::Infallible {
    fn again(&mut self, _: &Arc<dyn Source>) {
        match *self {}
    }

    fn listen(&self) -> Option<Answer> {
        match *self {}
    }
}

/// A connection attempt in progress.
pub(crate) struct Dial<C: Caller> {
    this: Weak<Self>,
    reactor: Handle,
    pub(crate) caller: C,
    state: Lock<State<C::PendingQuery>>,
}

struct State<Q> {
    dialer: Dialer,
    question: Option<Q>,
    stream: Option<Watched>,
    /// The socket of an attempt that was refused.
    spare: Option<OwnedFd>,
    timer: Option<Timer>,
}

impl<C: Caller> Dial<C> {
    /// Creates a dial, which [`Dial::start`] starts.
    pub(crate) fn new(reactor: Handle, plan: Plan, caller: C) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            caller,
            state: Lock::new(State {
                dialer: Dialer::new(plan),
                question: None,
                stream: None,
                spare: None,
                timer: None,
            }),
        })
    }

    /// Starts to dial.
    ///
    /// # Errors
    /// The failure, if the dial has already failed. Then [`Caller::dialled`] is not called.
    pub(crate) fn start(&self, now: Instant) -> std::result::Result<(), Failure> {
        let Some(owner) = self.owner() else { return Ok(()) };
        let mut state = self.state.lock();
        state.dialer.dial(now, self.caller.path(now));
        match self.perform(&mut state, now, &owner) {
            Some(Err(failure)) => Err(failure),
            // A dial cannot have succeeded before anything was read.
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Cancels the dial; the caller is not called any more.
    pub(crate) fn cancel(&self) {
        let mut state = self.state.lock();
        state.dialer.cancel();
        state.clear();
    }

    fn owner(&self) -> Option<Arc<dyn Source>> {
        self.this.upgrade().map(|this| this as _)
    }

    /// Does what can be done now. Returns the outcome if the dial has ended.
    fn advance(&self, now: Instant) -> Option<Outcome> {
        let owner = self.owner()?;
        let mut state = self.state.lock();
        while state.listen(&self.caller, now) {
            if let Some(outcome) = self.perform(&mut state, now, &owner) {
                return Some(outcome);
            }
        }
        None
    }

    /// Executes the effects of the state machine.
    fn perform(
        &self,
        state: &mut State<C::PendingQuery>,
        now: Instant,
        owner: &Arc<dyn Source>,
    ) -> Option<Outcome> {
        while let Some(effect) = state.dialer.poll_effect() {
            let done = match effect {
                Effect::Dial => {
                    state.dialer.dial(now, self.caller.path(now));
                    Ok(())
                }
                Effect::Ask { again: true } => {
                    state.question.iter_mut().for_each(|question| question.again(owner));
                    Ok(())
                }
                Effect::Ask { again: false } => self
                    .caller
                    .ask(self.reactor, owner)
                    .map(|question| state.question = Some(question)),
                Effect::Connect { port } => {
                    state.question = None;
                    let opened = self.caller.open(port, state.spare.take());
                    opened
                        .and_then(|stream| Watched::new(self.reactor, stream, Arc::clone(owner)))
                        .map(|stream| state.stream = Some(stream))
                }
                Effect::Greet { weft } => {
                    state.question = None;
                    self.caller.mpa_request(weft).map(|(params, private_data)| {
                        state.dialer.send_request(now, params, &private_data);
                    })
                }
                Effect::Transmit(bytes) => state.transmit(&bytes),
                Effect::HangUp(failure) => {
                    state.question = None;
                    let stream = state.stream.take().map(Watched::release);
                    state.spare = stream.filter(|_| failure == Failure::NobodyListens);
                    self.caller.retries(&failure);
                    Ok(())
                }
                Effect::Finished(outcome) => {
                    let stream = state.stream.take().map(Watched::release);
                    state.clear();
                    return Some(outcome.and_then(|agreed| {
                        stream.map(|stream| (stream, agreed)).ok_or(Failure::Closed)
                    }));
                }
            };
            if let Err(error) = done {
                state.dialer.system_failed(now, error);
            }
        }
        let timeout = state.dialer.timeout();
        if timeout != state.timer.as_ref().map(Timer::deadline) {
            state.timer =
                timeout.map(|deadline| Timer::at(self.reactor, deadline, Arc::clone(owner)));
        }
        None
    }
}

impl<Q: PendingQuery> State<Q> {
    /// Passes what has happened to the state machine. Returns whether anything has.
    fn listen<C: Caller>(&mut self, caller: &C, now: Instant) -> bool {
        match (self.dialer.awaits(), &self.question, &self.stream) {
            (Awaits::Answer, Some(question), _) => {
                let Some(answer) = question.listen() else { return false };
                caller.learn(now, answer);
                self.dialer.answered(now, answer);
            }
            (Awaits::Connection, _, Some(stream)) => match is_connected(stream) {
                Ok(false) => return false,
                Ok(true) => self.dialer.connected(now),
                Err(error) => self.dialer.failed(now, Failure::of_connect(error)),
            },
            (Awaits::Reply, _, Some(stream)) => {
                let mut bytes = Vec::with_capacity(REPLY_READ_LEN);
                match weft_sys::recv(stream.as_fd(), &mut bytes) {
                    Err(Errno::AGAIN | Errno::INTR) => return false,
                    Ok(0) => self.dialer.failed(now, Failure::Closed),
                    Ok(_) => self.dialer.received(now, &bytes),
                    Err(error) => self.dialer.failed(now, Failure::of_receive(error)),
                }
            }
            _ => return false,
        }
        true
    }

    /// Sends a frame. A fresh socket has room for some kilobytes.
    fn transmit(&self, bytes: &[u8]) -> Result<()> {
        let stream = self.stream.as_ref().ok_or(Errno::NOTCONN)?;
        match weft_sys::send(stream.as_fd(), bytes) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(Errno::NOBUFS),
            Err(error) => Err(error),
        }
    }

    fn clear(&mut self) {
        self.question = None;
        self.stream = None;
        self.spare = None;
        self.timer = None;
    }
}

impl<C: Caller> Source for Dial<C> {
    fn ready(&self) {
        if let Some(outcome) = self.advance(reactor::now()) {
            C::dialled(self, outcome);
        }
    }

    fn expired(&self, now: Instant) {
        let Some(owner) = self.owner() else { return };
        // Handle what has arrived first: on a busy machine it may have waited for longer than the
        // timeout.
        let outcome = self.advance(now).or_else(|| {
            let mut state = self.state.lock();
            state.dialer.timed_out(now);
            self.perform(&mut state, now, &owner)
        });
        if let Some(outcome) = outcome {
            C::dialled(self, outcome);
        }
    }
}

impl<C: Caller> fmt::Debug for Dial<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("dialer", &self.state.lock().dialer).finish_non_exhaustive()
    }
}

/// Whether the TCP connection is established.
fn is_connected(stream: &Watched) -> Result<bool> {
    sockopt::socket_error(stream)??;
    match calls::net::getpeername(stream) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::super::dialer::Retry;
    use super::super::limits::ASK_LOCAL_TIMEOUT;
    use super::*;

    /// A peer on this host whose port is closed. The query has that answer at once, but the reactor
    /// reports no event.
    struct ClosedPeer {
        /// Whether the request would have a Weft trailer; `None` before the request.
        requested_weft: Lock<Option<bool>>,
    }

    struct Closed;

    impl PendingQuery for Closed {
        fn again(&mut self, _: &Arc<dyn Source>) {}

        fn listen(&self) -> Option<Answer> {
            Some(Answer::Closed)
        }
    }

    impl Caller for ClosedPeer {
        type PendingQuery = Closed;

        fn path(&self, _: Instant) -> Option<Path> {
            Some(Path { is_local: true, was_closed: false })
        }

        fn ask(&self, _: Handle, _: &Arc<dyn Source>) -> Result<Closed> {
            Ok(Closed)
        }

        fn learn(&self, _: Instant, _: Answer) {}

        fn open(&self, _: Option<u16>, _: Option<OwnedFd>) -> Result<OwnedFd> {
            Ok(UnixStream::pair().expect("descriptors are free").0.into())
        }

        fn mpa_request(&self, weft: bool) -> Result<(Params, Vec<u8>)> {
            *self.requested_weft.lock() = Some(weft);
            Err(Errno::CANCELED)
        }

        fn retries(&self, _: &Failure) {}

        fn dialled(_: &Dial<Self>, _: Outcome) {}
    }

    /// On a busy machine the answer and the timeout may be handled together.
    #[test]
    fn answer_that_has_arrived_counts_at_the_timeout() {
        let plan =
            Plan { connect_time: None, reply_time: None, retry: Retry::Refused(&[]), wanted: None };
        let dial =
            Dial::new(Handle::of_process(), plan, ClosedPeer { requested_weft: Lock::new(None) });
        let start = Instant::now();
        dial.start(start).expect("nothing has failed");
        dial.expired(start + 2 * ASK_LOCAL_TIMEOUT);
        // The reactor's thread may be handling it, too.
        let deadline = Instant::now() + Duration::from_secs(240);
        while dial.caller.requested_weft.lock().is_none() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(*dial.caller.requested_weft.lock(), Some(false), "it is a foreign peer");
    }
}
