//! One connection, from its first byte to its last.

use std::sync::Arc;

use super::addresses::Addresses;
use super::closed::Closed;
use super::full::{Context, FullFeature};
use super::login::{LoginState, Step};
use super::portal::{Portal, Wake};
use crate::limits::{DATA_SEGMENT_LEN_MAX, LOGIN_SEGMENT_LEN_MAX, OUTPUT_LEN_MAX};
use crate::wire::{
    Digests, Framer, Login, LoginResponse, Request, Response, Sequence, append, login_status,
};

/// A connection of an initiator, without its socket.
#[derive(Debug)]
pub struct Connection {
    framer: Framer,
    output: Vec<u8>,
    /// Bytes at the start of `output` that have been sent.
    sent: usize,
    phase: ConnectionPhase,
    addresses: Addresses,
    portal: Arc<Portal>,
    wake: Wake,
}

#[derive(Debug)]
enum ConnectionPhase {
    Login(Box<LoginState>),
    Full(Box<FullFeature>),
    /// What is left of the output is sent, then the connection ends.
    Ending(Closed),
}

impl Connection {
    /// Returns a connection without bytes; `wake` wakes the thread that serves it.
    #[must_use]
    pub fn new(portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        Self::with(LoginState::default(), portal, addresses, wake)
    }

    /// Returns the same, for a connection over RDMA: its PDUs have no digests, and its data is
    /// carried by a [`Datamover`](crate::iser::Datamover).
    #[must_use]
    pub fn over_rdma(portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        Self::with(LoginState::over_rdma(), portal, addresses, wake)
    }

    fn with(login: LoginState, portal: Arc<Portal>, addresses: Addresses, wake: Wake) -> Self {
        let framer = Framer::new(LOGIN_SEGMENT_LEN_MAX);
        let phase = ConnectionPhase::Login(Box::new(login));
        Self { framer, output: Vec::new(), sent: 0, phase, addresses, portal, wake }
    }

    /// Whether the initiator has logged in.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Full(_))
    }

    /// Asks the initiator to log out within this many seconds. `handle` has to follow.
    ///
    /// # Errors
    ///
    /// If the connection is over, because the initiator has not logged in.
    pub fn ask_to_log_out(&mut self, seconds: u16) -> Result<(), Closed> {
        match &mut self.phase {
            ConnectionPhase::Login(_) => return Err(Closed::Draining),
            ConnectionPhase::Full(full) => full.ask_to_log_out(seconds, &mut self.output),
            ConnectionPhase::Ending(_) => {}
        }
        Ok(())
    }

    /// Where received bytes go. `received` has to follow, then `handle`.
    pub fn space(&mut self) -> &mut [u8] {
        self.framer.space()
    }

    /// Notes that the first `len` bytes of `space` were received.
    pub fn received(&mut self, len: usize) {
        self.framer.received(len);
    }

    /// Whether more bytes should be received now. Not while too many are to be sent.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, ConnectionPhase::Ending(_)) && self.output().len() < OUTPUT_LEN_MAX
    }

    /// The bytes to be sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Notes that the first `len` bytes of `output` were sent. `handle` has to follow.
    pub fn sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Handles what was received, and continues what waits for room in the output. Returns whether
    /// there is more to do once the output is sent.
    ///
    /// # Errors
    ///
    /// If the connection is over. What is left of the output is not worth sending then.
    pub fn handle(&mut self) -> Result<bool, Closed> {
        // The guard borrows the session, not the connection.
        let session = match &self.phase {
            ConnectionPhase::Full(full) => full.session().cloned(),
            _ => None,
        };
        let _work = match &session {
            Some(session) => Some(session.work().ok_or(Closed::Replaced)?),
            None => None,
        };
        loop {
            if let ConnectionPhase::Full(full) = &mut self.phase {
                full.send_data(&mut self.output, self.sent);
            }
            if let ConnectionPhase::Ending(closed) = &self.phase {
                if self.output().is_empty() {
                    return Err(closed.clone());
                }
                return Ok(true);
            }
            if !self.wants_input() {
                return Ok(true);
            }
            if !self.handle_one()? {
                return Ok(false);
            }
        }
    }

    /// Handles the next PDU. Returns `false` if there is none.
    fn handle_one(&mut self) -> Result<bool, Closed> {
        let Some(pdu) = self.framer.next_pdu()? else { return Ok(false) };
        let request = Request::parse(pdu.header);
        match &mut self.phase {
            ConnectionPhase::Login(login) => {
                let Ok(Request::Login(request)) = request else {
                    return Err(Closed::Protocol("another request before the login is complete"));
                };
                let step =
                    login.handle(&request, pdu.data, &self.portal, self.addresses.remote.ip());
                self.log_in(&request, step);
            }
            ConnectionPhase::Full(full) => {
                if pdu.is_damaged {
                    return Err(Closed::DataDigest);
                }
                let context = Context { portal: &self.portal, addresses: self.addresses };
                if let Some(closed) = full.handle(request, &pdu, &context, &mut self.output)? {
                    self.phase = ConnectionPhase::Ending(closed);
                }
            }
            ConnectionPhase::Ending(_) => {}
        }
        Ok(true)
    }

    fn log_in(&mut self, request: &Login, step: Step) {
        // StatSN goes on from where the initiator expects it; requests of a login are immediate.
        let status = request.expected_status;
        let sequence = Sequence {
            status,
            expected_command: request.command_number,
            command_max: request.command_number,
        };
        let respond = |output: &mut Vec<u8>, response: LoginResponse, answer: &[u8]| {
            append(output, &Response::Login(response), sequence, Digests::default(), answer);
        };
        match step {
            Step::Continue(response, answer) => respond(&mut self.output, response, &answer),
            Step::Refused(response) => {
                respond(&mut self.output, response, &[]);
                self.phase = ConnectionPhase::Ending(Closed::Refused(response.status));
            }
            Step::Done(mut response, answer, logged_in) => {
                let full = FullFeature::new(
                    &self.portal,
                    self.addresses.remote,
                    logged_in,
                    (request.command_number, status.wrapping_add(1)),
                    self.wake.clone(),
                );
                let Some(full) = full else {
                    response.transits = false;
                    response.status = login_status::OUT_OF_RESOURCES;
                    respond(&mut self.output, response, &[]);
                    self.phase = ConnectionPhase::Ending(Closed::Refused(response.status));
                    return;
                };
                response.tsih = full.tsih();
                respond(&mut self.output, response, &answer);
                self.framer.agree(full.digests(), DATA_SEGMENT_LEN_MAX);
                self.phase = ConnectionPhase::Full(Box::new(full));
            }
        }
    }
}
