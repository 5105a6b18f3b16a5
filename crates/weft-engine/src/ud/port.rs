//! The UDP socket that the UD queue pairs of one port share.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::{Arrival, Lock, NoteLock, RecvBatch, UdpSocket};
use weft_wire::datagram::{Header, MULTICAST_QP};

use super::owner::{DatagramTarget, Routes};
use crate::limits::{BATCHES_MAX, UNPOLLED_SENDS_MAX};
use crate::reactor::{Handle, Source};
use crate::{Errno, Result, udp};

/// A UDP socket and the datagrams that arrive on it.
#[derive(Debug)]
pub(crate) struct Port {
    me: Weak<Self>,
    reactor: Handle,
    socket: UdpSocket,
    /// Whether there may be something to receive.
    pending_work: AtomicBool,
    rx: NoteLock<RecvBatch>,
    /// Number of datagrams that have been sent since the socket was last read.
    sent: AtomicU64,
    /// Queue pairs that found the socket full.
    waiting: Lock<Vec<Weak<dyn DatagramTarget>>>,
    routes: Routes,
    unknown: AtomicU64,
    malformed: AtomicU64,
}

impl Port {
    /// Binds the UDP port and starts to receive.
    ///
    /// # Errors
    /// `EADDRINUSE` if it is in use; other errors of `socket(2)` and similar calls.
    pub(crate) fn open(reactor: Handle, number: u16, routes: Routes) -> Result<Arc<Self>> {
        Self::with(reactor, udp::bind(number, false)?, routes)
    }

    /// Binds a port that other processes have bound as well, for multicast.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub(super) fn open_shared(reactor: Handle, number: u16, routes: Routes) -> Result<Arc<Self>> {
        Self::with(reactor, udp::bind(number, true)?, routes)
    }

    fn with(reactor: Handle, socket: UdpSocket, routes: Routes) -> Result<Arc<Self>> {
        let port = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            reactor,
            socket,
            pending_work: AtomicBool::new(false),
            rx: NoteLock::new(RecvBatch::default()),
            sent: AtomicU64::new(0),
            waiting: Lock::new(Vec::new()),
            routes,
            unknown: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
        });
        reactor.get().watch(port.socket.as_fd(), Arc::clone(&port) as Arc<dyn Source>)?;
        Ok(port)
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Counts datagrams that have been sent.
    pub(super) fn note_sent(&self, count: u64) {
        if self.sent.fetch_add(count, Ordering::Relaxed) + count >= UNPOLLED_SENDS_MAX {
            self.drive();
        }
    }

    /// Registers a queue pair to be notified once the socket has room again.
    pub(super) fn await_room(&self, qp: &Arc<dyn DatagramTarget>) {
        let qp = Arc::downgrade(qp);
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|other| other.ptr_eq(&qp)) {
            waiting.push(qp);
        }
    }

    /// Number of datagrams for unknown queue pairs, and of malformed datagrams.
    pub(super) fn dropped(&self) -> (u64, u64) {
        (self.unknown.load(Ordering::Relaxed), self.malformed.load(Ordering::Relaxed))
    }

    fn drive(&self) {
        self.sent.store(0, Ordering::Relaxed);
        self.pending_work.store(true, Ordering::SeqCst);
        while self.pending_work.load(Ordering::SeqCst) {
            let Some(mut batch) = self.rx.try_lock() else { return };
            self.pending_work.store(false, Ordering::SeqCst);
            if self.receive(&mut batch)
                && let Some(me) = self.me.upgrade()
            {
                self.reactor.get().requeue(me);
            }
        }
    }

    /// Reads the socket, up to a bound. Returns whether there may be more.
    fn receive(&self, batch: &mut RecvBatch) -> bool {
        for _ in 0..BATCHES_MAX {
            match self.socket.receive(batch) {
                Ok(more) => {
                    self.deliver(batch);
                    if !more {
                        return false;
                    }
                }
                Err(Errno::AGAIN) => return false,
                // Interrupted, or the ICMP error of an earlier datagram, which does not matter.
                Err(_) => {}
            }
        }
        true
    }

    fn deliver(&self, batch: &RecvBatch) {
        // Look up the queue pair once for consecutive datagrams to the same one.
        let mut last: Option<Arc<dyn DatagramTarget>> = None;
        for (arrival, datagram) in batch.datagrams() {
            let Ok((header, payload)) = Header::parse(datagram) else {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if header.to == MULTICAST_QP {
                self.deliver_to_group(&header, &arrival, payload);
                continue;
            }
            if last.as_ref().is_none_or(|qp| qp.number() != header.to) {
                last = (self.routes.find)(header.to);
            }
            self.deliver_to(last.as_deref(), &header, &arrival, payload);
        }
    }

    fn deliver_to_group(&self, header: &Header, arrival: &Arrival, payload: &[u8]) {
        if !(self.routes.deliver_to_group)(header, arrival, payload) {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver_to(
        &self,
        qp: Option<&dyn DatagramTarget>,
        header: &Header,
        arrival: &Arrival,
        payload: &[u8],
    ) {
        if !qp.is_some_and(|qp| qp.receive(header, arrival, payload)) {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Source for Port {
    fn ready(&self) {
        self.drive();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for qp in waiting.iter().filter_map(Weak::upgrade) {
            qp.has_room();
        }
    }

    fn requeued(&self) {
        self.drive();
    }
}
