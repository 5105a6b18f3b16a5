//! The active side of the datagram space: asks a service for its queue pair until it answers.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::{Lock, RecvBatch, Run, UdpSocket};

use super::limits::{INQUIRE_EVERY, INQUIRE_EVERY_MAX, REFUSED_TIME, REPLY_TIMEOUT};
use super::sidr::{LEN, Reply, Request};
use crate::reactor::{Reactor, Source, TimerId, Token};
use crate::{Errno, Result, random};

/// Who asks.
pub(super) trait Inquirer: Send + Sync {
    /// The end of a lookup that was not cancelled; once. Without an answer, `ECONNREFUSED` when
    /// nobody listens, or `ETIMEDOUT`.
    fn answered(&self, outcome: Result<Reply>);
}

/// A lookup under way.
pub(super) struct Lookup {
    this: Weak<Self>,
    inquirer: Weak<dyn Inquirer>,
    socket: UdpSocket,
    local: IpAddr,
    peer: SocketAddr,
    nonce: u64,
    message: [u8; LEN],
    start: Instant,
    state: Lock<State>,
}

struct State {
    token: Option<Token>,
    timer: Option<TimerId>,
    pause: Duration,
    over: bool,
}

impl Lookup {
    /// Asks `peer` over a bound socket.
    ///
    /// # Errors
    /// What the system says at once, such as `ENETUNREACH`.
    pub(super) fn start(
        socket: UdpSocket,
        [local, peer]: [SocketAddr; 2],
        private_data: &[u8],
        inquirer: Weak<dyn Inquirer>,
    ) -> Result<Arc<Self>> {
        // A connected socket hears of a closed port, and nothing from others.
        rustix::net::connect(&socket, &peer)?;
        let nonce = u64::from_ne_bytes(random::bytes()?);
        let private_data = private_data.to_vec();
        let message = Request { port: peer.port(), nonce, private_data }.emit();
        let state = State { token: None, timer: None, pause: INQUIRE_EVERY, over: false };
        let lookup = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            inquirer,
            socket,
            local: local.ip(),
            peer,
            nonce,
            message,
            start: Instant::now(),
            state: Lock::new(state),
        });
        let mut state = lookup.state.lock();
        let owner: Arc<dyn Source> = Arc::clone(&lookup) as _;
        state.token = Some(Reactor::get().watch(lookup.socket.as_fd(), owner)?);
        lookup.ask(&mut state);
        drop(state);
        Ok(lookup)
    }

    /// Asks no longer.
    pub(super) fn cancel(&self) {
        self.end(&mut self.state.lock());
    }

    fn ask(&self, state: &mut State) {
        let (bytes, segment) = (0..LEN, LEN);
        let run = Run { bytes, segment, to: self.peer, from: (self.local, 0) };
        // Lost like any other datagram, if the socket does not take it.
        let _ = self.socket.send(&self.message, &[run]);
        let due = Instant::now() + state.pause;
        state.pause = INQUIRE_EVERY_MAX.min(state.pause * 2);
        let owner = self.this.upgrade().expect("called through an `Arc` of it");
        state.timer = Some(Reactor::get().start_timer(due, owner));
    }

    fn end(&self, state: &mut State) {
        state.over = true;
        if let Some(timer) = state.timer.take() {
            Reactor::get().stop_timer(timer);
        }
        if let Some(token) = state.token.take() {
            Reactor::get().unwatch(self.socket.as_fd(), token);
        }
    }

    fn report(&self, outcome: Result<Reply>) {
        {
            let mut state = self.state.lock();
            if state.over {
                return;
            }
            self.end(&mut state);
        }
        if let Some(inquirer) = self.inquirer.upgrade() {
            inquirer.answered(outcome);
        }
    }

    /// What the socket has: an answer, or that nobody listens.
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
                // The service may be about to listen once more.
                Err(Errno::CONNREFUSED) if self.start.elapsed() < REFUSED_TIME => {}
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

    fn expired(&self, _: Instant) {
        if self.start.elapsed() >= REPLY_TIMEOUT {
            return self.report(Err(Errno::TIMEDOUT));
        }
        let mut state = self.state.lock();
        if !state.over {
            self.ask(&mut state);
        }
    }
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("peer", &self.peer).finish_non_exhaustive()
    }
}
