//! The active side of the datagram port space: queries a service for its queue pair until it
//! answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::calls;
use weft_sys::{Lock, RecvBatch, Run, UdpSocket};

use super::limits::{QUERY_INTERVAL, QUERY_INTERVAL_MAX, REFUSED_TIME, REPLY_TIMEOUT};
use super::sidr::{LEN, Reply, Request};
use crate::reactor::{Handle, Source};
use crate::timer::Timer;
use crate::watched::Watched;
use crate::{Errno, Result, random};

/// The identifier that looks up a service.
pub(super) trait Querier: Send + Sync {
    /// Called once with the outcome, unless the lookup was cancelled. Without an answer the error
    /// is `ECONNREFUSED` if no program listens, and `ETIMEDOUT` otherwise.
    fn answered(&self, outcome: Result<Reply>);
}

/// A lookup in progress.
pub(super) struct Lookup {
    this: Weak<Self>,
    reactor: Handle,
    inquirer: Weak<dyn Querier>,
    socket: Arc<UdpSocket>,
    local: IpAddr,
    peer: SocketAddr,
    nonce: u64,
    message: [u8; LEN],
    state: Lock<Option<State>>,
}

/// The state of a lookup; it exists only while the lookup runs.
struct State {
    _watched: Watched<Arc<UdpSocket>>,
    /// Runs while a closed port does not end the lookup; `None` afterwards.
    refusal_timer: Option<Timer>,
    /// Expires when the lookup ends without an answer.
    limit: Timer,
    /// Expires when the next query is due.
    next: Timer,
    pause: Duration,
}

impl Lookup {
    /// Starts to query `peer` over a bound socket.
    ///
    /// # Errors
    /// The system's immediate errors, such as `ENETUNREACH`.
    pub(super) fn start(
        reactor: Handle,
        socket: UdpSocket,
        [local, peer]: [SocketAddr; 2],
        private_data: &[u8],
        inquirer: Weak<dyn Querier>,
    ) -> Result<Arc<Self>> {
        // A connected socket reports a closed port, and receives nothing from other addresses.
        calls::net::connect(&socket, &peer)?;
        let nonce = u64::from_ne_bytes(random::bytes()?);
        let private_data = private_data.to_vec();
        let message = Request { port: peer.port(), nonce, private_data }.emit();
        let socket = Arc::new(socket);
        let lookup = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            inquirer,
            socket,
            local: local.ip(),
            peer,
            nonce,
            message,
            state: Lock::new(None),
        });
        let owner = || Arc::clone(&lookup) as Arc<dyn Source>;
        let mut state = lookup.state.lock();
        *state = Some(State {
            _watched: Watched::new(reactor, Arc::clone(&lookup.socket), owner())?,
            refusal_timer: Some(Timer::after(reactor, REFUSED_TIME, owner())),
            limit: Timer::after(reactor, REPLY_TIMEOUT, owner()),
            next: Timer::after(reactor, QUERY_INTERVAL, owner()),
            pause: QUERY_INTERVAL,
        });
        lookup.ask();
        drop(state);
        Ok(lookup)
    }

    /// Ends the lookup without an outcome.
    pub(super) fn cancel(&self) {
        drop(self.state.lock().take());
    }

    fn ask(&self) {
        let (bytes, segment) = (0..LEN, LEN);
        let run = Run { bytes, segment, to: self.peer, from: (self.local, 0) };
        // A failure to send counts as a lost datagram.
        let _ = self.socket.send(&self.message, &[run]);
    }

    fn report(&self, outcome: Result<Reply>) {
        if self.state.lock().take().is_none() {
            return;
        }
        if let Some(inquirer) = self.inquirer.upgrade() {
            inquirer.answered(outcome);
        }
    }

    fn takes_refusals(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|state| state.refusal_timer.is_none())
    }

    /// Reads an answer, or the error that no program listens, from the socket.
    fn receive(&self) -> Option<Result<Reply>> {
        let mut batch = RecvBatch::default();
        loop {
            match self.socket.receive(&mut batch) {
                Ok(_) => {
                    let replies = batch.datagrams().filter_map(|(_, one)| Reply::parse(one));
                    if let Some(reply) = replies.into_iter().find(|one| one.nonce == self.nonce) {
                        return Some(Ok(reply));
                    }
                }
                // The service may be about to listen again.
                Err(Errno::CONNREFUSED) if !self.takes_refusals() => {}
                Err(Errno::CONNREFUSED) => return Some(Err(Errno::CONNREFUSED)),
                Err(_) => return None,
            }
        }
    }
}

impl Source for Lookup {
    fn ready(&self) {
        if let Some(outcome) = self.receive() {
            self.report(outcome);
        }
    }

    fn expired(&self, now: Instant) {
        let mut guard = self.state.lock();
        let Some(state) = &mut *guard else { return };
        if state.limit.is_due(now) {
            drop(guard);
            // An answer that has arrived by now still counts.
            return self.report(self.receive().unwrap_or(Err(Errno::TIMEDOUT)));
        }
        state.refusal_timer =
            state.refusal_timer.take().filter(|refusal_timer| !refusal_timer.is_due(now));
        if state.next.is_due(now) {
            state.pause = QUERY_INTERVAL_MAX.min(state.pause * 2);
            if let Some(owner) = self.this.upgrade() {
                state.next = Timer::after(self.reactor, state.pause, owner);
            }
            self.ask();
        }
    }
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("peer", &self.peer).finish_non_exhaustive()
    }
}
