//! Connections whose queue pair we cannot connect.
//!
//! UCX uses identifiers only to exchange addresses and private data: it names a queue pair that it
//! never connects, and sends the numbers of others in the private data. The connection itself then
//! only shows whether the peer is alive.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use weft_sys::Lock;
use weft_sys::calls::net::{Shutdown, shutdown};
use weft_wire::ddp;
use weft_wire::mpa::fpdu;
use weft_wire::mpa::negotiate::{Negotiated, RtrKind};
use weft_wire::rdmap::{Opcode, ReadRequest, queue};

use super::endpoint::Endpoint;
use super::limits::HELD_BYTES_MAX;
use crate::hello::Identity;
use crate::qp::{AttrMask, Connection, Monitor, QpAttr};
use crate::reactor::{Handle, Source};
use crate::watched::Watched;
use crate::{Errno, Result};

/// A connection without a queue pair. It discards what it receives.
#[derive(Debug)]
pub(super) struct StandIn {
    this: Weak<Self>,
    reactor: Handle,
    identity: Identity,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    stream: Option<Watched>,
    monitor: Option<Weak<dyn Monitor>>,
    received: usize,
}

impl StandIn {
    /// Creates a stand-in for the queue pair of this identity.
    pub(super) fn new(reactor: Handle, identity: Identity) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor,
            identity,
            state: Lock::new(State::default()),
        })
    }

    /// Reads and discards what arrives. Returns the monitor once the connection has ended; the
    /// caller notifies it without holding a lock.
    fn read(&self) -> Option<Arc<dyn Monitor>> {
        let mut state = self.state.lock();
        while let Some(stream) = &state.stream {
            let mut bytes = Vec::with_capacity(HELD_BYTES_MAX);
            match weft_sys::recv(stream.as_fd(), &mut bytes) {
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Ok(received) if received > 0 => {
                    state.received += received;
                    if state.received <= HELD_BYTES_MAX {
                        continue;
                    }
                }
                Ok(_) | Err(_) => {}
            }
            state.stream = None;
            return state.monitor.as_ref().and_then(Weak::upgrade);
        }
        None
    }
}

impl Endpoint for StandIn {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn attach(&self, connection: Connection, monitor: Weak<dyn Monitor>) -> Result<()> {
        let owner = self.this.upgrade().expect("called through an `Arc` of it");
        let mut state = self.state.lock();
        if connection.initiator
            && let Some(frame) = ready_to_receive(&connection.negotiated)
        {
            weft_sys::send(connection.socket.as_fd(), &frame)?;
        }
        state.stream = Some(Watched::new(self.reactor, connection.socket, owner)?);
        state.monitor = Some(monitor);
        Ok(())
    }

    fn modify(&self, _: &QpAttr, _: AttrMask) -> Result<()> {
        Ok(())
    }

    fn disconnect(&self) {
        let mut state = self.state.lock();
        state.monitor = None;
        if let Some(stream) = state.stream.take() {
            // Closing the socket with unread bytes would reset the connection, so send FIN first.
            let _ = shutdown(&stream, Shutdown::Write);
        }
    }

    fn has_unread(&self) -> bool {
        false
    }
}

impl Source for StandIn {
    fn ready(&self) {
        if let Some(monitor) = self.read() {
            monitor.disconnected();
        }
    }
}

/// The ready-to-receive message for the passive side (RFC 6581 section 9.2).
fn ready_to_receive(negotiated: &Negotiated) -> Option<Vec<u8>> {
    let mut ulpdu = [0; ddp::UNTAGGED_LEN + ReadRequest::LEN];
    let length = match negotiated.rtr? {
        RtrKind::Write => {
            let ulp = Opcode::Write.control();
            ddp::Header::Tagged { last: true, ulp, stag: 1, to: 0 }.emit(&mut ulpdu)
        }
        RtrKind::Read => {
            let ulp = Opcode::ReadRequest.control();
            let (qn, msn) = (queue::READ_REQUEST, ddp::FIRST_MSN);
            let header = ddp::Header::Untagged { last: true, ulp, ulp_word: 0, qn, msn, mo: 0 };
            let length = header.emit(&mut ulpdu);
            let nothing =
                ReadRequest { sink_stag: 0, sink_to: 0, size: 0, source_stag: 1, source_to: 0 };
            length + nothing.emit(&mut ulpdu[length..])
        }
        // We do not offer this kind.
        RtrKind::Send => return None,
    };
    let mut frame = vec![0; fpdu::total_len(length)];
    frame[fpdu::HEADER_LEN..fpdu::HEADER_LEN + length].copy_from_slice(&ulpdu[..length]);
    fpdu::seal(&mut frame, length, negotiated.crc);
    Some(frame)
}
