//! A listener of the datagram port space: receives lookups of its queue pair and answers them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::{Lock, RecvBatch, Run, UdpSocket};

use super::limits::{ANSWERS_MAX, SERVICE_REQUESTS_MAX};
use super::sidr::{Reply, Request};
use crate::Result;
use crate::reactor::{Handle, Source};
use crate::timer::Timer;
use crate::watched::Watched;

/// The identifier that listens.
pub(super) trait Host: Send + Sync {
    /// Handles a client's lookup. Returns false if it cannot be queued; the client then repeats it.
    fn asked(&self, inquiry: Arc<ServiceRequest>, private_data: Vec<u8>) -> bool;
}

/// A listener for datagrams.
pub(super) struct Service {
    this: Weak<Self>,
    reactor: Handle,
    host: Weak<dyn Host>,
    socket: Arc<UdpSocket>,
    port: u16,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// `None` once the service is closed.
    watched: Option<Watched<Arc<UdpSocket>>>,
    /// Runs if messages are left, because the edge-triggered event will not come again.
    more: Option<Timer>,
    /// The lookups that were queued, by client and nonce, with the reply if there is one: clients
    /// repeat a lookup until they get the reply.
    inquiries: HashMap<(SocketAddr, u64), Option<Reply>>,
    /// The keys of `inquiries`, oldest first.
    order: VecDeque<(SocketAddr, u64)>,
}

/// A lookup that waits for the program.
pub(super) struct ServiceRequest {
    service: Arc<Service>,
    /// The client's address.
    pub(super) from: SocketAddr,
    /// Our address that the client used.
    pub(super) to: SocketAddr,
    interface: u32,
    nonce: u64,
}

impl Service {
    /// Starts to listen on a bound socket.
    ///
    /// # Errors
    /// The reactor's errors.
    pub(super) fn start(
        reactor: Handle,
        socket: UdpSocket,
        port: u16,
        host: Weak<dyn Host>,
    ) -> Result<Arc<Self>> {
        let service = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            host,
            socket: Arc::new(socket),
            port,
            state: Lock::new(State::default()),
        });
        let watched = Watched::new(reactor, Arc::clone(&service.socket), service.owner())?;
        service.state.lock().watched = Some(watched);
        Ok(service)
    }

    /// Stops listening. Lookups that have been reported to the program can still be answered.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.watched = None;
        state.more = None;
    }

    fn owner(&self) -> Arc<Self> {
        self.this.upgrade().expect("called through an `Arc` of it")
    }

    fn take(&self, message: &[u8], from: SocketAddr, to: IpAddr, interface: u32) {
        let Some(request) = Request::parse(message) else { return };
        let key = (from, request.nonce);
        let inquiry = ServiceRequest {
            service: self.owner(),
            from,
            to: SocketAddr::new(to, self.port),
            interface,
            nonce: request.nonce,
        };
        {
            let mut state = self.state.lock();
            match state.inquiries.get(&key) {
                Some(Some(reply)) => {
                    let message = reply.emit();
                    drop(state);
                    return inquiry.send(&message);
                }
                Some(None) => return,
                None if request.port != self.port || state.watched.is_none() => return,
                None => state.remember(key),
            }
        }
        let host = self.host.upgrade();
        let taken = host.is_some_and(|host| host.asked(Arc::new(inquiry), request.private_data));
        if !taken {
            self.state.lock().inquiries.remove(&key);
        }
    }
}

impl State {
    fn remember(&mut self, key: (SocketAddr, u64)) {
        if self.order.len() >= SERVICE_REQUESTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.inquiries.remove(&oldest);
        }
        self.order.push_back(key);
        self.inquiries.insert(key, None);
    }
}

impl ServiceRequest {
    /// Sends the answer.
    pub(super) fn answer(&self, status: u8, qp_num: u32, qkey: u32, private_data: &[u8]) {
        let private_data = private_data.to_vec();
        let reply = Reply { nonce: self.nonce, status, qp_num, qkey, private_data };
        let message = reply.emit();
        if let Some(slot) = self.service.state.lock().inquiries.get_mut(&(self.from, self.nonce)) {
            *slot = Some(reply);
        }
        self.send(&message);
    }

    /// Sends a message. If it is lost, the client repeats its lookup.
    fn send(&self, message: &[u8]) {
        let (bytes, segment) = (0..message.len(), message.len());
        let is_link_local = matches!(self.to.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        let interface = if is_link_local { self.interface } else { 0 };
        let run = Run { bytes, segment, to: self.from, from: (self.to.ip(), interface) };
        let _ = self.service.socket.send(message, &[run]);
    }
}

impl Source for Service {
    fn ready(&self) {
        let mut batch = RecvBatch::default();
        for _ in 0..ANSWERS_MAX {
            match self.socket.receive(&mut batch) {
                Ok(more) => {
                    for (arrival, message) in batch.datagrams() {
                        self.take(message, arrival.from, arrival.to, arrival.interface);
                    }
                    if !more {
                        return;
                    }
                }
                Err(crate::Errno::AGAIN) => return,
                // An earlier answer met a closed port.
                Err(_) => {}
            }
        }
        self.state.lock().more = Some(Timer::after(self.reactor, Duration::ZERO, self.owner()));
    }

    fn expired(&self, _: Instant) {
        self.ready();
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("port", &self.port).finish_non_exhaustive()
    }
}
