//! Asking a peer over UDP for the TCP port of an RDMA port: who answers is a Weft peer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use weft_sys::{Forkable, Lock};

use super::limits::{ASK_AT, CLOSED_FOR, CLOSED_MAX};
use super::option::Options;
use super::query;
use super::socket;
use crate::reactor::{Reactor, Source, TimerId};
use crate::watched::Watched;
use crate::{Errno, Result, random};

/// What became of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A Weft peer listens at this TCP port.
    Port(u16),
    /// The peer's host says that nobody has the UDP port, which a Weft listener takes before its
    /// TCP port.
    Closed,
    /// None in time, or none that says anything: a filter may be between us.
    Silence,
}

/// Peers whose UDP port was closed lately, the oldest first. A host answers only some questions a
/// second with that, so that a later one may meet silence.
static CLOSED: Forkable<Lock<VecDeque<(SocketAddr, Instant)>>> =
    Forkable::new(|| Lock::new(VecDeque::new()));

/// Whether the peer's UDP port was closed lately.
pub(super) fn was_closed(peer: SocketAddr) -> bool {
    let mut closed = CLOSED.get().lock();
    closed.retain(|(_, since)| since.elapsed() < CLOSED_FOR);
    closed.iter().any(|&(other, _)| other == peer)
}

/// What an answer means in the light of those before it, and for those behind it.
pub(super) fn weigh(peer: SocketAddr, answer: Answer) -> Answer {
    let known = was_closed(peer);
    if answer == Answer::Silence {
        return if known { Answer::Closed } else { answer };
    }
    let mut closed = CLOSED.get().lock();
    closed.retain(|&(other, _)| other != peer);
    if answer == Answer::Closed {
        closed.push_back((peer, Instant::now()));
        if closed.len() > CLOSED_MAX {
            closed.pop_front();
        }
    }
    answer
}

/// A question under way.
#[derive(Debug)]
pub(super) struct Asking {
    local: SocketAddr,
    peer: SocketAddr,
    /// Connected, so that it hears of a closed port.
    connected: Watched,
    /// Takes the answer from whatever address a host with several answers from.
    any: Option<Watched>,
    nonce: u64,
    asked: usize,
    start: Instant,
    /// When an answer is not waited for any longer.
    pub(super) give_up: Instant,
}

impl Asking {
    /// Asks, for the first time.
    ///
    /// # Errors
    /// What the system says at once, such as `ENETUNREACH`.
    pub(super) fn start(
        [local, peer]: [SocketAddr; 2],
        patience: Duration,
        owner: &Arc<dyn Source>,
    ) -> Result<(Self, TimerId)> {
        let mut local = local;
        local.set_port(0);
        let socket = socket::datagram(&peer, &Options::default())?;
        rustix::net::bind(&socket, &local)?;
        rustix::net::connect(&socket, &peer)?;
        let start = Instant::now();
        let mut asking = Self {
            local,
            peer,
            connected: Watched::new(socket, Arc::clone(owner))?,
            any: None,
            nonce: u64::from_ne_bytes(random::bytes()?),
            asked: 0,
            start,
            give_up: start + patience,
        };
        let timer = asking.again(owner);
        Ok((asking, timer))
    }

    /// Sends the query once more and starts the timer for what comes next.
    pub(super) fn again(&mut self, owner: &Arc<dyn Source>) -> TimerId {
        let query = query::query(self.peer.port(), self.nonce);
        // A query that cannot be sent is like one that is lost.
        let _ = rustix::net::send(&self.connected, &query, SendFlags::DONTWAIT);
        if self.asked > 0 {
            if self.any.is_none() {
                self.any = self.any_socket(owner);
            }
            if let Some(any) = &self.any {
                let _ = rustix::net::sendto(any, &query, SendFlags::DONTWAIT, &self.peer);
            }
        }
        self.asked += 1;
        let next = ASK_AT.get(self.asked).map(|&after| self.start + after);
        let next = next.map_or(self.give_up, |next| next.min(self.give_up));
        Reactor::get().start_timer(next, Arc::clone(owner))
    }

    fn any_socket(&self, owner: &Arc<dyn Source>) -> Option<Watched> {
        let socket = socket::datagram(&self.peer, &Options::default()).ok()?;
        rustix::net::bind(&socket, &self.local).ok()?;
        Watched::new(socket, Arc::clone(owner)).ok()
    }

    /// Reads what has come.
    pub(super) fn listen(&self) -> Option<Answer> {
        let mut buffer = [0; query::LEN + 1];
        for socket in [Some(&self.connected), self.any.as_ref()].into_iter().flatten() {
            // Bounded: whoever floods this port is only a reason to fall back to the RDMA port.
            for _ in 0..ASK_AT.len() * 2 {
                match rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                    Ok((length, _)) => {
                        if let Some(port) = query::answered(&buffer[..length], self.nonce) {
                            return Some(Answer::Port(port));
                        }
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::CONNREFUSED) => return Some(Answer::Closed),
                    // A filter that says so.
                    Err(_) => return Some(Answer::Silence),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_after_a_closed_port_is_a_closed_port() {
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert_eq!(weigh(peer(1), Answer::Silence), Answer::Silence);
        assert_eq!(weigh(peer(1), Answer::Closed), Answer::Closed);
        assert_eq!(weigh(peer(1), Answer::Silence), Answer::Closed);
        assert_eq!(weigh(peer(2), Answer::Silence), Answer::Silence);
        // A Weft peer listens there now.
        assert_eq!(weigh(peer(1), Answer::Port(9)), Answer::Port(9));
        assert_eq!(weigh(peer(1), Answer::Silence), Answer::Silence);
        for port in 0..CLOSED_MAX as u16 + 1 {
            weigh(peer(1000 + port), Answer::Closed);
        }
        assert!(!was_closed(peer(1000)) && was_closed(peer(1001)), "the oldest goes first");
    }
}
