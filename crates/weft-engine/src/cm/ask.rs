//! Asks a peer over UDP for the TCP port of an RDMA port. Only a Weft peer answers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use weft_sys::calls;
use weft_sys::calls::net::{RecvFlags, SendFlags};
use weft_sys::{Forkable, Lock};

use super::limits::{CLOSED_FOR, CLOSED_MAX};
use super::option::Options;
use super::query;
use super::socket;
use crate::mpa::dial::PendingQuery;
use crate::mpa::dialer::Answer;
use crate::mpa::limits::ASK_AT;
use crate::reactor::{Handle, Source};
use crate::watched::Watched;
use crate::{Errno, Result, random};

/// Peers whose UDP port was recently closed, oldest first. A host limits its ICMP errors, so a
/// later question may get no answer at all.
#[derive(Default)]
struct ClosedPorts(VecDeque<(SocketAddr, Instant)>);

impl ClosedPorts {
    fn has(&mut self, peer: SocketAddr, now: Instant) -> bool {
        self.0.retain(|&(_, since)| now.saturating_duration_since(since) < CLOSED_FOR);
        self.0.iter().any(|&(other, _)| other == peer)
    }

    fn learn(&mut self, peer: SocketAddr, answer: Answer, now: Instant) {
        self.0.retain(|&(other, _)| other != peer || answer == Answer::Silence);
        if answer == Answer::Closed {
            self.0.push_back((peer, now));
            if self.0.len() > CLOSED_MAX {
                self.0.pop_front();
            }
        }
    }
}

static CLOSED: Forkable<Lock<ClosedPorts>> = Forkable::new(|| Lock::new(ClosedPorts::default()));

/// Whether the peer's UDP port was recently closed.
pub(super) fn was_closed(peer: SocketAddr, now: Instant) -> bool {
    CLOSED.get().lock().has(peer, now)
}

/// Remembers the peer's answer.
pub(super) fn learn(peer: SocketAddr, answer: Answer, now: Instant) {
    CLOSED.get().lock().learn(peer, answer, now);
}

/// A query that has not been answered.
#[derive(Debug)]
pub(super) struct Asking {
    reactor: Handle,
    local: SocketAddr,
    peer: SocketAddr,
    /// A connected socket, which reports a closed port.
    connected: Watched,
    /// An unconnected socket, because a host with several addresses may answer from another one.
    any: Option<Watched>,
    nonce: u64,
}

impl Asking {
    /// Sends the first query.
    ///
    /// # Errors
    /// The system's immediate errors, such as `ENETUNREACH`.
    pub(super) fn start(
        reactor: Handle,
        [local, peer]: [SocketAddr; 2],
        owner: &Arc<dyn Source>,
    ) -> Result<Self> {
        let mut local = local;
        local.set_port(0);
        let socket = socket::datagram(&peer, &Options::default())?;
        calls::net::bind(&socket, &local)?;
        calls::net::connect(&socket, &peer)?;
        let asking = Self {
            reactor,
            local,
            peer,
            connected: Watched::new(reactor, socket, Arc::clone(owner))?,
            any: None,
            nonce: u64::from_ne_bytes(random::bytes()?),
        };
        asking.send();
        Ok(asking)
    }

    /// Sends the query. A failure to send counts as a lost datagram.
    fn send(&self) {
        let query = query::query(self.peer.port(), self.nonce);
        let _ = calls::net::send(&self.connected, &query, SendFlags::DONTWAIT);
        if let Some(any) = &self.any {
            let _ = calls::net::sendto(any, &query, SendFlags::DONTWAIT, &self.peer);
        }
    }

    fn any_socket(&self, owner: &Arc<dyn Source>) -> Option<Watched> {
        let socket = socket::datagram(&self.peer, &Options::default()).ok()?;
        calls::net::bind(&socket, &self.local).ok()?;
        Watched::new(self.reactor, socket, Arc::clone(owner)).ok()
    }
}

impl PendingQuery for Asking {
    fn again(&mut self, owner: &Arc<dyn Source>) {
        if self.any.is_none() {
            self.any = self.any_socket(owner);
        }
        self.send();
    }

    fn listen(&self) -> Option<Answer> {
        let mut buffer = [0; query::LEN + 1];
        for socket in [Some(&self.connected), self.any.as_ref()].into_iter().flatten() {
            // The loop is bounded: a process that floods this port only makes us fall back to the
            // RDMA port.
            for _ in 0..ASK_AT.len() * 2 {
                match calls::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                    Ok((length, _)) => {
                        if let Some(port) = query::answered(&buffer[..length], self.nonce) {
                            return Some(Answer::Port(port));
                        }
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::CONNREFUSED) => return Some(Answer::Closed),
                    // A firewall that answers with another ICMP error.
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
    fn closed_port_is_remembered_for_a_limited_time() {
        let peer = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let (start, mut closed) = (Instant::now(), ClosedPorts::default());
        closed.learn(peer(1), Answer::Silence, start);
        assert!(!closed.has(peer(1), start));
        closed.learn(peer(1), Answer::Closed, start);
        closed.learn(peer(1), Answer::Silence, start);
        assert!(closed.has(peer(1), start) && !closed.has(peer(2), start));
        // A Weft peer listens there now.
        closed.learn(peer(1), Answer::Port(9), start);
        assert!(!closed.has(peer(1), start));
        for port in 0..CLOSED_MAX as u16 + 1 {
            closed.learn(peer(1000 + port), Answer::Closed, start);
        }
        assert!(!closed.has(peer(1000), start), "the oldest goes first");
        assert!(closed.has(peer(1001), start));
        assert!(!closed.has(peer(1001), start + CLOSED_FOR), "nothing is remembered for ever");
    }
}
